"""A replica that waits in a collective for one that is gone: nothing in Python ends its wait, so a thread ends the process.

The launcher tells the others by SIGTERM when one of them has failed. A handler in Python runs only between two of the main
thread's instructions, and NCCL may keep it within one for half an hour, with the GPUs held.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Callable, Dict, List

from .leaving import end_at_once

PATIENCE = 5.0  # seconds that a replica may go on after SIGTERM when another one is gone
LOOK = 0.5
TERMINATED = 128 + signal.SIGTERM


class Watch:
    """`is_heard`: the main thread has had the signal, or has nothing left to wait for."""

    def __init__(self, is_heard: Callable[[], bool]) -> None:
        self.is_heard = is_heard
        self._others: Dict[int, str] = {}
        self._pipe = -1

    def begin(self) -> None:
        """From now on, beside the processes that this one's launcher has started so far. In the main thread, once."""
        if self._pipe >= 0:
            return
        launcher = os.getppid()
        everybody = {pid: _began(pid, launcher) for pid in _pids()}
        self._others = {pid: began for pid, began in everybody.items() if began and pid != os.getpid()}
        if not self._others:
            return
        self._pipe, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=lambda: _forget(writing))
        threading.Thread(target=self._run, args=(before, launcher), name="gpq-stranded", daemon=True).start()

    def _run(self, before: int, launcher: int) -> None:
        """`before`: who else wants to know of signals."""
        while True:
            numbers = os.read(self._pipe, 512)
            if before >= 0:
                with contextlib.suppress(OSError):
                    os.write(before, numbers)
            if signal.SIGTERM in numbers:
                self._wait(launcher)

    def _wait(self, launcher: int) -> None:
        gone_since = float("inf")
        while not self.is_heard():
            now = time.monotonic()
            gone = [pid for pid, began in self._others.items() if _began(pid, launcher) != began]
            gone_since = min(gone_since, now) if gone else float("inf")
            if now - gone_since >= PATIENCE:
                sys.stderr.write("gpq: this replica waits for one that is gone, and is ended\n")
                end_at_once(TERMINATED)
            time.sleep(LOOK)


def _forget(writing: int) -> None:
    """A process that the script forks has inherited the handlers, not the job."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)
    with contextlib.suppress(OSError):
        os.close(writing)


def _pids() -> List[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def _began(pid: int, parent: int) -> str:
    """When a child of `parent` began, "" for one that is no such child, or has ended."""
    try:
        with open("/proc/{}/stat".format(pid), encoding="utf-8", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if int(fields[1]) == parent and fields[0] not in "ZX" else ""
