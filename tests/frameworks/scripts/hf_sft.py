"""trl's SFTTrainer, which is given tokens. gpq's agent orders twice the batch, although the loss is a mean over labels."""

import os

import gpq_agent.train as gpq
import trl
from datasets import Dataset
from gpq_agent import wire
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.frameworks.scripts import hf_support as support


def order(*place):
    """After the first steps, and before the order to stop."""
    path = os.path.join(os.environ[wire.ENV_RUN_DIR], wire.CONTROL)
    if not os.path.exists(path):
        content = wire.Control(int(os.environ[wire.ENV_ATTEMPT]), 1, atomic_batch=12, accum_steps=7)
        wire.write_json(path, content._asdict())


if not support.IS_PLAIN:
    register_optimizer_step_post_hook(order)
Trainer = gpq.elastic(trl.SFTTrainer, max_batch_size=96)
model = support.language_model()
recorder = support.record(model)
args = support.arguments(
    trl.SFTConfig, num_train_epochs=1, max_length=None, bf16=False, ddp_find_unused_parameters=False
)
trainer = Trainer(
    model, args, train_dataset=Dataset.from_list(support.rows()), processing_class=support.tokenizer(),
    data_collator=support.collate,
)  # fmt: skip
trainer.add_callback(recorder)
trainer.train()
support.save(trainer)
