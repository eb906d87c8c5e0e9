"""Overhead of the training library: the chargpt example's step in plain DistributedDataParallel against the same under gpq.

Two replicas on the CPU run both by turns, step by step, so that whatever else the machine does hits both. The answer is the
median ratio of paired steps. Sampled steps, agreements and reports come only now and then; the ratios over blocks of steps,
which hold them all, are printed too, of wall time and of the CPU time of a replica. All figures are over several launches:
where a process happens to lie in memory moves its ratio by half a per cent either way, and what was made first is slower by half
a per cent (plain against plain shows both), so the two are made first by turns.

    python benchmarks/overhead.py            # exits 1 above two per cent
"""

import argparse
import importlib.util
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

ROOT = Path(__file__).resolve().parent.parent
BAR = 0.02
REPLICAS = 2
EPOCHS = 1000  # never reached


def chargpt() -> ModuleType:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("chargpt", ROOT / "examples" / "chargpt" / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(example: ModuleType, data: Any, options: argparse.Namespace, rank: int) -> Iterator[None]:
    """One optimiser step a turn, as one would write it without gpq."""
    torch.manual_seed(0)
    sampler = DistributedSampler(data, REPLICAS, rank, shuffle=True)
    loader = DataLoader(data, options.batch_size // REPLICAS, sampler=sampler)
    model = DistributedDataParallel(example.CharGPT(options.layers, options.width, 4, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for text, following in loader:
            loss = example.loss_of(model, text, following)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            yield


def adaptive(job: Any, example: ModuleType, data: Any, options: argparse.Namespace) -> Iterator[None]:
    """The same under gpq, with everything switched on: the noise scale, reports, orders, checkpoints."""
    torch.manual_seed(0)
    loader = job.loader(data, batch_size=options.batch_size, max_batch_size=8 * options.batch_size)
    model = job.wrap(example.CharGPT(options.layers, options.width, 4, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)
    for _ in job.epochs(EPOCHS):
        for text, following in loader:
            loss = example.loss_of(model, text, following)
            loss.backward()
            job.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            yield


class Spent:
    """Seconds of each step of one of the two loops."""

    def __init__(self, steps: Iterator[None]) -> None:
        self._steps = steps
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def step(self) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        next(self._steps)
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)


def ratios(plain: list[float], other: list[float], block: int) -> list[float]:
    """Sorted ratios of the sums over blocks."""
    starts = range(0, len(plain), block)
    return sorted(sum(other[start : start + block]) / sum(plain[start : start + block]) for start in starts)


def replica(rank: int, options: argparse.Namespace, folder: str, port: int, plain_first: bool) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(REPLICAS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        GPQ_JOB_ID="1",
        GPQ_ATTEMPT="1",
        GPQ_RUN_DIR=folder,
        GPQ_CHECKPOINT_DIR=folder,
        GPQ_CORES=";".join(str(cores[index % len(cores)]) for index in range(REPLICAS)),
    )
    import gpq_agent.train as gpq

    job = gpq.init()
    example = chargpt()
    data, _ = example.load(64, 400_000)
    ways = [Spent(plain(example, data, options, rank)), Spent(adaptive(job, example, data, options))]
    for way in ways if plain_first else reversed(ways):
        way.step()  # makes the model
    for step in range(-options.warmup, options.steps):
        if step == 0:
            for way in ways:
                way.wall.clear()
                way.cpu.clear()
        for way in ways if step % 2 else reversed(ways):
            way.step()
    if rank == 0:
        times = {"wall": [way.wall for way in ways], "cpu": [way.cpu for way in ways]}
        Path(folder, "result.json").write_text(json.dumps({**times, "noise_scale": job.noise_scale}))
    sys.stdout.flush()
    os._exit(0)  # both loops are in the middle of an epoch


def launch(options: argparse.Namespace, plain_first: bool) -> dict[str, Any]:
    """Times of both ways in a pair of new processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(replica, (options, folder, port, plain_first), nprocs=REPLICAS)
        result: dict[str, Any] = json.loads(Path(folder, "result.json").read_text())
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--launches", type=int, default=6, help="times that both replicas are started anew; an even number"
    )
    parser.add_argument("--steps", type=int, default=400, help="steps of each kind in a launch")
    parser.add_argument("--warmup", type=int, default=100, help="steps that do not count")
    parser.add_argument("--block", type=int, default=50, help="steps of a block")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = [launch(options, plain_first=number % 2 == 0) for number in range(options.launches)]
    wall, cpu = ([[t for run in runs for t in run[kind][way]] for way in (0, 1)] for kind in ("wall", "cpu"))
    paired, blocks = ratios(*wall, 1), ratios(*wall, options.block)
    overhead = statistics.median(paired) - 1
    figures = {
        "plain_seconds": statistics.median(wall[0]),
        "gpq_seconds": statistics.median(wall[1]),
        "overhead": overhead,
        "overhead_by_block": statistics.median(blocks) - 1,
        "overhead_cpu_by_block": statistics.median(ratios(*cpu, options.block)) - 1,
        "overhead_by_launch": [statistics.median(ratios(*run["wall"], 1)) - 1 for run in runs],
        "noise_scale": runs[-1]["noise_scale"],
        "bar": BAR,
    }
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"step, median: plain {1e3 * figures['plain_seconds']:.2f} ms, gpq {1e3 * figures['gpq_seconds']:.2f} ms")
        quartiles = [f"{blocks[len(blocks) * part // 4] - 1:+.2%}" for part in (1, 3)]
        print(
            f"blocks of {options.block}: median {figures['overhead_by_block']:+.2%}, quartiles {' and '.join(quartiles)}"
        )
        print(f"CPU time, blocks of {options.block}: median {figures['overhead_cpu_by_block']:+.2%}")
        print("by launch: " + ", ".join(f"{value:+.2%}" for value in figures["overhead_by_launch"]))
        print(f"overhead, paired steps: median {overhead:+.2%}, at most {BAR:.0%}")
    return 0 if overhead <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
