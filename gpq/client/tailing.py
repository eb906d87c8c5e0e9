"""Finds where the last lines of a job's log begin, over all its attempts. Reads no more of the log
than it has to."""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Callable

from gpq.rpc.job_answers import LogChunk

# Reads the log at (attempt, offset), or so many bytes before its end
Read = Callable[[int, int, int], LogChunk]
# bytes before an attempt's end to look at first, and the factor for each further look
FIRST_WINDOW, GROWTH = 64 << 10, 8


def begin(read: Read, only: int, lines: int) -> tuple[int, int]:
    """(attempt, offset) where the last `lines` lines begin: in the attempt `only`, or with 0 in all
    attempts joined.

    An unfinished line counts. If the log of an attempt is unavailable, the lines begin there,
    because reading it says why.
    """
    attempts = [only] if only else read(0, 0, 1).attempts
    start = (only, 0)
    for attempt in reversed(attempts):
        offset, shortfall = _within(read, attempt, lines)
        start = attempt, offset
        if shortfall <= 0:
            break
        lines = shortfall
    return start


def _within(read: Read, attempt: int, lines: int) -> tuple[int, int]:
    """(offset where they begin in this attempt, how many lines are missing). If its log is
    unavailable, none is missing."""
    window = FIRST_WINDOW
    while True:
        piece = read(attempt, 0, window)
        if piece.silent:
            return 0, 0
        start = piece.offset - len(base64.b64decode(piece.data)) - piece.skipped
        starts, count, end = _line_starts(read, piece, lines)
        if count > lines or (start <= 0 and count == lines):
            return (starts[0] if lines else end), 0
        if start <= 0:
            return 0, lines - count
        window *= GROWTH


def _line_starts(read: Read, piece: LogChunk, most: int) -> tuple[deque[int], int, int]:
    """(where the last `most` lines begin, how many lines there are, where the log ends), from
    `piece` to the end of its attempt."""
    starts: deque[int] = deque(maxlen=most)
    count, opened = 0, False
    while piece.data:
        data = base64.b64decode(piece.data)
        place = piece.offset - len(data)
        begins = [] if opened else [0]
        begins += [match.end() for match in re.finditer(b"\n", data) if match.end() < len(data)]
        starts.extend(place + index for index in begins)
        count, opened = count + len(begins), not data.endswith(b"\n")
        piece = read(piece.attempt, piece.offset, 0)
    return starts, count, piece.offset
