"""Counts the instructions of Python's interpreter in a step under the training library, compared
with the same step in plain PyTorch.

The loops are those of overhead.py. Unlike times, the counts do not depend on the machine or its
load, only on the versions of Python and torch. They do not include C code. The figure is the median
over some steps of one replica of two.

    python benchmarks/instructions.py [--functions 20]
"""

import argparse
import collections
import itertools
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import overhead
import torch
import torch.multiprocessing

WAYS = ("plain", "gpq")
Counts = dict[str, int]  # by function


class Counter:
    """Counts what the interpreter executes in this thread while it is on."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()

    def __enter__(self) -> "Counter":
        self.counts.clear()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        code = frame.f_code
        where = f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_name}"

        def within(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "opcode":
                self.counts[where] += 1
            return within

        return within


def process(
    index: int, options: argparse.Namespace, folder: str, ports: list[int], micro: int, clip: str
) -> None:
    """Replica index % 2 of the plain loop or, for higher indices, of gpq's."""
    way, rank = divmod(index, overhead.REPLICAS)
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(overhead.REPLICAS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(ports[way]),
        GLOO_SOCKET_IFNAME="lo",
    )
    example = overhead.chargpt()
    data, _ = example.load(64, 400_000)
    if WAYS[way] == "gpq":
        os.environ.update(
            GPQ_JOB_ID="1", GPQ_ATTEMPT="1", GPQ_RUN_DIR=folder, GPQ_CHECKPOINT_DIR=folder
        )
        os.environ.update(
            GPQ_CORES=";".join(str(core) for core in sorted(os.sched_getaffinity(0))[:1] * 2)
        )
        import gpq_agent.train as gpq

        steps = overhead.adaptive(gpq.init(), example, data, options, micro, clip)
    else:
        torch.distributed.init_process_group("gloo")
        steps = overhead.plain(example, data, options, rank, micro)
    for _ in range(options.warmup):
        next(steps)
    found: list[Counts] = []
    counter = Counter()
    for _ in range(options.steps):
        if rank > 0:
            next(steps)
            continue
        with counter:
            next(steps)
        found.append(dict(counter.counts))
    if rank == 0:
        Path(folder, f"{WAYS[way]}.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # both loops are in the middle of an epoch


def count(options: argparse.Namespace, micro: int, clip: str) -> list[Counts]:
    """The counts of the median step of both loops, plain first."""
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as first, socket.socket() as second:
            for free in (first, second):
                free.bind(("127.0.0.1", 0))
            ports = [free.getsockname()[1] for free in (first, second)]
        torch.multiprocessing.spawn(
            process, (options, folder, ports, micro, clip), nprocs=2 * overhead.REPLICAS
        )
        every = [json.loads(Path(folder, f"{way}.json").read_text()) for way in WAYS]
    return [
        sorted(steps, key=lambda counts: sum(counts.values()))[len(steps) // 2] for steps in every
    ]


def show(plain: Counts, other: Counts, functions: int) -> None:
    """Prints the sums, and the functions that differ most."""
    sums = [sum(counts.values()) for counts in (plain, other)]
    print(
        f"  plain {sums[0]:,}, gpq {sums[1]:,}: {sums[1] - sums[0]:+,}"
        f" ({sums[1] / sums[0] - 1:+.1%})",
        flush=True,
    )
    differences = {name: other.get(name, 0) - plain.get(name, 0) for name in {*plain, *other}}
    for name in sorted(differences, key=lambda each: -differences[each])[:functions]:
        print(f"    {differences[name]:+6,}  {name}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=150, help="steps that do not count")
    parser.add_argument(
        "--functions", type=int, default=0, help="show this many of the functions that differ most"
    )
    parser.set_defaults(batch_size=32, layers=2, width=64)
    options = parser.parse_args()
    for micro, clip in itertools.product((1, 2), overhead.CLIPS):
        print(f"{micro} micro-batches a step, clipped with {overhead.CLIPS[clip]}")
        show(*count(options, micro, clip), options.functions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
