"""What a job reads on its stdin: a file, or what this command has on its own stdin.

A program around `gpq submit` may still need its stdin, such as the list of a loop. So gpq reads a
pipe only if the words ask for stdin, and never moves the position in a file."""

from __future__ import annotations

import fcntl
import os
import re
import select
import stat
import sys
import termios
from codecs import BOM_UTF8

from gpq.errors import UsageError

MOST_BYTES = 64 << 20
PATIENCE = 5.0  # seconds without data after which a pipe counts as left open
OWN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/\d+")
INTERPRETER = re.compile(r"(?:ba|da|k|z)?sh|python[\d.]*|perl|ruby|Rscript|node|julia")
NOT_PASSED_ON = (
    "the job does not get the data on stdin: --stdin - passes them on, and `< /dev/null` turns"
    " this note off"
)

_streams: dict[str, bytes] = {}  # what pipes and stdin gave, which they give only once


def is_stream(word: str) -> bool:
    """Does it name a descriptor or a pipe, which a job cannot open later?"""
    is_pipe = os.path.exists(word) and stat.S_ISFIFO(os.stat(word).st_mode)
    return word in OWN or bool(DESCRIPTOR.fullmatch(word)) or is_pipe


def texts() -> list[str]:
    """What came through pipes and on stdin, as far as it is text."""
    heads = (data[: 1 << 20] for data in _streams.values())
    return [head.decode("utf-8", "replace") for head in heads if b"\0" not in head]


def has_script() -> bool:
    """Is a script on stdin, where sbatch reads it if no other is named?"""
    return bool(_kind()) and contents("-").removeprefix(BOM_UTF8).startswith(b"#!")


def _kind() -> str:
    """What this process has on stdin: "file", "pipe", or "" for nothing that it could pass on."""
    mode = os.fstat(0).st_mode if sys.stdin is not None else 0  # None: closed
    if stat.S_ISREG(mode):
        return "file"
    return "pipe" if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else ""


def implied_stdin(words: list[str], *, black_box: bool) -> tuple[str, list[str]]:
    """(the value of --stdin, notes) that the words and the stdin of this process imply.
    `black_box`: they are a command."""
    kind, unread = _kind(), 0
    asks = any(word in OWN[1:] for word in words) or (black_box and _is_bare(words))
    if kind == "file":
        position = os.lseek(0, 0, os.SEEK_CUR)
        unread = max(os.fstat(0).st_size - position, 0)
        asks = unread > 0 and (asks or position == 0)
    elif kind == "pipe" and not asks:
        unread = any(fcntl.ioctl(0, termios.FIONREAD, bytes(4)))
    if kind and asks:
        return "-", []
    return "", [NOT_PASSED_ON] if unread else []


def _is_bare(words: list[str]) -> bool:
    """Are they an interpreter without a script?"""
    if not INTERPRETER.fullmatch(os.path.basename(words[0])):
        return False
    for word in words[1:]:
        if word in ("-", "-s"):
            return True
        if not word.startswith("-") or word.startswith("--"):
            return False
    return True


def contents(name: str, folder: str = "") -> bytes:
    """All of a stream, which is read once, or of a file. Raises UsageError."""
    if name in _streams:
        return _streams[name]
    if name in OWN and not _kind():
        raise UsageError("there is no file or pipe on stdin", "use < FILE, or --stdin FILE")
    label = "stdin" if name in OWN else name
    path = os.path.join(folder, os.path.expanduser(name))
    try:
        descriptor = os.dup(0) if name in OWN else os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            data = _read(descriptor, label)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(f"cannot read {label}: {error.strerror}", "correct the path") from None
    if len(data) > MOST_BYTES:
        raise UsageError(
            f"{label} has more than {MOST_BYTES >> 20} MiB, the most that gpq keeps with a job",
            "let the job read it from a file: gpq submit -- sh -c 'COMMAND < FILE'",
        )
    if is_stream(name):
        _streams[name] = data
    return data


def _read(descriptor: int, label: str) -> bytes:
    """Up to a byte more than gpq keeps, from the current position."""
    data, is_file = bytearray(), stat.S_ISREG(os.fstat(descriptor).st_mode)
    start = os.lseek(descriptor, 0, os.SEEK_CUR) if is_file else 0
    while len(data) <= MOST_BYTES:
        if not select.select([descriptor], [], [], PATIENCE)[0]:
            raise UsageError(
                f"{label} stayed open for {PATIENCE:.0f} s without data",
                "close it at its end, or submit with `< /dev/null`",
            )
        most = MOST_BYTES + 1 - len(data)
        at = start + len(data)
        block = os.pread(descriptor, most, at) if is_file else os.read(descriptor, most)
        if not block:
            break
        data += block
    return bytes(data)
