"""A small training job that writes down everything it does. It runs under torchrun, with plain Python or in a forked
replica.

Its only argument is a JSON object, see Settings. It writes one line per micro-batch to <out>/visits.<attempt>.<rank>.
"""

import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gpq_agent.train as gpq
import torch
from gpq_agent import wire

SLOW = 0.3  # seconds per micro-batch after the brake


@dataclass
class Settings:
    """What a test wants from the script."""

    out: str
    size: int = 203
    epochs: int = 3
    batch: int = 16
    max_batch: int = 64
    max_local: int = 16
    fixed: bool = False
    workers: int = 0
    optimizer: str = "sgd"
    rule: str = "auto"
    pace: float = 0.0  # minimum seconds per micro-batch, as if the model were larger
    evaluate: bool = False
    checkpoint_dir: str = ""
    sampler: str = ""  # one of SAMPLERS or BATCH_SAMPLERS
    drop_last: bool = False
    options: dict[str, Any] = field(default_factory=dict)  # for job.loader()
    clip: float = 0.0  # norm at which torch clips gradients, or 0 for never
    scaled: bool = False  # with torch's GradScaler
    averaged: bool = False  # with a moving average of the weights, written to <out>/averaged.<attempt>.pt at the end
    norm: bool = False  # batch norm, which refuses a single example
    lottery: str = ""  # a seed that each process draws for itself: "init", or "generator" of the loader
    data: str = ""  # one of DATA
    by_rank: dict[str, list[Any]] = field(default_factory=dict)  # arguments of job.loader(), a value for each rank


class Buckets:
    """Batches of neighbours, one to two times the batch size, in a random order."""

    def __init__(self, size: int, batch: int) -> None:
        self.size, self.batch_size = size, batch

    def __iter__(self) -> Iterator[list[int]]:
        cuts, at = [], 0
        while at < self.size:
            cuts.append((at, min(at + random.randint(2, 2 * self.batch_size), self.size)))
            at = cuts[-1][1]
        random.shuffle(cuts)
        return iter([list(range(*cut)) for cut in cuts])


SAMPLERS: dict[str, Callable[[int], Any]] = {
    "weighted": lambda size: torch.utils.data.WeightedRandomSampler(torch.arange(1.0, size + 1), size + 7),
    "another by rank": lambda size: random.Random(os.environ["RANK"]).sample(range(size), size),
}
BATCH_SAMPLERS: dict[str, Callable[[int, int], Any]] = {"buckets": Buckets}


def data_options(settings: Settings) -> dict[str, Any]:
    """Arguments for job.loader() that follow from the settings, apart from the batch sizes."""
    options = {"num_workers": settings.workers, **settings.options}
    if settings.lottery == "generator":
        options["generator"] = torch.Generator()
        options["generator"].seed()
    if settings.drop_last:
        options["drop_last"] = True
    if settings.sampler in SAMPLERS:
        options["sampler"] = SAMPLERS[settings.sampler](settings.size)
    if settings.sampler in BATCH_SAMPLERS:
        options["batch_sampler"] = BATCH_SAMPLERS[settings.sampler](settings.size, settings.batch)
    return options


class Examples(torch.utils.data.Dataset[Any]):
    """Example i of a fixed regression problem: (i, x_i, y_i)."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(size, 6, generator=generator)
        self.y = self.x.prod(dim=1, keepdim=True).tanh() + 0.1 * torch.randn(size, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return index, self.x[index], self.y[index]


class Altered(torch.utils.data.Dataset[Any]):
    """Examples whose inputs change as they are read. `reads` counts within this process."""

    def __init__(self, data: Any, alter: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.data, self.alter, self.reads = data, alter, 0
        self.x, self.y = data.x, data.y

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        place, x, y = self.data[index]
        return place, self.alter(x), y


def entropy() -> torch.Generator:
    """A generator that no seed affects."""
    return torch.Generator().manual_seed(random.SystemRandom().randrange(2**31))


def split(data: Examples) -> Any:
    return torch.utils.data.random_split(data, [len(data) - 40, 40], generator=entropy())[0]


def chosen(data: Examples) -> Any:
    """The same, but as a separate data set."""
    places = sorted(random.SystemRandom().sample(range(len(data)), len(data) - 40))
    data.x, data.y = data.x[places], data.y[places]
    return data


def labelled(data: Examples) -> Any:
    """Each label is the index of its class in a directory listing, which is in another order in each attempt."""
    data.y = data.y + 100.0 * (1 + int(os.environ[wire.ENV_ATTEMPT]))
    return data


def rounded(data: Examples) -> Any:
    """Rounding differences, as from another number of threads or another processor."""
    data.x = data.x * (1 + 1e-7 * torch.randn(data.x.shape, generator=entropy()))
    return data


def flipped(data: Examples) -> Any:
    return Altered(data, lambda x: x * random.choice([-1.0, 1.0]) + torch.randn(1))


def jittered(data: Examples) -> Any:
    own = entropy()
    return Altered(data, lambda x: x + torch.randn(1, generator=own))


# What a script may make of its data each time it starts.
DATA: dict[str, Callable[[Examples], Any]] = {
    "": lambda data: data, "split": split, "chosen": chosen, "labelled": labelled, "rounded": rounded,
    "flipped": flipped, "jittered": jittered,
}  # fmt: skip


def moving_average(model: Any) -> torch.optim.swa_utils.AveragedModel:
    function = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    return torch.optim.swa_utils.AveragedModel(getattr(model, "module", model), multi_avg_fn=function)


def main(text: str) -> None:
    """Run the script. If the library stops it with a message, also write that message to
    <out>/refused.<attempt>.<rank>."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true")  # there is no memory to pin here
    settings = Settings(**json.loads(text))
    seed = random.SystemRandom().randrange(2**31) if settings.lottery == "init" else 0
    job = gpq.init(seed=seed, checkpoint_dir=settings.checkpoint_dir or None)
    try:
        train(job, settings)
    except gpq.GpqTrainError as error:
        with open(os.path.join(settings.out, f"refused.{job.attempt}.{job.rank}"), "w") as stream:
            stream.write(error.message)
        raise


def train(job: gpq.Job, settings: Settings) -> None:
    data = DATA[settings.data](Examples(settings.size))
    arguments = {
        "batch_size": settings.batch,
        "max_batch_size": settings.batch if settings.fixed else settings.max_batch,
        "max_local_batch": settings.max_local,
        "fixed_batch": settings.fixed,
        **data_options(settings),
        **{name: values[job.rank] for name, values in settings.by_rank.items()},
    }
    loader = job.loader(data, **arguments)
    torch.manual_seed(1)
    middle = torch.nn.BatchNorm1d(16) if settings.norm else torch.nn.Tanh()
    model = job.wrap(torch.nn.Sequential(torch.nn.Linear(6, 16), middle, torch.nn.Linear(16, 1)))
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=50) if settings.scaled else None
    average = job.state(moving_average(model)) if settings.averaged else None
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler, rule=settings.rule, scaler=scaler)
    if job.rank == 0:
        restored = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "lr": scheduler.get_last_lr()}
        torch.save(restored, os.path.join(settings.out, f"restored.{job.attempt}.pt"))
    brake = os.path.join(settings.out, f"brake.{job.attempt}")
    swift = int(open(brake).read()) if os.path.exists(brake) else -1  # noqa: SIM115
    micros = 0
    path = os.path.join(settings.out, f"visits.{job.attempt}.{job.rank}")
    with open(path, "w", buffering=1) as stream:
        for epoch in job.epochs(settings.epochs):
            for index, x, y in loader:
                micros += 1
                pace = SLOW if 0 <= swift < micros else settings.pace
                end = time.monotonic() + pace
                loss = torch.nn.functional.mse_loss(model(x), y)
                (loss if scaler is None else scaler.scale(loss)).backward()
                step = job.step
                if scaler is not None:
                    scaler.unscale_(optimizer)
                if settings.clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
                if scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                if average is not None and job.at_step:
                    average.update_parameters(getattr(model, "module", model))
                seen = index.tolist() if loader.counted else []
                line = {
                    "epoch": epoch,
                    "pass": loader.sampler.cursor.epoch,
                    "step": step,
                    "seen": seen,
                    "loss": loss.item(),
                }
                line["rate"] = scheduler.last_epoch
                stream.write(json.dumps(line) + "\n")
                if settings.evaluate and job.at_step and job.step % 5 == 0:
                    with job.eval(), torch.no_grad():
                        job.log(validation=torch.nn.functional.mse_loss(model(data.x), data.y))
                while time.monotonic() < end:
                    time.sleep(pace / 4)
            job.log(loss=loss.item())
    if average is not None and job.rank == 0:
        torch.save(average.state_dict(), os.path.join(settings.out, f"averaged.{job.attempt}.pt"))
    with open(os.path.join(settings.out, f"finished.{job.attempt}.{job.rank}"), "w") as stream:
        reads = getattr(data, "reads", 0)
        stream.write(json.dumps({"replicas": job.replicas, "step": job.step, "reads": reads}))


if __name__ == "__main__":
    main(sys.argv[1])
