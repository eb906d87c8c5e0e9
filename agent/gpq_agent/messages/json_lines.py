"""JSON objects as lines, in pipes and in files."""

import contextlib
import json
import os
import time
from typing import Any, Dict, List, Optional, Type

from gpq_agent import records


def encode(message: Dict[str, Any]) -> bytes:
    """Return one line of UTF-8 JSON, newline included."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("utf-8") + b"\n"


def decode(line: bytes) -> Dict[str, Any]:
    """Return the object on one line. Raises ValueError for anything that is not a JSON object."""
    return records.parse(line)


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


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """Return the object in `path`, None if there is no such file. Raises records.Damaged, a
    ValueError, unless the file is regular and holds one JSON object of a sensible size. Raises
    OSError if this process lacks a resource."""
    return records.read_object(path)


def misfits(kind: Type[Any], content: Dict[str, Any]) -> List[str]:
    """Return the names of the fields of `content` that are not valid for the message `kind`. The
    bounds of numbers are in `records`."""
    return records.misfits(kind, content)
