"""What a server writes to stderr. It may write without end, so gpq keeps the last of it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import BinaryIO

MOST_WORDS = 4096  # bytes to look at for the last words
RING = 64 << 10  # bytes of the file that remain when it is cut, at twice this size
PAUSE = 0.02  # seconds after so many bytes at once: a flood slows its own server
LAST_PATIENCE = 0.5  # seconds for the last words to come, if something else holds the pipe


def make_file(file: Path) -> None:
    """Before a process is started whose complaints go there. Raises OSError if its folder is gone,
    so that nothing starts for a daemon that has lost its state directory."""
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))


class Complaints:
    """Reads `stream` to its end in a thread. The last part goes to `file`, after those of earlier
    connections. None: it is dropped."""

    def __init__(self, stream: BinaryIO, file: Path | None) -> None:
        self._stream = stream
        self._file = file
        self._last = b""
        self._thread = threading.Thread(target=self._read, name="complaints", daemon=True)
        self._thread.start()

    def last(self) -> str:
        """The last MOST_WORDS bytes. For when the process has ended."""
        self._thread.join(LAST_PATIENCE)
        return self._last.decode("utf-8", "replace")

    def _read(self) -> None:
        with self._stream:
            while chunk := os.read(self._stream.fileno(), RING):
                self._last = (self._last + chunk)[-MOST_WORDS:]
                if self._file is not None:
                    with contextlib.suppress(OSError):  # a full disk must not stop the server
                        _append(self._file, chunk)
                if len(chunk) == RING:
                    time.sleep(PAUSE)


def _append(file: Path, chunk: bytes) -> None:
    with open(file, "ab+", opener=_private) as stream:
        stream.write(chunk)
        if stream.tell() > 2 * RING:
            stream.seek(-RING, os.SEEK_END)
            rest = stream.read()
            stream.truncate(0)
            stream.write(rest)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
