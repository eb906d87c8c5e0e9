"""A script of Accelerate: accumulation, clipping, a schedule in its usual arithmetic, evaluation and saves.

Without "gpq" in its settings it is the same script before the change.
"""

import json
import math
import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES, EPOCHS = 1200, 2

out = sys.argv[1]
with open(out + ".settings") as stream:
    settings = json.load(stream)
accumulation = settings["accumulation"]
torch.set_default_dtype(torch.float32)

project = ProjectConfiguration(out + ".project", automatic_checkpoint_naming=True, total_limit=3)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation, project_config=project)
epochs = range
if settings["gpq"]:
    import gpq_agent.train as gpq

    accelerator = gpq.accelerate(accelerator)
    epochs = accelerator.epochs

set_seed(11)
inputs = torch.randn(EXAMPLES + 50, 6)
data = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True), torch.arange(EXAMPLES + 50))
train_data = torch.utils.data.Subset(data, range(EXAMPLES))
test_data = torch.utils.data.Subset(data, range(EXAMPLES, EXAMPLES + 50))
train_loader = DataLoader(
    train_data, settings["batch"], shuffle=settings["shuffle"], num_workers=settings["workers"], drop_last=settings["drop"]
)
test_loader = DataLoader(test_data, 8)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)
steps = EPOCHS * math.ceil(len(train_loader) / accelerator.gradient_accumulation_steps) * accelerator.num_processes
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lambda step: max(1 - step / steps, 0.0))
schedule = accelerator.prepare(schedule)


class Record:
    """Losses of the evaluations, kept over restarts."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, list[float]]:
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.losses = list(state["losses"])


record = Record()
accelerator.register_for_checkpointing(record)
trained: list[int] = []  # examples of the coming step on this replica
metrics: list[int] = []  # of all replicas


def stepped(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    line = {"rate": optimizer.param_groups[0]["lr"], "examples": trained, "metrics": metrics}
    with open(f"{out}.steps.{accelerator.process_index}", "a") as stream:
        stream.write(json.dumps(line) + "\n")
    trained.clear()
    metrics.clear()


register_optimizer_step_post_hook(stepped)
for _ in epochs(EPOCHS):
    model.train()
    for x, y, numbers in train_loader:
        with accelerator.accumulate(model):
            if getattr(train_loader, "counted", 1):
                trained.extend(numbers.tolist())
            metrics.extend(accelerator.gather_for_metrics(numbers).tolist())
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    losses = []
    for x, y, _ in test_loader:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics((model(x) - y).square()))
    record.losses.append(torch.cat(losses).mean().item())
    accelerator.save_state()

accelerator.wait_for_everyone()
if accelerator.is_main_process:
    state = accelerator.unwrap_model(model).state_dict()
    torch.save(state, out)
    with open(out + ".losses", "w") as stream:
        json.dump({"losses": record.losses, "length": len(torch.cat(losses)), "saves": sorted(os.listdir(out + ".project/checkpoints"))}, stream)
