"""Every kind of damage to a file that a crash, a full disk, another program or an attacker can do, and to the folder
that a job may write to."""

from __future__ import annotations

import os
import shutil
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
    "without permissions": lambda path: path.touch(0),
    "a socket": made_socket,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a FIFO": lambda path: path.symlink_to("fifo"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
}


def lines(text: bytes, count: int) -> Harm:
    return written((text + b"\n") * count)


def made_sparse_behind_lines(path: Path) -> None:
    path.write_bytes(b'{"kind":"ready"}\n')
    os.truncate(path, 1 << 40)
    with path.open("ab") as stream:
        stream.write(b'\n{"kind":"notice","message":"end"}\n')


TIMING = b'{"kind":"timing","nodes":1,"replicas":1,"atomic_batch":8,"accum_steps":0,"accum_count":0,"accum_sum":0.0,'
HEAVY: dict[str, Harm] = {  # what is too much to read, or to read again and again
    "a million timings": lines(TIMING + b'"step_count":5,"step_sum":1.0}', 1_000_000),
    "millions of short lines": lines(b"x", 3_000_000),
    "millions of valid lines": lines(b'{"kind":"ready"}', 2_000_000),
    "a hole between lines": made_sparse_behind_lines,
    "a line without end": written(b"x" * (20 << 20)),
    "a long line": written(b"x" * (20 << 20) + b"\n" + TIMING + b"\n"),
}


def replaced(make: Harm) -> Harm:
    def harm(folder: Path) -> None:
        folder.rename(folder.with_name(f"moved-{folder.name}"))
        make(folder)

    return harm


def removed(folder: Path) -> None:
    aside = folder.rename(folder.with_name(f"moved-{folder.name}"))
    shutil.rmtree(aside, ignore_errors=True)  # the shim may write into it meanwhile


def inside(name: str, make: Harm) -> Harm:
    """In place of a file of the folder."""

    def harm(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return harm


def made_full_folder(path: Path) -> None:
    for number in range(1, records.MOST_KEPT + 1):
        path.with_name(f"{path.name}.damaged{number if number > 1 else ''}").mkdir()
    (path / "something").mkdir(parents=True)


def made_crowd(folder: Path) -> None:
    for number in range(20_000):
        (folder / f"rank.{number}").touch()


def of_the_far_future(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        os.utime(path, ns=(1 << 62, 1 << 62))


FOLDERS: dict[str, Harm] = {  # what a job makes of its folder
    "removed": removed,
    "renamed": replaced(lambda folder: None),
    "another folder": replaced(Path.mkdir),
    "a file": replaced(Path.touch),
    "a FIFO": replaced(os.mkfifo),
    "a socket": replaced(made_socket),
    "a link to nothing": replaced(HARM["a link to nothing"]),
    "a link to itself": replaced(HARM["a link to itself"]),
    "a link to a device": replaced(HARM["a link to a device"]),
    "a link to a folder": replaced(lambda folder: folder.symlink_to(f"moved-{folder.name}")),
    "without permissions": lambda folder: folder.chmod(0),
    "read-only": lambda folder: folder.chmod(0o500),
    "a crowd of ranks": made_crowd,
    "of the far future": of_the_far_future,
    "forgotten": inside("forgotten", Path.touch),
    "a folder for stop.json": inside("stop.json", made_full_folder),
    "a folder for the lock": inside("lock", Path.mkdir),
    "a folder for exit.json": inside("exit.json", made_full_folder),
}
UNSAID = ("a crowd of ranks", "of the far future", "a folder for the lock")  # gpq needs to say nothing
