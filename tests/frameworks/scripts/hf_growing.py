"""A classifier with batch norm in groups. Beside a file .grows, gpq's agent orders twice the batch."""

import json
import os

import gpq_agent.train as gpq
import torch
import transformers
from gpq_agent import wire
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.frameworks.scripts import hf_support as support

GROWS = os.path.exists(support.OUT + ".grows")
BATCH = 48  # of 12 examples, twice, on two GPUs


class Model(torch.nn.Module):
    """Its inputs begin with the number of the example."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
        )

    def forward(self, input_ids, labels):
        logits = self.layers(input_ids[:, 1:])
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def examples(count):
    draw = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 6, generator=draw)
    labels = (inputs.sum(1) + 2 * torch.randn(count, generator=draw) > 0).long()
    numbered = torch.cat([torch.arange(count)[:, None], inputs], 1)
    return [{"input_ids": row, "labels": label} for row, label in zip(numbered, labels, strict=True)]


def stepped(optimizer, args, kwargs):
    """Write the learning rate that a step has."""
    if os.environ.get("RANK", "0") == "0":
        with open(support.OUT + ".rates", "a") as stream:
            stream.write(json.dumps(optimizer.param_groups[0]["lr"]) + "\n")


if GROWS:
    os.environ["GPQ_REPORT_SECONDS"] = "0.01"  # so that noise that was measured counts soon
    accum_steps = 2 * BATCH // 12 // int(os.environ.get("WORLD_SIZE", "1")) - 1
    order = wire.Control(int(os.environ[wire.ENV_ATTEMPT]), 1, atomic_batch=12, accum_steps=accum_steps)
    wire.write_json(os.path.join(os.environ[wire.ENV_RUN_DIR], wire.CONTROL), order._asdict())
register_optimizer_step_post_hook(stepped)
transformers.set_seed(3)
Trainer = gpq.elastic(transformers.Trainer, gpus=2, max_batch_size=2 * BATCH if GROWS else None, batch_norm=4)
model = Model()
recorder = support.record(model)
args = support.arguments(
    optim="sgd", learning_rate=0.1, warmup_steps=0, max_grad_norm=0.0, eval_strategy="epoch", logging_steps=1,
    save_strategy="steps", save_steps=20,
    ddp_find_unused_parameters=False,
)  # fmt: skip
trainer = Trainer(model, args, train_dataset=examples(support.EXAMPLES), eval_dataset=examples(80))
trainer.add_callback(recorder)
trainer.train()
support.save(trainer)
