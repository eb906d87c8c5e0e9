"""Every kind of damage to a file that a crash, a full disk, another program or an attacker can do."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from gpq_agent import records

Harm = Callable[[Path], object]


def written(content: bytes) -> Harm:
    return lambda path: path.write_bytes(content)


def made_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)  # bind() accepts no long names


def made_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


HARM: dict[str, Harm] = {
    "empty": written(b""),
    "blank": written(b"  \n"),
    "half": written(b'{"pid": 12, "start_ti'),
    "zeros": written(b"\0" * 4096),
    "junk": written(bytes(range(256)) * 8),
    "no UTF-8": written(b'{"pid": "\xff\xfe"}'),
    "UTF-16": written('{"pid": 1}'.encode("utf-16")),
    "a list": written(b"[]"),
    "a number": written(b"12"),
    "null": written(b"null"),
    "text": written(b'"exit"'),
    "nothing in it": written(b"{}"),
    "deep lists": written(b"[" * 200_000),
    "deep objects": written(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "deep inside": written(b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}"),
    "NaN": written(b'{"pid": NaN, "code": NaN}'),
    "infinite": written(b'{"pid": 1e999, "code": -Infinity}'),
    "many digits": written(b'{"pid": ' + b"9" * 1_000_000 + b"}"),
    "wrong types": written(b'{"pid": "12", "start_time": [], "boot_id": 3, "code": {}, "job": true, "seq": "x"}'),
    "nulls": written(b'{"pid": null, "start_time": null, "boot_id": null, "job": null, "seq": null, "note": null}'),
    "two": written(b'{"pid": 1}\n{"pid": 2}\n'),
    "large": written(b'{"a": "' + b"x" * (records.MOST_BYTES + 1) + b'"}'),
    "sparse": made_sparse,
    "a folder": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
    "a socket": made_socket,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a FIFO": lambda path: path.symlink_to("fifo"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
}
