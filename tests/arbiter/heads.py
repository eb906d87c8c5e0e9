"""An arbiter as a process, and raw lines of several users to its socket. Needs root."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpq import paths
from gpq.arbiter.roster import Member as Row
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import Node
from gpq.core.rounds.rounds import offer_of
from gpq.core.team.claims import statement
from tests.daemon.daemons import ROOT
from tests.support.builders import snapshot
from tests.support.users import acting_as, command_of, shared_place
from tests.support.waiting import wait_until

User = pwd.struct_passwd
DECIDER, OWNER, ADMIN, OTHER, STRANGER, QUIET, NEW = (
    pwd.getpwnam(name) for name in ("daemon", "bin", "sys", "games", "man", "lp", "mail")
)
MEMBERS = {
    OWNER.pw_name: Row([OWNER.pw_uid]),
    ADMIN.pw_name: Row([ADMIN.pw_uid], admin=True),
    OTHER.pw_name: Row([OTHER.pw_uid]),
    QUIET.pw_name: Row([QUIET.pw_uid]),
    NEW.pw_name: Row([NEW.pw_uid]),
}


class Head:
    """An arbiter that DECIDER runs, who is no member."""

    def __init__(self, place: Path, folder: Path | None = None) -> None:
        """`folder`: of its files."""
        self.name, self.home = f"t{uuid.uuid4().hex[:12]}", place / "home"
        self.folder = self.home / "teams" / self.name
        self.folder.mkdir(parents=True)
        if folder is not None:
            self.folder.rmdir()
            self.folder.symlink_to(folder)
        self.roster = self.folder / "roster.json"
        self.roster.write_bytes(msgspec.json.encode({"name": self.name, "members": MEMBERS}))
        for path in (self.home, self.folder.parent, self.folder, self.roster):
            os.chown(path, DECIDER.pw_uid, DECIDER.pw_gid)
            path.chmod(0o700)
        self.socket = Path(paths.team_folders(self.name, DECIDER.pw_uid)[-1]) / "sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = self.spawn()
        wait_until(self.socket.exists, "the arbiter listens")

    def spawn(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "GPQ_HOME": str(self.home), "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}"}
        return subprocess.Popen(
            [*command_of(DECIDER), sys.executable, "-m", "gpq.arbiter.main", self.name],
            env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def own(self, user: User) -> Path:
        """The socket that is for this member alone."""
        return self.socket.with_name(f"sock.{user.pw_uid}")

    def open(self, user: User, path: Path | None = None, /) -> socket.socket:
        """By `path`, or by the user's own socket, or by the common one if there is none."""
        path = path or next(filter(Path.exists, (self.own(user), self.socket)))
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(60)
        with acting_as(user):
            connection.connect(str(path))
        return connection

    def line(self, user: User, op: str, /, **fields: object) -> bytes:
        """The answer as it comes over the socket."""
        with self.open(user) as connection, connection.makefile("rb") as stream:
            with contextlib.suppress(BrokenPipeError):  # it hung up, and said why
                connection.sendall(json.dumps({"v": 1, "op": op, **fields}).encode() + b"\n")
            return stream.readline()

    def answer(self, user: User, op: str, /, **fields: object) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.line(user, op, **fields))
        return answer

    def result(self, user: User, op: str, /, **fields: object) -> dict[str, Any]:
        answer = self.answer(user, op, **fields)
        assert answer["ok"], answer
        result: dict[str, Any] = answer["result"]
        return result

    def tell(self, user: User, *things: Job | Node, private: bool = False, **more: object) -> None:
        """As the user's daemon would tell of these jobs and servers."""
        result = self.result(user, "tell", **{"seq": 1, "statement": told(*things, private=private), **more})
        assert result["seq"] == more.get("seq", 1)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process is not None:
            self.kill()
        shutil.rmtree(self.socket.parent, ignore_errors=True)


def told(*things: Job | Node, private: bool = False) -> dict[str, Any]:
    made = snapshot(*things)
    tree: dict[str, Any] = msgspec.to_builtins(statement(made, offer_of(made)[0], private=private))
    return tree


@contextlib.contextmanager
def head() -> Iterator[Head]:
    with shared_place() as place:
        made = Head(place)
        try:
            made.start()
            yield made
        finally:
            made.end()
