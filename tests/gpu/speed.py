"""What gpq adds to a step: the same transformer in plain PyTorch and under gpq take turns. It
reports a figure and no verdict."""

import statistics
import time
from typing import Any, NamedTuple

import gpq_agent.train as gpq
import torch
from gpq_agent.train.data.sampler import EARLY_SAMPLES, MOST_RARELY

from .processes import CPU, Child, wait_for_word
from .trainings import enter

TURNS, TURNS_ON_CPU = 8, 4
WARM_UP = 1  # turn, after the steps in which gpq follows the loop
START = 60.0  # seconds until both have warmed up
TURN = 30.0
TOKENS = 64


class Size(NamedTuple):
    """Of the transformer and its data. `steps`: steps of one turn."""

    layers: int
    width: int
    length: int
    batch: int
    steps: int


GPU = Size(8, 512, 256, 32, 100)  # 25 million weights. A turn has one sampled step
SMALL = Size(1, 32, 8, 4, 100)


class Texts(torch.utils.data.Dataset[Any]):
    """Random tokens."""

    def __init__(self, size: Size) -> None:
        generator = torch.Generator().manual_seed(2)
        self.rows = torch.randint(TOKENS, (size.batch * 64, size.length), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def transformer(size: Size) -> torch.nn.Module:
    torch.manual_seed(4)
    layer = torch.nn.TransformerEncoderLayer(size.width, 8, 4 * size.width, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(
        torch.nn.Embedding(TOKENS, size.width),
        torch.nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False),
        torch.nn.Linear(size.width, TOKENS),
    )


def _optimizer(model: torch.nn.Module, device: torch.device) -> Any:
    if device.type == "cuda":
        return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    return torch.optim.AdamW(model.parameters(), lr=1e-5)


class Turns:
    """Called after each step. At the end of a turn it reports the time per step and waits for the
    next turn."""

    def __init__(self, tell: Any, steps: int) -> None:
        self._tell, self._steps = tell, steps
        self._left = WARM_UP * steps
        self._begin = 0.0

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            _wait()
            self._tell((time.perf_counter() - self._begin) / self._steps)
            if wait_for_word() != "go":
                raise SystemExit(0)
            self._left, self._begin = self._steps, time.perf_counter()


def _loss(model: Any, rows: Any, device: torch.device) -> Any:
    with torch.autocast(device.type, dtype=torch.bfloat16):
        return torch.nn.functional.cross_entropy(model(rows).flatten(0, 1), rows.flatten())


def _plain(size: Size, turns: Turns) -> None:
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    pinned = device.type == "cuda"
    loader = torch.utils.data.DataLoader(Texts(size), size.batch, shuffle=True, drop_last=True, pin_memory=pinned)
    model = transformer(size).to(device)
    optimizer = _optimizer(model, device)
    while True:
        for rows in loader:
            loss = _loss(model, rows.to(device, non_blocking=True), device)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            turns()


def _under_gpq(size: Size, turns: Turns) -> None:
    job = gpq.init()
    pinned = job.device.type == "cuda"
    loader = job.loader(Texts(size), size.batch, 8 * size.batch, size.batch, drop_last=True, pin_memory=pinned)
    model = job.wrap(transformer(size))
    optimizer = _optimizer(model, job.device)
    job.prepare(model, optimizer)
    loader.sampler.sampled(MOST_RARELY * EARLY_SAMPLES)  # as after hours of training
    for _ in job.epochs(10**6):
        for rows in loader:
            loss = _loss(model, rows.to(job.device, non_blocking=True), job.device)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if job.at_step:
                turns()


def _runner(tell: Any, device: str, under_gpq: bool) -> None:
    enter(device)
    torch.set_num_threads(1)
    size = GPU if torch.cuda.is_available() else SMALL
    (_under_gpq if under_gpq else _plain)(size, Turns(tell, size.steps))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def overhead(tell: Any, devices: list[str]) -> str:
    """Return the ratio of the medians over turns. Both processes live all the time, but only one
    computes."""
    runners = [Child(_runner, devices[0], under_gpq) for under_gpq in (False, True)]
    for runner in runners:
        runner.next(START)
    seconds: list[list[float]] = [[], []]
    turns = TURNS_ON_CPU if devices[0] == CPU else TURNS
    for turn in range(turns):
        for place in (0, 1) if turn % 2 == 0 else (1, 0):
            runners[place].ask()
            seconds[place].append(float(runners[place].next(TURN)))
    for runner in runners:
        runner.end()
    plain_median, under_gpq_median = (statistics.median(row) for row in seconds)
    ratios = sorted(second / first for first, second in zip(*seconds, strict=False))
    return (
        f"{under_gpq_median / plain_median:.3f} times plain PyTorch ({1e3 * under_gpq_median:.2f} ms instead of"
        f" {1e3 * plain_median:.2f} ms per step, quartiles {ratios[turns // 4]:.3f} to {ratios[3 * turns // 4]:.3f})"
    )
