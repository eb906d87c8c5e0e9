"""Three users, each with a real daemon, and a real arbiter of one of them. Needs root."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar
from unittest import mock

import msgspec
import pytest

from gpq import paths
from gpq.client.connection import Connection
from gpq.rpc.codec import encode_request
from gpq.rpc.job_answers import JobList, Submitted
from gpq.rpc.requests import ArrayMessage, Request, SpecMessage, Status, Submit
from gpq.rpc.team_messages import Amend, AuditLines, Queue, View
from tests.daemon.daemons import Daemon, clear
from tests.support.users import command_of, shared_place
from tests.support.waiting import wait_until

R = TypeVar("R", bound=msgspec.Struct)
ANA, BOB, CAT = USERS = [pwd.getpwnam(name) for name in ("daemon", "bin", "games")]
CONFIG = """\
interval = 5.0
[team]
name = "{team}"
uid = {uid}
[nodes.here]
slots = 2
"""
# says who runs where, and whether somebody else is there
SCRIPT = """
slot={place}/$GPQ_DEVICES
mkdir $slot || touch {place}/clash.$$
id -u > {place}/.job.{name}.{{index}}
mv {place}/.job.{name}.{{index}} {place}/job.{name}.{{index}}
rmdir $slot
"""


class Own(Daemon):
    """The daemon of one user."""

    def __init__(self, home: Path, config: str, user: pwd.struct_passwd, pace: float = 1.0) -> None:
        self.user = user
        super().__init__(home, config, pace)
        os.chown(home, user.pw_uid, user.pw_gid)

    def spawn(self) -> tuple[subprocess.Popen[bytes], dict[str, object]]:  # type: ignore[override]
        ready, descriptor = os.pipe()
        process = run_as(self, "gpq.daemon.main", "--ready-fd", str(descriptor), descriptors=(descriptor,))
        os.close(descriptor)
        with os.fdopen(ready, "rb") as stream:
            return process, json.loads(stream.read() or b"{}")

    def call(self, request: Request, kind: type[R]) -> R:
        with mock.patch.dict(os.environ, GPQ_HOME=str(self.home)), Connection(self.socket) as connection:
            return connection.call(request, kind)

    def states(self) -> dict[int, str]:
        return {row.id: row.state for row in self.call(Status(), JobList).jobs}


def run_as(own: Daemon, module: str, *words: str, descriptors: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    assert isinstance(own, Own)
    return subprocess.Popen(
        [*command_of(own.user), sys.executable, "-m", module, *words],
        env=own.environment, cwd="/", pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


class Lab:
    """A team whose arbiter is of the first user."""

    def __init__(self, place: Path) -> None:
        self.place, self.name = place, f"t{uuid.uuid4().hex[:12]}"
        self.config = CONFIG.format(team=self.name, uid=ANA.pw_uid)
        self.daemons = [Own(place / user.pw_name, self.config, user) for user in USERS]
        self.folder = self.daemons[0].home / "teams" / self.name
        self.folder.mkdir(parents=True)
        members = {user.pw_name: {"uids": [user.pw_uid], "admin": user is ANA} for user in USERS}
        (self.folder / "roster.json").write_text(json.dumps({"name": self.name, "members": members}))
        for path in (self.folder.parent, self.folder, *self.folder.iterdir()):
            os.chown(path, ANA.pw_uid, ANA.pw_gid)
            path.chmod(0o700)
        self.start()

    def start(self) -> None:
        """The arbiter."""
        self.process = run_as(self.daemons[0], "gpq.arbiter.main", self.name)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ask(self, request: View | Amend, kind: str) -> str:
        """What the first user is answered, as JSON. Nobody but a member is answered."""
        program = (
            "import os, sys, msgspec\n"
            "from gpq.connectors.arbiter import ArbiterClient\n"
            "from gpq.rpc import team_messages\n"
            "from gpq.rpc.team_codec import decode_team_request\n"
            "client = ArbiterClient(sys.argv[1], os.getuid())\n"
            "request = decode_team_request(sys.stdin.buffer.read())\n"
            "answer = client.call(request, getattr(team_messages, sys.argv[2]), 20.0)\n"
            "print(msgspec.json.encode(answer).decode())\n"
        )
        done = subprocess.run(
            [*command_of(ANA), sys.executable, "-c", program, self.name, kind],
            env=self.daemons[0].environment, cwd="/", input=encode_request(request).rstrip(), capture_output=True,
            check=True, timeout=60,
        )  # fmt: skip
        return done.stdout.decode()

    def queue(self) -> Queue:
        try:
            return msgspec.json.decode(self.ask(View(kind="queue"), "Queue"), type=Queue)
        except subprocess.CalledProcessError:  # it does not listen yet
            return Queue([], {})

    def end(self) -> None:
        self.kill()
        for own in self.daemons:
            clear(own)
        shutil.rmtree(paths.team_folders(self.name, ANA.pw_uid)[-1], ignore_errors=True)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with shared_place() as place:
        made = Lab(place)
        try:
            for own in made.daemons:
                own.start()
            yield made
        finally:
            made.end()


def test_each_job_runs_as_its_user_and_no_slot_has_two(lab: Lab) -> None:
    count = 6
    for own in lab.daemons:
        script = SCRIPT.format(place=lab.place, name=own.user.pw_name)
        spec = SpecMessage(["sh", "-c", script], "/", "black-box")
        own.call(Submit(spec, array=ArrayMessage(list(range(count)))), Submitted)
    jobs = {
        (own.user, index): lab.place / f"job.{own.user.pw_name}.{index}"
        for own in lab.daemons
        for index in range(count)
    }
    wait_until(lambda: all(path.exists() for path in jobs.values()), "all jobs ran")
    for (user, _), path in jobs.items():
        assert path.read_text().strip() == str(user.pw_uid)
        assert path.stat().st_uid == user.pw_uid
    assert not list(lab.place.glob("clash.*"))


def test_a_killed_arbiter_comes_back_and_no_job_was_touched(lab: Lab) -> None:
    ana, bob, _ = lab.daemons
    gate = lab.place / "gate"
    waits = ["sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done"]
    jobs = [own.submit(*waits) for own in (ana, bob)]
    wait_until(lambda: {ana.states()[jobs[0]], bob.states()[jobs[1]]} == {"running"}, "both run")
    lab.kill()
    late = bob.submit("true")
    lab.start()
    wait_until(lambda: len(lab.queue().rows) == 3, "the queue is whole")
    gate.touch()
    wait_until(lambda: bob.states()[late] == "completed", "the late one ran")
    audit = msgspec.json.decode(lab.ask(View(kind="audit"), "AuditLines"), type=AuditLines)
    assert audit.broken == 0
    assert [json.loads(line)["what"] for line in audit.lines].count("start") == 2
    assert not [line for line in audit.lines if '"recall"' in line]


def test_nothing_of_a_job_but_its_numbers_and_name_reaches_the_arbiter(lab: Lab) -> None:
    canaries = {what: f"canary-{uuid.uuid4().hex}" for what in ("argument", "value", "folder", "tag", "output")}
    own = lab.daemons[1]
    folder = lab.place / canaries["folder"]
    folder.mkdir()
    spec = SpecMessage(
        ["sh", "-c", f"echo {canaries['output']}; sleep 600", canaries["argument"]], str(folder), "black-box",
        name="its-name", env={"SECRET": canaries["value"]}, tags=[canaries["tag"]],
    )  # fmt: skip
    job = own.call(Submit(spec), Submitted).id
    wait_until(lambda: own.states().get(job) == "running", "it runs")
    wait_until(lambda: [row.name for row in lab.queue().rows] == ["its-name"], "the arbiter knows it")
    lab.ask(Amend(action="share", member=BOB.pw_name, value=2.0), "Receipt")
    memory = _memory(lab.process.pid) + b"".join(path.read_bytes() for path in lab.folder.iterdir() if path.is_file())
    assert b"its-name" in memory
    assert [what for what, canary in canaries.items() if canary.encode() in memory] == []


def _memory(pid: int) -> bytes:
    """All that the process has written to."""
    pieces = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if rights.startswith("rw"):
                start, end = (int(word, 16) for word in span.split("-"))
                memory.seek(start)
                with contextlib.suppress(OSError):
                    pieces.append(memory.read(end - start))
    return b"".join(pieces)
