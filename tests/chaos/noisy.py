"""A job that floods its log, and a reader that follows it: how large the log gets on the disk and the daemon in memory."""

from __future__ import annotations

import base64
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpq.rpc.job_answers import LogChunk
from gpq.rpc.requests import Logs
from tests.e2e.harness import ENDED, Daemon
from tests.support.waiting import wait_until

# Progress bars without line ends, binary data with every byte value, and lines: a MiB of each in turn, at a steady
# rate.
WRITER = """
import os, sys, time
mib, rate = int(sys.argv[1]), float(sys.argv[2])
kinds = (b"\\r 42% |####      |", bytes(range(256)).replace(b"\\n", b""), b"a line of a log\\n")
pieces = [(kind * (1 + (1 << 20) // len(kind)))[: 1 << 20] for kind in kinds]
began = time.monotonic()
for number in range(mib):
    piece = memoryview(pieces[number % 3])
    while piece:
        piece = piece[os.write(1, piece) :]
    time.sleep(max(0.0, began + (number + 1) / rate - time.monotonic()))
sys.exit(4)
"""


@dataclass
class Noise:
    seconds: float = 0.0
    disk: float = 0.0  # MiB of the log on the disk, at most
    memory: float = 0.0  # MB of the daemon, resident, at most
    grown: float = 0.0  # MB more than before
    followed: float = 0.0  # MiB that the reader got
    skipped: float = 0.0  # MiB that gpq reported as left out
    ended: tuple[str, int | None] = ("", None)


def flood(mib: int, *, rate: float, limit: float) -> Noise:
    """`mib` MiB at `rate` MiB/s into a log of at most `limit` MiB."""
    found = Noise()
    with Daemon(slots=1, log_limit=limit) as daemon:
        assert daemon.process is not None
        process = psutil.Process(daemon.process.pid)
        (daemon.work / "writer.py").write_text(WRITER)
        before = process.memory_info().rss
        job = daemon.submit(sys.executable, "writer.py", str(mib), str(rate))
        reader = threading.Thread(target=_follow, args=(daemon, job, found), daemon=True)
        reader.start()

        def look() -> bool:
            logs = [path.stat() for path in Path(daemon.home / "nodes").glob(f"*/attempts/{job}.1/log")]
            found.disk = max([found.disk, *(one.st_blocks / 2048 for one in logs)])
            found.memory = max(found.memory, process.memory_info().rss / 1e6)
            return daemon.state(job) in ENDED

        wait_until(look, "it ends", patience=120.0 + 3 * mib / rate)
        reader.join(120.0)
        row = daemon.detail(job).job
        found.ended = (row.state, row.exit_status)
        found.seconds = row.run_seconds
        found.grown = found.memory - before / 1e6
    return found


def _follow(daemon: Daemon, job: int, found: Noise) -> None:
    offset = 0
    while True:
        chunk = daemon.call(Logs(str(job), offset=offset, wait=10.0), LogChunk)
        offset = chunk.offset
        found.followed += len(base64.b64decode(chunk.data)) / (1 << 20)
        found.skipped += chunk.skipped / (1 << 20)
        if chunk.ended:
            return
