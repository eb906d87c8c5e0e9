"""A script of Accelerate: accumulation, clipping, a schedule in its usual arithmetic, evaluation and saves.

Without "gpq" in its settings it is the script before the change.
"""

import json
import math
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Subset, TensorDataset

out = sys.argv[1]
settings = json.loads(Path(out + ".settings").read_text())
sys.path[:0] = settings["path"]

import accelerate  # noqa: E402
from accelerate.utils import ProjectConfiguration, set_seed  # noqa: E402

EXAMPLES, TESTS, EPOCHS = 1200, 50, 2
HARM = {
    "kill": [signal.SIGKILL],
    "lost lease": [signal.SIGTERM, signal.SIGKILL],
    "full disk": [signal.SIGTERM],  # so gpq writes a checkpoint
    "stop": [signal.SIGTERM],
}

torch.set_default_dtype(torch.float32)
accelerator = accelerate.Accelerator(
    cpu=True,
    gradient_accumulation_steps=settings["accumulation"],
    project_config=ProjectConfiguration(out + ".project", automatic_checkpoint_naming=True),
)
epochs = range
if settings["gpq"]:
    import gpq_agent.train as gpq
    from gpq_agent import wire

    accelerator = gpq.accelerate(accelerator, settings["most"], batch_norm=settings["batch_norm"])
    epochs = accelerator.epochs
if settings["most"]:  # the agent orders twice the batch
    order = wire.Control(attempt=1, seq=1, atomic_batch=10, accum_steps=3)
    wire.write_json(os.path.join(os.environ[wire.ENV_RUN_DIR], wire.CONTROL), order._asdict())
if settings["scale"]:
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=settings["scale"])

set_seed(11)
inputs = torch.randn(EXAMPLES + TESTS, 6)
data = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True), torch.arange(len(inputs)))
train_data, test_data = Subset(data, range(EXAMPLES)), Subset(data, range(EXAMPLES, len(data)))
train_loader = DataLoader(train_data, **settings["loader"])
test_loader = DataLoader(test_data, 8)
# A bias before batch norm has no gradient but rounding errors, from which AdamW makes steps.
layers = [torch.nn.Linear(6, 16, bias=not settings["batch_norm"]), torch.nn.Tanh(), torch.nn.Linear(16, 1)]
if settings["batch_norm"]:
    layers.insert(1, torch.nn.BatchNorm1d(16))
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)
steps_per_epoch = math.ceil(len(train_loader) / accelerator.gradient_accumulation_steps)
steps = EPOCHS * steps_per_epoch * accelerator.num_processes
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lambda step: max(1 - step / steps, 0.0))
scheduler = accelerator.prepare(scheduler)


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
saves = Path(out + ".project/checkpoints")
if saves.is_dir():  # as scripts do that resume by themselves
    accelerator.load_state()
trained: list[int] = []  # examples of the coming step that count on this process
gathered: list[int] = []  # on all of them


def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    line = {"rate": optimizer.param_groups[0]["lr"], "trained": trained, "gathered": gathered}
    with open(f"{out}.steps.{accelerator.process_index}", "a") as stream:
        stream.write(json.dumps(line) + "\n")


def save() -> None:
    """In some attempts of the settings harm comes when the first of several files is written."""
    harm = settings["harm"].get(os.environ.get("GPQ_ATTEMPT"))
    write = accelerate.checkpointing.save

    def begin(*args: Any, **options: Any) -> None:
        accelerate.checkpointing.save = write
        if harm == "full disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
        for number in HARM[harm]:
            os.kill(os.getpid(), number)
        write(*args, **options)

    if harm:
        accelerate.checkpointing.save = begin
    try:
        accelerator.save_state()
    except RuntimeError:
        if harm != "full disk":
            raise


register_optimizer_step_post_hook(stepped)
for _ in epochs(EPOCHS):
    model.train()
    for x, y, numbers in train_loader:
        with accelerator.accumulate(model):
            trained += numbers.tolist() if getattr(train_loader, "counted", 1) else []
            gathered += accelerator.gather_for_metrics(numbers).tolist()
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            trained.clear()
            gathered.clear()
    model.eval()
    with torch.no_grad():
        squares = [accelerator.gather_for_metrics((model(x) - y).square()) for x, y, _ in test_loader]
    assert len(torch.cat(squares)) == TESTS
    record.losses.append(torch.cat(squares).mean().item())
    save()

accelerator.wait_for_everyone()
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), out)
    summary = {
        "version": accelerate.__version__,
        "losses": record.losses,
        "rate": scheduler.get_last_lr()[0],
        "progress": accelerator.job.progress.base_steps if settings["gpq"] else None,
        "saves": sorted(path.name for path in saves.iterdir()),
    }
    Path(out + ".summary").write_text(json.dumps(summary))
