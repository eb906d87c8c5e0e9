"""The newest order from the agent: a thread watches control.json of this attempt.

Orders of another attempt, older ones and broken files change nothing. The last valid order stays in
effect.
"""

import os
import threading
from typing import Any, Optional, Tuple

from gpq_agent import wire

POLL_SECONDS = 0.1


class ControlReader:
    """Runs only on rank 0. Any thread may read `order`."""

    def __init__(self, run_dir: str, attempt: int) -> None:
        self._path = os.path.join(run_dir, wire.CONTROL)
        self._attempt = attempt
        self._order: Optional[wire.Control] = None
        self._stamp: Tuple[int, ...] = ()
        self._close_event = threading.Event()
        self.poll()
        self._thread = threading.Thread(target=self._watch, name="gpq-control", daemon=True)
        self._thread.start()

    @property
    def order(self) -> Optional[wire.Control]:
        return self._order

    def close(self) -> None:
        self._close_event.set()
        self._thread.join()

    def poll(self) -> None:
        """Read the file if it has changed."""
        try:
            status = os.stat(self._path)
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return
            content = wire.read_json(self._path)
            self._stamp = stamp
        except (OSError, ValueError):
            return
        control_order = _parse(content)
        if control_order is None or control_order.attempt != self._attempt:
            return
        if self._order is None or control_order.seq > self._order.seq:
            self._order = control_order

    def _watch(self) -> None:
        while not self._close_event.wait(POLL_SECONDS):
            self.poll()


def _parse(content: Any) -> Optional[wire.Control]:
    """A Control with fields of the right types, or None.

    Unknown fields belong to a later version.
    """
    if not isinstance(content, dict):
        return None
    try:
        return wire.Control(
            attempt=int(content["attempt"]),
            seq=int(content["seq"]),
            stop=bool(content.get("stop", False)),
            atomic_batch=int(content.get("atomic_batch", 0)),
            accum_steps=int(content.get("accum_steps", 0)),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
