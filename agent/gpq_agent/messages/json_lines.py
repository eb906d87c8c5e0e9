"""JSON objects as lines, in pipes and in files."""

import contextlib
import json
import os
import time
from typing import Any, Dict

from gpq_agent import records

decode = records.parse  # the object on one line
read_json = records.read_object
misfits = records.misfits


def encode(message: Dict[str, Any]) -> bytes:
    """Return one line of UTF-8 JSON, newline included."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("utf-8") + b"\n"


def write_json(path: str, content: Dict[str, Any]) -> None:
    """Replace `path` completely or not at all, and durably: temporary file, fsync, rename, fsync of
    the folder."""
    temporary = "{}.{}.{}.tmp".format(path, os.getpid(), time.monotonic_ns())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(encode(content))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
