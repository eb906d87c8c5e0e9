"""A language model, whose loss is a mean over the tokens of a step, with evaluation and saves by steps."""

import gpq_agent.train as gpq
import transformers

from tests.frameworks.scripts import hf_support as support

Trainer = gpq.elastic(transformers.Trainer)
model = support.language_model()
recorder = support.record(model)
args = support.arguments(
    logging_steps=4, eval_strategy="steps", eval_steps=10, save_strategy="steps", save_steps=10, save_total_limit=2,
    load_best_model_at_end=True, include_num_input_tokens_seen="non_padding", report_to="tensorboard",
)  # fmt: skip
trainer = Trainer(
    model, args, data_collator=support.collate, train_dataset=support.rows(), eval_dataset=support.rows(48)
)
trainer.add_callback(recorder)
trainer.train()
support.save(trainer)
