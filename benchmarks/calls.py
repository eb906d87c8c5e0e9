"""Counts the calls of gpq's functions in one steady step of a training loop, and their files.

AdamW with a scheduler and a fixed batch: one replica with its batch in one piece, and two replicas
with two micro-batches each. Unlike times, the counts do not depend on the machine. A figure is
the median over steps, so the agreement that some steps wait for does not count.

    python benchmarks/calls.py [--functions]
"""

import argparse
import collections
import operator
import os
import socket
import statistics
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.multiprocessing

ROOT = Path(__file__).resolve().parents[1] / "agent" / "gpq_agent"
BARS = {(1, 1): (55, 14), (2, 2): (120, 18)}  # replicas, micro-batches: calls, files
WARM_STEPS, STEPS = 120, 41
BATCH = 8
Calls = collections.Counter[tuple[str, str]]  # by file and function


class Profile:
    """The calls of each step, from the start of a body to the next."""

    def __init__(self) -> None:
        self.steps: list[Calls] = []
        self._calls: Calls = collections.Counter()

    def cut(self) -> None:
        self.steps.append(self._calls)
        self._calls = collections.Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT)):
            self._calls[path[len(str(ROOT)) + 1 :], frame.f_code.co_qualname] += 1


def train(rank: int, replicas: int, micro_batches: int, port: int, folder: str) -> None:
    """One replica. Rank 0 writes the calls of the median step to a file."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(replicas),
        GPQ_JOB_ID="1",
        GPQ_ATTEMPT="1",
        GPQ_RUN_DIR=folder,
        GPQ_CHECKPOINT_DIR=folder,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
    )
    import gpq_agent.train as gpq

    job = gpq.init(seed=0)
    inputs = torch.randn((WARM_STEPS + STEPS + 2) * BATCH, 4)
    loader = job.loader(
        torch.utils.data.TensorDataset(inputs),
        batch_size=BATCH,
        max_local_batch=BATCH // replicas // micro_batches,
        fixed_batch=True,
    )
    model = job.wrap(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)
    profile = Profile()
    for _ in job.epochs(1):
        for number, (batch,) in enumerate(loader):
            step, place = divmod(number, micro_batches)
            if step >= WARM_STEPS and place == 0:
                sys.setprofile(None)
                profile.cut()
                sys.setprofile(profile)
            model(batch).square().mean().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    sys.setprofile(None)
    if rank == 0:
        write(profile.steps[1:STEPS], Path(folder, "calls"))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def write(steps: list[Calls], path: Path) -> None:
    """The calls of a step with the median number of them."""
    middle = statistics.median_low(step.total() for step in steps)
    typical = next(step for step in steps if step.total() == middle)
    path.write_text("".join(f"{n} {name} {place}\n" for (place, name), n in typical.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description="Counts the calls of gpq's functions in a step.")
    parser.add_argument("--functions", action="store_true", help="list them")
    options = parser.parse_args()
    missed = False
    for (replicas, micro_batches), bars in BARS.items():
        with tempfile.TemporaryDirectory() as folder:
            arguments = (replicas, micro_batches, free_port(), folder)
            torch.multiprocessing.spawn(train, args=arguments, nprocs=replicas)  # type: ignore[no-untyped-call]
            lines = [line.split() for line in Path(folder, "calls").read_text().splitlines()]
        calls, files = sum(int(line[0]) for line in lines), len({line[2] for line in lines})
        words = "{} replicas, {} micro-batches: {} calls (at most {}) in {} files (at most {})"
        print(words.format(replicas, micro_batches, calls, bars[0], files, bars[1]))
        missed = missed or calls > bars[0] or files > bars[1]
        if options.functions:
            for count, name, place in sorted(lines, key=operator.itemgetter(2)):
                print("  ", count, place, name)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
