"""Reads the two append-only files of an attempt by offset: the log as bytes, the report as complete
lines."""

import errno
import os
import sys
from typing import Tuple

from gpq_agent import records

LONGEST_LINE = 1 << 20  # bytes. A longer report line is dropped
MOST_UNREAD = 16 << 20  # bytes of a report that wait to be read. What came before them is left out


def tail(path: str, offset: int, limit: int) -> Tuple[bytes, int, int]:
    """(at most `limit` bytes from offset, offset after them, size of the file). A negative offset
    counts from the end. A file that does not exist yet or is not regular counts as empty."""
    try:
        with os.fdopen(records.open_plain(path), "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            offset = max(0, size + offset) if offset < 0 else offset
            stream.seek(offset)
            data = stream.read(max(0, limit))
    except (FileNotFoundError, records.Damaged):
        return b"", max(0, offset), 0
    return data, offset + len(data), max(size, offset + len(data))


def kept_tail(path: str, offset: int, limit: int) -> Tuple[bytes, int, int, int]:
    """Like `tail`, but skips the holes of a log that is over its limit (log_cap.py): (bytes, number
    of bytes left out before them, offset after them, size of the file). A hole may appear during
    the read, so look for one afterwards too."""
    while True:
        start = _edge(path, offset, os.SEEK_DATA)
        data, _, size = tail(path, start, limit)
        hole = _edge(path, start, os.SEEK_HOLE)
        if hole > start or not data:
            data = data[: max(0, hole - start)]
            return data, start - offset, start + len(data), size


def _edge(path: str, offset: int, direction: int) -> int:
    """The next byte from `offset` that is outside a hole, or inside one. The end of the file counts
    as a hole."""
    try:
        with os.fdopen(records.open_plain(path), "rb") as stream:
            try:
                return os.lseek(stream.fileno(), offset, direction)
            except OSError as error:
                if error.errno != errno.ENXIO:  # the file system does not support holes
                    if direction == os.SEEK_DATA:
                        return offset
                    return max(offset, os.fstat(stream.fileno()).st_size)
                # beyond the end, or only a hole
                return max(offset, os.fstat(stream.fileno()).st_size)
    except (FileNotFoundError, records.Damaged):
        return offset


def lines_after(path: str, offset: int, budget: int, end: int = sys.maxsize) -> Tuple[str, int]:
    """(complete lines from `offset`, offset after them): about `budget` bytes, but at least one
    line if there is one, and nothing after byte `end`.

    Without text, but with a new offset: what is between cannot be a report, or is too much. Takes
    no longer for a larger file."""
    data, _, size = tail(path, offset, min(budget, end - offset))
    if min(size, end) - offset > MOST_UNREAD:
        return "", min(size, end) - MOST_UNREAD // 2
    length = data.rfind(b"\n") + 1
    if length == 0 and len(data) == budget:  # a line longer than the budget
        data, _, _ = tail(path, offset, min(LONGEST_LINE, end - offset))
        length = data.find(b"\n") + 1
        if length == 0 and len(data) == LONGEST_LINE:
            return "", offset + LONGEST_LINE
    return data[:length].decode("utf-8", "replace"), offset + length
