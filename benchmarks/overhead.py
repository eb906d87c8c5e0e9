"""Overhead of the training library: the chargpt example's step in plain DistributedDataParallel against the same under gpq.

Two replicas on the CPU run both by turns, step by step, so that whatever else the machine does hits both. Blocks of steps
are compared, long enough to hold sampled steps and agreements; the median of their ratios is the answer.

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


def timed(steps: Iterator[None]) -> float:
    begin = time.perf_counter()
    next(steps)
    return time.perf_counter() - begin


def replica(rank: int, options: argparse.Namespace, folder: str, port: int) -> None:
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
    ways = [plain(example, data, options, rank), adaptive(job, example, data, options)]
    ratios, seconds = [], [0.0, 0.0]
    for block in range(-options.warmup, options.blocks):
        spent = [0.0, 0.0]
        for step in range(options.steps):
            for way in (0, 1) if step % 2 else (1, 0):
                spent[way] += timed(ways[way])
        if block >= 0:
            ratios.append(spent[1] / spent[0])
            seconds = [total + part for total, part in zip(seconds, spent, strict=True)]
    if rank == 0:
        per_step = [total / options.blocks / options.steps for total in seconds]
        result = {"ratios": ratios, "plain": per_step[0], "gpq": per_step[1], "noise_scale": job.noise_scale}
        Path(folder, "result.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # both loops are in the middle of an epoch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--steps", type=int, default=40, help="steps of each kind in a block")
    parser.add_argument("--warmup", type=int, default=3, help="blocks that do not count")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(replica, (options, folder, port), nprocs=REPLICAS)
        result = json.loads(Path(folder, "result.json").read_text())
    ratios = sorted(result["ratios"])
    overhead = statistics.median(ratios) - 1
    low, high = ratios[len(ratios) // 4] - 1, ratios[3 * len(ratios) // 4] - 1
    if options.json:
        print(json.dumps({**result, "overhead": overhead, "bar": BAR}))
    else:
        print(f"step: plain {1e3 * result['plain']:.2f} ms, gpq {1e3 * result['gpq']:.2f} ms")
        print(f"overhead: median {overhead:+.2%} (quartiles {low:+.2%} to {high:+.2%}), at most {BAR:.0%}")
    return 0 if overhead <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
