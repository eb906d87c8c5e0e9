"""trl's DPOTrainer."""

import gpq_agent.train as gpq
import trl
from datasets import Dataset

from tests.frameworks.scripts import hf_support as support

Trainer = gpq.elastic(trl.DPOTrainer)
model = support.language_model()
recorder = support.record(model)
pairs = [
    {"prompt": f"t{row['input_ids'][0]}", "chosen": " t7 t3", "rejected": f" t{row['input_ids'][1]} t2 t9"}
    for row in support.rows()
]
args = support.arguments(trl.DPOConfig, num_train_epochs=1, max_length=None, bf16=False)
trainer = Trainer(
    model, args=args, ref_model=support.language_model(), train_dataset=Dataset.from_list(pairs),
    processing_class=support.tokenizer(),
)  # fmt: skip
trainer.add_callback(recorder)
trainer.train()
support.save(trainer)
