"""trl's SFTTrainer, which is given tokens."""

import gpq_agent.train as gpq
import trl
from datasets import Dataset

from tests.frameworks.scripts import hf_support as support

Trainer = gpq.elastic(trl.SFTTrainer)
model = support.language_model()
recorder = support.record(model)
args = support.arguments(trl.SFTConfig, num_train_epochs=1, max_length=None, bf16=False)
trainer = Trainer(
    model, args, train_dataset=Dataset.from_list(support.rows()), processing_class=support.tokenizer(),
    data_collator=support.collate,
)  # fmt: skip
trainer.add_callback(recorder)
trainer.train()
support.save(trainer)
