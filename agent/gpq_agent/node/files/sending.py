"""Sends the files of a job. Both ends talk in JSON lines, with the bytes that they announce after
them:

  sender    {"files": set of trees.py}
  receiver  {"missing": [place in the set, ...], "done": bytes, "total": bytes}
  sender    for each missing file: {"at": offset, "size": n} and n bytes for each piece that is no
            hole. The last line has {"sha256"} of these offsets and bytes, and perhaps no piece
  receiver  {"done", "total"} now and then, {"ok": true} once it is all in place

Instead of any line, {"error", "hint"} ends the stream. Code comes as one archive, without lines.
"""

import hashlib
import json
import os
import time
from typing import Any, BinaryIO, Dict

from gpq_agent import records
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool import checkpoint_folder, trees
from gpq_agent.node.spool.trees import Entry

PIECE = 1 << 18  # bytes
LONGEST = 48 << 20  # bytes of a line, more than a listing of trees.py: names, and 80 for an entry


# -- for both ends ---------------------------------------------------------------------------------


class Pace:
    """Keeps a process below a limit in bytes per second. 0: no limit."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._due = time.monotonic()

    def spend(self, size: int) -> None:
        """Wait until so many more bytes are due."""
        if self._limit > 0:
            self._due = max(self._due, time.monotonic() - 1.0) + size / self._limit
            time.sleep(max(0.0, self._due - time.monotonic()))


class Seal:
    """SHA-256 of the pieces of a file, with their offsets, so that holes cost nothing."""

    def __init__(self) -> None:
        self._state = hashlib.sha256()

    def add(self, offset: int, data: Any) -> None:
        if len(data):
            self._state.update(b"%d:" % offset)
            self._state.update(data)

    def hex(self) -> str:
        return self._state.hexdigest()


def write_line(sink: BinaryIO, message: Dict[str, Any]) -> None:
    """Raises BrokenPipeError if the other end is gone."""
    sink.write(json.dumps(message).encode("ascii") + b"\n")


def read_line(source: BinaryIO) -> Dict[str, Any]:
    """Raises EOFError if the other end is gone, and ValueError for what is not a JSON object."""
    line = source.readline(LONGEST)
    if not line.endswith(b"\n"):
        if len(line) == LONGEST:
            raise ValueError("a line is longer than {} MiB".format(LONGEST >> 20))
        raise EOFError
    return records.parse(line)


# -- the sender ------------------------------------------------------------------------------------


def send(folder: str, source: BinaryIO, sink: BinaryIO, pace: Pace) -> None:
    """Send what must follow the job whose folder it is. Raises EOFError, Immovable, SpoolError,
    OSError and ValueError."""
    entries, buffer = checkpoint_folder.listing(folder), memoryview(bytearray(PIECE))
    if not entries:
        raise SpoolError("the job has no files there any more", "try again", "busy")
    write_line(sink, {"files": trees.as_json(entries)})
    sink.flush()
    for number in read_line(source)["missing"]:
        if not isinstance(number, int) or not 0 <= number < len(entries):
            raise ValueError("{!r} is not a file of this transfer".format(number))
        _send_file(folder, entries[number], sink, pace, buffer)
    sink.flush()


def _send_file(folder: str, entry: Entry, sink: BinaryIO, pace: Pace, buffer: memoryview) -> None:
    path = os.path.join(folder, trees.local_name(entry.path))
    seal, offset = Seal(), 0
    line: Dict[str, Any] = {}
    descriptor = records.open_plain(path)
    try:
        while "sha256" not in line:
            offset = trees.data_at(descriptor, offset, entry.size)
            rest = buffer[: entry.size - offset]
            data = rest[: os.preadv(descriptor, [rest], offset)]
            line = {"at": offset, "size": len(data)} if data else {}
            seal.add(offset, data)
            offset += len(data)
            if not data or offset == entry.size:
                status = os.fstat(descriptor)
                if (status.st_size, status.st_mtime_ns) != (entry.size, entry.changed):
                    words = "{} changed while it was read".format(trees.display_name(entry.path))
                    raise SpoolError(words, "try again", "busy")
                line["sha256"] = seal.hex()
            write_line(sink, line)
            sink.write(data)
            pace.spend(len(data))
    finally:
        os.close(descriptor)
