"""Rank 0 appends one JSON line per fact to report.jsonl, whether it is read or not.

A line that cannot be written (a full disk) is kept and tried again. Training never fails because of
a report.
"""

import math
import os
import time
from typing import Any, Dict, List, Mapping

from gpq_agent import wire

EARLY_SECONDS = 30.0  # this long after the start, report often: the first fit is worth most
EARLY_INTERVAL = 2.0
LATER_INTERVAL = 10.0
# Seconds between windows of the times of each replica, and before the first of them.
RANK_SECONDS, EARLY_RANK_SECONDS = 30.0, 10.0
KEPT_LINES = 10000
ENV_REPORT_SECONDS = "GPQ_REPORT_SECONDS"


class Reporter:
    """Appends to `path`. Ignores everything for an empty path (no gpq, or not rank 0)."""

    def __init__(self, path: str, environ: Mapping[str, str]) -> None:
        self._path = path
        self._lines: List[bytes] = []
        self._start = time.monotonic()
        self._last_report = self._start
        self._window, self._windows = self._start, 0
        self._fixed_interval = float(environ.get(ENV_REPORT_SECONDS) or 0.0)

    @property
    def active(self) -> bool:
        return bool(self._path)

    def due(self) -> bool:
        """Are statistics due?"""
        now = time.monotonic()
        is_early = now - self._start < EARLY_SECONDS
        return now - self._last_report >= (
            self._fixed_interval or (EARLY_INTERVAL if is_early else LATER_INTERVAL)
        )

    def window_due(self) -> bool:
        """Is a comparison of the replicas due?"""
        seconds = 2 * self._fixed_interval or (
            RANK_SECONDS if self._windows else EARLY_RANK_SECONDS
        )
        return time.monotonic() - self._window >= seconds

    def window_closed(self) -> None:
        self._window = time.monotonic()
        self._windows += 1

    def reported(self) -> None:
        self._last_report = time.monotonic()

    def send(self, kind: str, content: Mapping[str, Any]) -> None:
        """Append ``{"kind": kind, "time": wall clock, **content}``.

        Numbers that JSON does not know become null.
        """
        if not self._path:
            return
        message: Dict[str, Any] = {"v": wire.VERSION, "kind": kind, "time": round(time.time(), 3)}
        message.update({name: _plain(value) for name, value in content.items()})
        self._lines.append(wire.encode(message))
        self._write()

    def notice(self, message: str) -> None:
        """A line for the user."""
        self.send("notice", {"message": message})

    def _write(self) -> None:
        data = b"".join(self._lines)
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                count = os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError:
            del self._lines[:-KEPT_LINES]
            return
        # After a short write the rest of a line waits for the next try, so that the file consists
        # of lines.
        self._lines = [data[count:]] if count < len(data) else []


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
