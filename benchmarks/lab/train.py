"""One training of the lab: true gradients of a tiny model, and steps that take as long as those of
a large model on GPUs.

A replica computes its micro-batch, then sleeps until the modelled time is over: before backward()
until T_grad, and in the hook that averages the gradients until T_step. So the library measures both
as it does on GPUs. A step begins where the one before ended, so what gpq itself does is part of it.

Exits with 1 if the accuracy on held-out examples misses the target after the last epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import gpq_agent.train as gpq
import torch
from gpq_agent.train import internals
from torch import nn
from torch.utils.data import Sampler

from benchmarks.lab.kinds import KINDS, Kind, StepModel

MOMENTUM = 0.9
HELD_OUT = 2000
POOL = 40000  # examples to draw from, besides those held out
UNITS = 24  # hidden ones of the teacher
LATE = 0.05  # seconds between two steps. What takes longer is no part of a step
LONGEST_BACKWARD = 0.02  # seconds that count, so that one pass that was interrupted does not
STARTING_NICE = 3  # more than later, so that a start does not delay the steps of others


class Rows(NamedTuple):
    """Examples with their labels."""

    inputs: torch.Tensor
    labels: torch.Tensor

    def batch(self, places: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """All rows at once, because a tiny model would wait for each."""
        rows = torch.as_tensor(places)
        return self.inputs[rows], self.labels[rows]


class Part(Sampler):
    """`size` random examples of the pool in a pass, so that a pass is short."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.epoch = size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(1000003 * self.seed + self.epoch)
        return iter(torch.randperm(POOL, generator=generator)[: self.size].tolist())


def examples(kind: Kind, seed: int) -> tuple[Rows, Rows]:
    """(to train on, held out). A part of the labels to train on is wrong, so the noise of the
    gradient grows as the model learns the rest."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(POOL + HELD_OUT, kind.inputs, generator=generator)
    first = torch.randn(kind.inputs, UNITS, generator=generator) / kind.inputs**0.5
    second = torch.randn(UNITS, kind.classes, generator=generator)
    labels = (torch.tanh(2 * inputs @ first) @ second).argmax(1)
    is_wrong = torch.rand(len(labels), generator=generator) < kind.flips
    wrong = torch.randint(kind.classes, (len(labels),), generator=generator)
    noisy = torch.where(is_wrong, wrong, labels)
    return Rows(inputs[HELD_OUT:], noisy[HELD_OUT:]), Rows(inputs[:HELD_OUT], labels[:HELD_OUT])


def network(kind: Kind) -> nn.Module:
    return nn.Sequential(
        nn.Linear(kind.inputs, kind.hidden),
        nn.ReLU(),
        nn.Linear(kind.hidden, kind.hidden),
        nn.ReLU(),
        nn.Linear(kind.hidden, kind.classes),
    )


def sgd(kind: Kind, model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=kind.lr, momentum=MOMENTUM)


@torch.no_grad()
def accuracy(model: nn.Module, rows: Rows) -> float:
    return (model(rows.inputs).argmax(1) == rows.labels).float().mean().item()


@dataclass
class Times:
    """The micro-batches of one attempt on its first replica. Seconds."""

    replicas: int
    micros: int = 0
    measured: float = 0.0
    modelled: float = 0.0


class Emulator:
    """Makes steps take as long as `model` says."""

    def __init__(self, model: StepModel, nodes: int, replicas: int) -> None:
        self.times = Times(replicas)
        self._model, self._nodes, self._replicas = model, nodes, replicas
        self._begin = self._end = self._backward_at = 0.0
        self._grad_at = self._step_at = 0.0  # when the gradient and the step are due
        self._backward = 0.002  # seconds that a backward pass takes: a running average
        self._is_averaged = False
        if replicas > 1:
            self._delay_averages()

    def begin(self, examples: int, *, is_last: bool) -> None:
        """A micro-batch was fetched. `is_last`: of its step, so its gradients are averaged."""
        now = time.perf_counter()
        self._begin = self._end if now - self._end < LATE else now
        self._is_averaged = is_last and self._replicas > 1
        self._grad_at = self._step_at = self._begin + self._model.grad(examples)
        if is_last:
            self._step_at = self._begin + self._model.step(self._nodes, self._replicas, examples)

    def backward_begins(self) -> None:
        self._sleep(self._grad_at - self._backward)
        self._backward_at = time.perf_counter()

    def backward_ends(self) -> None:
        if not self._is_averaged:
            self._note_backward()
            self._sleep(self._step_at)

    def end(self) -> None:
        """The loop body is over."""
        self._end = time.perf_counter()
        self.times.micros += 1
        self.times.measured += self._end - self._begin
        self.times.modelled += self._step_at - self._begin

    def _note_backward(self) -> None:
        seconds = min(time.perf_counter() - self._backward_at, LONGEST_BACKWARD)
        self._backward += 0.1 * (seconds - self._backward)

    def _sleep(self, until: float) -> None:
        time.sleep(max(until - time.perf_counter(), 0.0))

    def _delay_averages(self) -> None:
        """Only gpq's own hook calls this function, once in each step of so small a model."""
        all_reduce = internals.all_reduce
        emulator = self

        class Delayed:
            """A work object of torch that ends when the step is due."""

            def __init__(self, work: object) -> None:
                self._work = work

            def wait(self, *arguments: object) -> object:
                result = self._work.wait(*arguments)
                emulator._sleep(emulator._step_at)
                return result

            def __getattr__(self, name: str) -> object:
                return getattr(self._work, name)

        def delayed(group: object, buffer: torch.Tensor, options: object) -> Delayed:
            emulator._note_backward()
            return Delayed(all_reduce(group, buffer, options))

        internals.all_reduce = delayed


def renice(change: int) -> None:
    """Of this process and its session, because Linux may share cores between sessions first.
    Without root it does nothing, and a start delays the steps of others a little."""
    if os.getuid() != 0:
        return
    value = os.getpriority(os.PRIO_PROCESS, 0) + change
    os.setpriority(os.PRIO_PROCESS, 0, value)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as stream:
        stream.write(str(value))


def main() -> int:
    renice(STARTING_NICE)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), required=True)
    parser.add_argument("--seed", type=int, default=0, help="of the data and the model")
    parser.add_argument("--times", type=Path, help="folder for the times of each attempt")
    options = parser.parse_args()
    kind = KINDS[options.kind]
    job = gpq.init(seed=options.seed)
    torch.set_num_threads(1)
    training, held_out = examples(kind, options.seed)
    loader = job.loader(
        range(POOL),
        batch_size=kind.base,
        max_batch_size=kind.most,
        max_local_batch=kind.local,
        sampler=Part(kind.size, options.seed),
        collate_fn=training.batch,
    )
    torch.manual_seed(options.seed)
    plain = network(kind)
    model = job.wrap(plain)
    model, optimizer, _ = job.prepare(model, sgd(kind, model))
    emulator = Emulator(kind.model, int(os.environ.get("GROUP_WORLD_SIZE", "1")), job.replicas)
    try:
        for _ in job.epochs(kind.epochs):
            for inputs, labels in loader:
                emulator.begin(len(labels), is_last=job.at_step)
                loss = nn.functional.cross_entropy(model(inputs), labels)
                emulator.backward_begins()
                loss.backward()
                emulator.backward_ends()
                optimizer.step()
                optimizer.zero_grad()
                emulator.end()
                if emulator.times.micros == 1:
                    renice(-STARTING_NICE)
            with job.eval():
                job.log(loss=loss.item(), accuracy=accuracy(plain, held_out))
    finally:
        if options.times and job.rank == 0:
            file = options.times / f"{os.environ['GPQ_JOB_ID']}-{job.attempt}.json"
            file.write_text(json.dumps(asdict(emulator.times)))
    score = accuracy(plain, held_out)
    if job.rank == 0:
        print(f"accuracy {score:.4f}, target {kind.target}", flush=True)
    return 0 if score >= kind.target else 1


if __name__ == "__main__":
    sys.exit(main())
