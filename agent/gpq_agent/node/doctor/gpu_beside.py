"""How much looks at the GPUs slow down a program that works there. Standard library only, except
for the program."""

import os
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from gpq_agent.node.doctor.gpu_looks import HOLDER_LIMIT, GpuReading, last_words, look
from gpq_agent.node.host import procs
from gpq_agent.wire import GpuLine

PHASE = 5.0  # seconds with looks, and without
PHASES = 6
LOSS = 0.01  # share of its products that a program may lose through looks

WORKER = """
import sys, time
import torch
matrix = torch.randn(2048, 2048, device="cuda")
torch.mm(matrix, matrix)
torch.cuda.synchronize()
sys.stdout.write("working\\n")
sys.stdout.flush()
while True:
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < 0.5:
        for _ in range(10):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()
        count += 10
    end = time.monotonic()
    sys.stdout.write("{} {} {}\\n".format(begin, end, count / (end - begin)))
    sys.stdout.flush()
"""


def beside(
    command: List[str], env: Dict[str, str], look_by: Callable[[str], GpuReading] = look
) -> GpuLine:
    """How much less a process does while gpq looks once a second. `command` prints a line when it
    works. Then it prints for each of its turns when it started and ended, and how much it did per
    second."""
    parent = os.getpid()
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.PIPE, preexec_fn=lambda: procs.die_with_parent(parent),
        )  # fmt: skip
        phases: Dict[bool, List[Tuple[float, float]]] = {True: [], False: []}
        is_ready = _begins(process, output)
        for number in range(PHASES if is_ready else 0):
            with_looks = bool(number % 2)
            phases[with_looks].append(_phase(look_by if with_looks else None))
        words = last_words(process)
        if not is_ready:
            return GpuLine(
                "looks beside work", "FAIL", "the test program did not start: {}".format(words)
            )
        output.seek(0)
        turns = [
            tuple(map(float, line.split()))
            for line in output.read().decode("utf-8").splitlines()[1:]
            if line
        ]
    rates = {
        with_looks: sorted(
            rate for start, end, rate in turns if any(a <= start and end <= b for a, b in times)
        )
        for with_looks, times in phases.items()
    }
    return _judged(rates)._replace(seconds=round(time.monotonic() - begin, 1))


def _phase(look_by: Optional[Callable[[str], GpuReading]]) -> Tuple[float, float]:
    begin = time.monotonic()
    while time.monotonic() - begin < PHASE:
        start = time.monotonic()
        if look_by is not None:
            look_by("any")
        time.sleep(max(min(1.0, PHASE) - (time.monotonic() - start), 0.0))
    return begin, time.monotonic()


def _judged(rates: Dict[bool, List[float]]) -> GpuLine:
    if not all(rates.values()):
        return GpuLine("looks beside work", "FAIL", "the test program reported no progress")
    rate_with, rate_without = (
        rates[looking][len(rates[looking]) // 2] for looking in (True, False)
    )
    loss = 1.0 - rate_with / rate_without
    figure = "{:.1f} products per second, {:.1f} with a look every second ({:+.1%})".format(
        rate_without, rate_with, -loss
    )
    return GpuLine("looks beside work", "PASS" if loss <= LOSS else "FAIL", figure)


def _begins(process: "subprocess.Popen[bytes]", output: Any) -> bool:
    """Has it printed something within HOLDER_LIMIT?"""
    deadline = time.monotonic() + HOLDER_LIMIT
    while not os.fstat(output.fileno()).st_size:
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
