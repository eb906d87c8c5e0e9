"""Digests of checkpoint files: taken while a file is written, and compared before it is loaded."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Dict

from gpq_agent import records

BOOT_ID = "/proc/sys/kernel/random/boot_id"
LARGE = 1 << 20  # bytes. Such a block is digested while it is written


def digest(path: str) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    state = hashlib.sha256()
    with os.fdopen(records.open_plain(path), "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            state.update(block)
    return state.hexdigest()


class DigestedFile:
    """A binary stream to write to, and the SHA-256 of what was written."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._state = hashlib.sha256()
        self._digester = ThreadPoolExecutor(1)

    def __enter__(self) -> "DigestedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._digester.shutdown()

    def write(self, data: Any) -> int:
        if memoryview(data).nbytes < LARGE:
            self._state.update(data)
            return self._stream.write(data)
        update = self._digester.submit(self._state.update, data)
        try:
            return self._stream.write(data)
        finally:
            update.result()  # the caller may reuse the memory of `data` after this

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> str:
        """Make the content durable. Returns its digest in hexadecimal."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return self._state.hexdigest()


def stamp(path: str) -> Dict[str, Any]:
    """What shows that nobody has written to a file since. It holds until the next boot, because a
    power cut may lose what was written. Empty on systems that do not identify their boots."""
    try:
        with open(BOOT_ID) as stream:
            boot_id = stream.read().strip()
    except OSError:
        return {}
    facts = os.stat(path)
    return {
        "boot": boot_id,
        "device": facts.st_dev,
        "inode": facts.st_ino,
        "changed": facts.st_ctime_ns,
    }
