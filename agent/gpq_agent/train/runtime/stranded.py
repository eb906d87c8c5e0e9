"""A thread that ends a replica which waits in a collective for one that is gone.

Nothing in Python ends that wait. If one replica fails, the launcher sends SIGTERM to the others. A
Python handler runs only between two instructions of the main thread, and NCCL may keep it in one
for half an hour while it holds the GPUs.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Callable, Dict, List

from gpq_agent.train.runtime.shutdown import end_at_once

PATIENCE = 5.0  # seconds that a replica may continue after SIGTERM if another one is gone
LOOK = 0.5
TERMINATED = 128 + signal.SIGTERM


class Watch:
    """`is_heard`: the main thread got the signal, or has nothing left to wait for."""

    def __init__(self, is_heard: Callable[[], bool]) -> None:
        self.is_heard = is_heard
        self._start_times: Dict[int, str] = {}
        self._pipe = -1

    def begin(self) -> None:
        """From now on watch the processes that this one's launcher has started so far.

        Call it once, in the main thread.
        """
        if self._pipe >= 0:
            return
        launcher = os.getppid()
        children = {pid: _start_time(pid, launcher) for pid in _pids()}
        self._start_times = {
            pid: start for pid, start in children.items() if start and pid != os.getpid()
        }
        if not self._start_times:
            return
        self._pipe, write_end = os.pipe()
        os.set_blocking(write_end, False)
        previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=lambda: _forget(write_end))
        threading.Thread(
            target=self._run, args=(previous, launcher), name="gpq-stranded", daemon=True
        ).start()

    def _run(self, previous: int, launcher: int) -> None:
        """`previous`: the descriptor of another listener for signals, or -1."""
        while True:
            numbers = os.read(self._pipe, 512)
            if previous >= 0:
                with contextlib.suppress(OSError):
                    os.write(previous, numbers)
            if signal.SIGTERM in numbers:
                self._wait(launcher)

    def _wait(self, launcher: int) -> None:
        gone_since = float("inf")
        while not self.is_heard():
            now = time.monotonic()
            gone_pids = [
                pid
                for pid, start in self._start_times.items()
                if _start_time(pid, launcher) != start
            ]
            gone_since = min(gone_since, now) if gone_pids else float("inf")
            if now - gone_since >= PATIENCE:
                sys.stderr.write(
                    "gpq: this replica waits for another one that is gone, so gpq ends it\n"
                )
                end_at_once(TERMINATED)
            time.sleep(LOOK)


def _forget(write_end: int) -> None:
    """A process that the script forks inherits the handlers, but not the job."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)
    with contextlib.suppress(OSError):
        os.close(write_end)


def _pids() -> List[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def _start_time(pid: int, parent: int) -> str:
    """The start of a child of `parent`, or "" if it is not such a child or has ended."""
    try:
        with open("/proc/{}/stat".format(pid), encoding="utf-8", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if int(fields[1]) == parent and fields[0] not in "ZX" else ""
