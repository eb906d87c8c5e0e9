"""Power cuts of the disk with the daemon's state: ext4 in a file, shut down without a flush, mounted again.

Unsynced data is lost, as in a real cut. The jobs, their servers' spools and what they write are on another disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from gpq.rpc.requests import Request
from tests.e2e.harness import Daemon, R

EXT4_IOC_SHUTDOWN = 0x8004587D  # linux/fs/ext4: _IOR('X', 125, __u32)
NO_LOG_FLUSH = 2  # without writing out the journal
MIB = 32


class Disk:
    """A small ext4 of its own, mounted at `place`. Needs root and a loop device."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder = folder
        self.place = place
        self.number = 0
        place.mkdir(exist_ok=True)
        with open(self.image, "wb") as stream:
            stream.truncate(MIB << 20)
        _do("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self.image))
        self.mount()

    @property
    def image(self) -> Path:
        return self.folder / f"disk-{self.number}.img"

    def mount(self) -> None:
        _do("mount", "-o", "loop", str(self.image), str(self.place))

    def replace(self) -> None:
        """What reached the disk before the cut, as a separate disk. The file system that was shut down may live on in
        the mount namespace of another process on this machine, and the same image would be that file system again."""
        self.unmount()
        before = self.image
        self.number += 1
        _do("cp", "--sparse=always", str(before), str(self.image))
        before.unlink()
        self.mount()

    def cut(self) -> None:
        """From now on nothing reaches the disk, and every writer gets EIO."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        _do("umount", "--lazy", str(self.place))


AGENT = """\
#!{python}
import os, sys
os.execv({python!r}, [{python!r}, *(word.replace({cut!r}, {outer!r}) for word in sys.argv[1:])])
"""


class PowerCutDaemon(Daemon):
    """Its `kill` is a power cut of the head: the disk goes, the daemon goes, and the disk comes back with the synced
    data.

    Its server's agent gets the server's folders by a path that does not cross that disk. Otherwise jobs that end during
    a cut could not write their exit codes.

    An answer that comes after the start of a cut counts as none, because the power has gone. The kernel may report
    success for a sync under way at a shutdown, and then drop what was synced.
    """

    def __init__(self, *, slots: int = 2, **settings: object) -> None:
        super().__init__(nodes={"local": {"slots": slots, "python": "AGENT"}}, **settings)
        self.outer = self.home
        agent = self.outer / "agent"
        words = {"python": sys.executable, "cut": f"{self.outer}/state/", "outer": f"{self.outer}/"}
        agent.write_text(AGENT.format(**words))
        agent.chmod(0o700)
        self.config.write_text(self.config.read_text().replace("AGENT", str(agent)))
        self.disk = Disk(self.outer, self.outer / "state")
        self.cuts = 0
        self.home = self.outer / "state"
        for name in ("nodes", "checkpoints"):  # of servers, whose disks nobody cuts
            (self.outer / name).mkdir()
            (self.home / name).symlink_to(self.outer / name)
        os.sync()

    def call(self, request: Request, kind: type[R]) -> R:
        cuts = self.cuts
        answer = super().call(request, kind)
        if self.cuts != cuts:
            raise ConnectionResetError("the power was cut before this answer came")
        return answer

    def kill(self) -> None:
        self.cuts += 1
        self.disk.cut()
        super().kill()
        self.disk.replace()

    def discard(self) -> None:
        if self.process is not None and self.process.poll() is None:
            super().kill()
        self.disk.unmount()
        shutil.rmtree(self.outer, ignore_errors=True)


def survivors() -> set[str]:
    """What is left of three files after a cut: one synced with its folder, one not synced, one synced in part."""
    with tempfile.TemporaryDirectory(prefix="gpq-") as name:
        disk = Disk(Path(name), Path(name) / "state")
        folder = os.open(disk.place, os.O_RDONLY)
        try:
            for file in ("synced", "grown"):
                with open(disk.place / file, "wb") as stream:
                    stream.write(b"1")
                    stream.flush()
                    os.fsync(stream.fileno())
            os.fsync(folder)
        finally:
            os.close(folder)
        with open(disk.place / "grown", "ab") as stream:
            stream.write(b"2")
        (disk.place / "fresh").write_bytes(b"1")
        disk.cut()
        disk.replace()
        found = {f"{path.name}:{path.stat().st_size}" for path in disk.place.iterdir() if path.is_file()}
        disk.unmount()
    return found


def _do(*argv: str) -> None:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PATH": path})
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")
