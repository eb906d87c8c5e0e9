"""TCP ports for tests: below the ephemeral range, and for this process alone.

The kernel may give a port from `bind(0)` to anybody between its return and its use. It never gives out these. Each
process owns a hundred ports from 10,000 on, by the lock of a file, across all test runs on this machine.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FIRST, LAST = 10_000, 19_900  # below the ephemeral range, and below gpq's own ports from 20,000 on
SHARE = 100


@cache
def _ports() -> Iterator[int]:
    """The ports of this process, again and again. The lock of its share lasts as long as the process."""
    folder = Path(tempfile.gettempdir(), f"gpq-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for first in range(FIRST, LAST, SHARE):
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return itertools.cycle(range(first, first + SHARE))
    raise RuntimeError(f"no share of ports is left in {folder}: too many runs of tests at once")


def free_port(address: str = "127.0.0.1") -> int:
    """A port on which nothing listens. It returns only after 99 others."""
    for port in itertools.islice(_ports(), SHARE):
        with socket.socket() as probe:
            # An ended connection keeps its port for a minute. A listener may still take it.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
        return port
    raise RuntimeError("all ports of this process are in use")
