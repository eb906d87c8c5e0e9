"""Reads answers with more rows than anybody should hold at once, piece by piece."""

from __future__ import annotations

import codecs
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from gpq.client import quick
from gpq.errors import GpqError

SECONDS = 30.0  # between two pieces
RESULT = b'"ok":true,"result":'
ROWS = '{"jobs":['  # the beginning of the result
BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")


def write_json(line: bytes, seconds: float = SECONDS) -> None:
    """Print the result of a request on stdout, in ASCII, so that names of jobs cannot control the
    terminal. Waits at most `seconds` for each piece. Raises as `quick.ask` does."""
    for text in _result(line, seconds):
        sys.stdout.write(BEYOND_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text))
    sys.stdout.write("\n")
    sys.stdout.flush()


def rows(line: bytes, note: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """The rows of the result. After the last one, `note` gets the notes of the result. Raises as
    `quick.ask` does."""
    pieces = _result(line, SECONDS)
    return _rows(chain([next(pieces)], pieces), note)


def _rows(pieces: Iterable[str], note: Callable[..., None]) -> Iterator[dict[str, Any]]:
    decode, text, place = json.JSONDecoder().raw_decode, "", 0
    for piece in pieces:
        text, place = text[place:] + piece, 0
        if text.startswith(ROWS):
            place = len(ROWS)
        while text[place : place + 1] not in ("]", ""):
            try:
                row, place = decode(text, place + (text[place] == ","))
            except ValueError:
                break  # the rest of the row is in the next piece
            yield row
    note(*json.loads(ROWS + text[place:])["notes"])


def _result(line: bytes, seconds: float) -> Iterator[str]:
    """The text of the result of a request, without its envelope."""
    pieces, head = _pieces(line, seconds), b""
    while RESULT not in head and (piece := next(pieces, b"")):
        head += piece
    begin = head.find(RESULT) + len(RESULT)
    if not head.startswith(b'{"v":%d,' % quick.VERSION) or begin < len(RESULT):
        quick.result(head + b"".join(pieces))  # raises what is wrong
    decoder, held = codecs.getincrementaldecoder("utf-8")(), ""
    for piece in chain([head[begin:]], pieces):
        text = held + decoder.decode(piece)
        held = text[-2:]  # perhaps the end of the envelope
        yield text[:-2]


def _pieces(line: bytes, seconds: float) -> Iterator[bytes]:
    """All of them are in a file before the first is read, because the daemon hangs up if it has to
    wait for somebody who scrolls."""
    try:
        with tempfile.TemporaryFile() as spool:
            try:
                spool.writelines(quick.receive(line, seconds))
            except quick.NobodyListens:
                from gpq.client.autostart import ensure_daemon  # takes a moment to import

                ensure_daemon()
                spool.writelines(quick.receive(line, seconds))
            spool.seek(0)
            while piece := spool.read(1 << 20):
                yield piece
    except OSError as error:
        raise GpqError(
            f"cannot keep the answer in a temporary file: {error.strerror}",
            "set TMPDIR to a folder with free space",
        ) from None
