"""A file system that this process serves (FUSE, spoken directly to the kernel).

Its folder can answer like a file server that lost it, or not answer at all. Needs root and /dev/fuse.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOKUP, FORGET, GETATTR, STATFS, INIT, OPENDIR, READDIR, RELEASEDIR = 1, 2, 3, 17, 26, 27, 28, 29
INTERRUPT, BATCH_FORGET = 36, 42
NEVER_ANSWERED = (FORGET, BATCH_FORGET, INTERRUPT)
ROOT, WORK = 1, 2
MNT_FORCE, MNT_DETACH = 1, 2
LONGEST = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class Served:
    """One folder, `work`, at `path`. Every access fails with `error` (an errno). After `hang()` none is answered."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.work = path / "work"
        self.error = 0
        self._answers = threading.Event()
        self._answers.set()
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        data = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if _libc.mount(b"served", os.fsencode(path), kind.encode(), 0, data) != 0:
            number = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(number, os.strerror(number))
        self._held: list[tuple[int, int, int, bytes]] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="fuse", daemon=True)
        self._thread.start()

    def hang(self) -> None:
        self._answers.clear()

    def answer(self) -> None:
        """Answer again, including accesses made in the meantime."""
        with self._lock:
            self._answers.set()
            held, self._held = self._held, []
        for each in held:
            self._reply(*each)

    def close(self) -> None:
        self.answer()
        _libc.umount2(os.fsencode(self.path), MNT_FORCE | MNT_DETACH)
        self._thread.join(10.0)
        os.close(self._fd)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, LONGEST)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return  # unmounted
            _, op, unique, node = struct.unpack_from("<IIQQ", request)
            body = request[40:]
            if op in NEVER_ANSWERED:
                continue
            with self._lock:
                about_work = node == WORK or (op == LOOKUP and body.rstrip(b"\0") == b"work")
                if about_work and not self._answers.is_set():
                    self._held.append((op, unique, node, body))
                    continue
            self._reply(op, unique, node, body)

    def _reply(self, op: int, unique: int, node: int, body: bytes) -> None:
        number, content = self._answer(op, node, body)
        with suppress(OSError):  # the process that asked was killed
            os.write(self._fd, struct.pack("<IiQ", 16 + len(content), -number, unique) + content)

    def _answer(self, op: int, node: int, body: bytes) -> tuple[int, bytes]:
        if op == INIT:
            return 0, struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0, *[0] * 7)
        if op == STATFS:
            return 0, struct.pack("<QQQQQIIII6I", 1000, 1000, 1000, 1000, 1000, 4096, 255, 4096, 0, *[0] * 6)
        if op == LOOKUP:
            if body.rstrip(b"\0") != b"work":
                return errno.ENOENT, b""
            if self.error:
                return self.error, b""
            return 0, struct.pack("<QQQQII", WORK, 1, 0, 0, 0, 0) + _attributes(WORK)
        if node == WORK and self.error:
            return self.error, b""
        if op == GETATTR:
            return 0, struct.pack("<QII", 0, 0, 0) + _attributes(node)
        if op == OPENDIR:
            return 0, struct.pack("<QII", 0, 0, 0)
        if op in (READDIR, RELEASEDIR):
            return 0, b""
        return errno.ENOSYS, b""


def _attributes(node: int) -> bytes:
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, stat.S_IFDIR | 0o755, 2, 0, 0, 0, 4096, 0)


@contextmanager
def served(path: Path, kind: str = "fuse") -> Iterator[Served]:
    """Mounted at `path`, a folder. `kind`: its type, such as "fuse.sshfs"."""
    one = Served(path, kind)
    try:
        yield one
    finally:
        one.close()
