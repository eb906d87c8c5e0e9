"""Overhead of the training library: the chargpt example's step in plain DistributedDataParallel,
compared with the same step under gpq.

Two CPU replicas of each loop take turns of a few steps. So whatever else the machine does hits both
loops, and each training finds the processor's caches as it has left them. They are separate
processes, because the library would take another training in its process for a part of the loop.
The result is the median ratio of paired steps. Sampled steps, agreements and reports come only now
and then. Blocks of steps contain all of them, so the ratios over blocks are printed too, for wall
time and for the CPU time of a replica. All figures are over several launches, because the place of
a process in memory moves its ratio by half a per cent either way.

Measures steps without accumulation, and steps that accumulate over micro-batches. The plain loop
accumulates by hand, with no_sync(). gpq accumulates in the other loop, whose body is the same for
both. Clipping is as in the example, with job.clip_grad_norm_, which does nothing in micro-batches
that only accumulate. It is also measured with torch's own function, which a script may use, and
which runs in each micro-batch.

    python benchmarks/overhead.py                            # exits with 1 above the bar in any row
    python benchmarks/overhead.py --warmup 0 --steps 500     # with the first steps of an attempt
"""

import argparse
import importlib.util
import itertools
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

ROOT = Path(__file__).resolve().parent.parent
BARS = (0.01, 0.02)  # for steps without accumulation, and for steps with it
REPLICAS = 2
CLIPS = {"job": "job.clip_grad_norm_", "torch": "torch's clip_grad_norm_"}
EPOCHS = 1000  # never reached
TURN_SECONDS = 300.0  # after which a process that waits for another takes it for dead


def chargpt() -> ModuleType:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location(
        "chargpt", ROOT / "examples" / "chargpt" / "train.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(
    example: ModuleType, data: Any, options: argparse.Namespace, rank: int, micro: int
) -> Iterator[None]:
    """One optimizer step of `micro` micro-batches per turn, as one would write it without gpq.
    Prepares everything first."""
    torch.manual_seed(0)
    sampler = DistributedSampler(data, REPLICAS, rank, shuffle=True, drop_last=True)
    loader = DataLoader(
        data, options.batch_size // REPLICAS // micro, sampler=sampler, drop_last=True
    )
    model = DistributedDataParallel(example.CharGPT(options.layers, options.width, 4, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    yield
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (text, following) in enumerate(loader):
            last = (number + 1) % micro == 0
            with nullcontext() if last else model.no_sync():
                loss = example.loss_of(model, text, following)
                if micro > 1:
                    loss = loss / micro
                loss.backward()
            if not last:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            yield


def adaptive(
    job: Any, example: ModuleType, data: Any, options: argparse.Namespace, micro: int, clip: str
) -> Iterator[None]:
    """The same under gpq, with everything switched on: the noise scale, reports, orders,
    checkpoints."""
    torch.manual_seed(0)
    loader = job.loader(
        data,
        batch_size=options.batch_size,
        max_batch_size=8 * options.batch_size,
        max_local_batch=options.batch_size // REPLICAS // micro if micro > 1 else None,
        drop_last=True,
    )
    model = job.wrap(example.CharGPT(options.layers, options.width, 4, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)
    yield
    turns = 0
    for _ in job.epochs(EPOCHS):
        for text, following in loader:
            turns += loader.counted > 0  # a trial's batches make no step
            loss = example.loss_of(model, text, following)
            loss.backward()
            if clip == "job":
                job.clip_grad_norm_(1.0)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if loader.counted and turns % micro == 0:
                assert job.at_step, "another number of micro-batches than the plain loop has"
                yield


def ratios(plain: list[float], other: list[float], block: int) -> list[float]:
    """Sorted ratios of the sums over blocks."""
    starts = range(0, len(plain), block)
    return sorted(
        sum(other[start : start + block]) / sum(plain[start : start + block]) for start in starts
    )


def process(
    index: int,
    options: argparse.Namespace,
    folder: str,
    ports: list[int],
    turn: Any,
    micro: int,
    clip: str,
) -> None:
    """Replica index % REPLICAS of the plain loop or, for higher indices, of gpq's. `turn` is a
    barrier for all of them."""
    torch.set_num_threads(1)
    under_gpq, rank = divmod(index, REPLICAS)
    cores = sorted(os.sched_getaffinity(0))
    own = [cores[each % len(cores)] for each in range(REPLICAS)]
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(REPLICAS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(ports[under_gpq]),
        GLOO_SOCKET_IFNAME="lo",
    )
    example = chargpt()
    data, _ = example.load(64, 400_000)
    if under_gpq:
        os.environ.update(
            GPQ_JOB_ID="1",
            GPQ_ATTEMPT="1",
            GPQ_RUN_DIR=folder,
            GPQ_CHECKPOINT_DIR=folder,
            GPQ_CORES=";".join(str(core) for core in own),
        )
        import gpq_agent.train as gpq

        job = gpq.init()
        steps = adaptive(job, example, data, options, micro, clip)
    else:
        os.sched_setaffinity(0, {own[rank]})
        torch.distributed.init_process_group("gloo")
        steps = plain(example, data, options, rank, micro)
    times: dict[str, list[float]] = {"wall": [], "cpu": []}
    next(steps)
    unmeasured = options.warmup // options.turn
    for number in range(unmeasured + options.steps // options.turn):
        for whose in (number % 2, 1 - number % 2):
            turn.wait(TURN_SECONDS)
            if whose != under_gpq:
                continue
            # after the other's turn, because what it has left in the caches belongs to neither loop
            next(steps)
            for _ in range(options.turn):
                cpu, wall = time.process_time(), time.perf_counter()
                next(steps)
                times["wall"].append(time.perf_counter() - wall)
                times["cpu"].append(time.process_time() - cpu)
    result = {kind: values[unmeasured * options.turn :] for kind, values in times.items()}
    if under_gpq:
        lost = job._engine.shape.freedoms.lost
        assert not lost, f"the loop is right, and yet it has lost {lost}"
        result["noise_scale"] = job.noise_scale
    if rank == 0:
        Path(folder, f"result.{under_gpq}.json").write_text(json.dumps(result))
    turn.wait(TURN_SECONDS)
    sys.stdout.flush()
    os._exit(0)  # both loops are in the middle of an epoch


def launch(options: argparse.Namespace, micro: int, clip: str) -> dict[str, Any]:
    """Times of both loops, [plain, gpq] by kind, in new processes."""
    ports = []
    with ExitStack() as held:
        for _ in range(2):
            free = held.enter_context(socket.socket())
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    turn = torch.multiprocessing.get_context("spawn").Barrier(2 * REPLICAS)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            process, (options, folder, ports, turn, micro, clip), nprocs=2 * REPLICAS
        )
        results = [
            json.loads(Path(folder, f"result.{which}.json").read_text()) for which in range(2)
        ]
    both: dict[str, Any] = {kind: [result[kind] for result in results] for kind in ("wall", "cpu")}
    return {**both, "noise_scale": results[1]["noise_scale"]}


def measure(options: argparse.Namespace, micro: int, clip: str) -> dict[str, Any]:
    """All figures for steps of `micro` micro-batches."""
    runs = [launch(options, micro, clip) for _ in range(options.launches)]
    wall, cpu = (
        [[t for run in runs for t in run[kind][way]] for way in (0, 1)] for kind in ("wall", "cpu")
    )
    blocks = ratios(*wall, options.block)
    return {
        "micro_batches": micro,
        "clip": clip,
        "plain_seconds": statistics.median(wall[0]),
        "gpq_seconds": statistics.median(wall[1]),
        "overhead": statistics.median(ratios(*wall, 1)) - 1,
        "overhead_by_block": statistics.median(blocks) - 1,
        "overhead_by_block_quartiles": [blocks[len(blocks) * part // 4] - 1 for part in (1, 3)],
        "overhead_cpu_by_block": statistics.median(ratios(*cpu, options.block)) - 1,
        "overhead_of_all": (
            statistics.median(sum(run["wall"][1]) / sum(run["wall"][0]) for run in runs) - 1
        ),
        "overhead_by_launch": [statistics.median(ratios(*run["wall"], 1)) - 1 for run in runs],
        "noise_scale": runs[-1]["noise_scale"],
        "bar": BARS[micro > 1],
    }


def show(figures: dict[str, Any], options: argparse.Namespace) -> None:
    """Prints the figures."""
    micro = figures["micro_batches"]
    steps = f"steps of {micro} micro-batches, accumulated" if micro > 1 else "steps in one piece"
    print(f"{steps}, clipped with {CLIPS[figures['clip']]}")
    print(
        f"  step, median: plain {1e3 * figures['plain_seconds']:.2f} ms, gpq"
        f" {1e3 * figures['gpq_seconds']:.2f} ms"
    )
    quartiles = [f"{value:+.2%}" for value in figures["overhead_by_block_quartiles"]]
    middle = f"median {figures['overhead_by_block']:+.2%}, quartiles {' and '.join(quartiles)}"
    print(f"  blocks of {options.block}: {middle}")
    print(f"  CPU time, blocks of {options.block}: median {figures['overhead_cpu_by_block']:+.2%}")
    print("  by launch: " + ", ".join(f"{value:+.2%}" for value in figures["overhead_by_launch"]))
    print(f"  all steps, by launch: median {figures['overhead_of_all']:+.2%}")
    print(
        f"  overhead, paired steps: median {figures['overhead']:+.2%}, at most"
        f" {figures['bar']:.0%}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--launches", type=int, default=6, help="how often to start all processes again"
    )
    parser.add_argument("--steps", type=int, default=400, help="steps of each loop per launch")
    parser.add_argument("--warmup", type=int, default=100, help="steps that do not count")
    parser.add_argument("--turn", type=int, default=10, help="steps that a loop runs in a row")
    parser.add_argument("--block", type=int, default=50, help="steps per block")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--micro-batches",
        type=int,
        nargs="+",
        default=[1, 2],
        help="micro-batches per step, one measurement each",
    )
    parser.add_argument(
        "--clip", choices=CLIPS, nargs="+", default=list(CLIPS), help="one measurement each"
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for micro, clip in itertools.product(options.micro_batches, options.clip):
        rows.append(measure(options, micro, clip))
        if not options.json:
            show(rows[-1], options)
    if options.json:
        print(json.dumps(rows))
    return 0 if all(row["overhead"] <= row["bar"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
