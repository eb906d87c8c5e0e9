"""Numbers that must never go back, even if somebody replaces the database with a copy. They are in
a small file next to the database.

marks.json      {"store": id of the database, "epoch": of its latest daemon, "ids", "attempts": the
                largest numbers that were used}

The file is written before a larger number is acknowledged, as a whole or not at all, and durably.
On a full disk it is overwritten in place.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass

from gpq_agent import wire

IDS = 100  # ids set aside at a time: one write of the file for a hundred submissions
ATTEMPTS = 16
BYTES = 256  # bytes of the file, so that it fits into its old blocks
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Marks:
    store: str
    epoch: int
    ids: int
    attempts: int

    def covers(self, *, ids: int, attempts: int) -> bool:
        return ids <= self.ids and attempts <= self.attempts


def next_ceiling(ceiling: int, number: int, block: int) -> int:
    """The least ceiling to write, never lower than before."""
    return ceiling if number <= ceiling else number - 1 + block


def read(path: str) -> tuple[Marks | None, str]:
    """(the marks, why there are none)."""
    try:
        with open(path, encoding="utf-8") as stream:
            fields = json.loads(stream.read(4 * BYTES))
        marks = Marks(*(fields[name] for name in ("store", "epoch", "ids", "attempts")))
    except FileNotFoundError:
        return None, "is missing"
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError):
        return None, "is damaged"
    numbers = (marks.epoch, marks.ids, marks.attempts)
    if type(marks.store) is not str or any(
        type(number) is not int or not 0 <= number < 1 << 53 for number in numbers
    ):
        return None, "is damaged"
    return marks, ""


def write(path: str, marks: Marks) -> None:
    """Raises OSError. The old content then stays or is damaged."""
    if os.path.islink(path):  # not ours
        os.unlink(path)
    fields = {**asdict(marks), "pad": ""}
    fields["pad"] = " " * max(0, BYTES - len(wire.encode(fields)))
    try:
        wire.write_json(path, fields)
    except OSError as error:
        if error.errno not in FULL or not _write_over(path, wire.encode(fields)):
            raise


def _write_over(path: str, line: bytes) -> bool:
    """Into the existing blocks of the file, less than a sector. False if it has none."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_size != len(line):
            return False
        os.pwrite(descriptor, line, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True
