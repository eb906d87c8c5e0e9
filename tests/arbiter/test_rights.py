"""Who may what: the table of rights, each cell asked by the user's own account over the real sockets. Needs root."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpq.core.model.profile import Noise
from gpq.rpc.codec import encode_request
from gpq.rpc.job_answers import JobDetail
from gpq.rpc.requests import (
    Cancel,
    Edit,
    Hold,
    Info,
    Logs,
    Request,
    Requeue,
    Show,
    Shutdown,
    SpecMessage,
    Status,
    Submit,
    Why,
)
from tests.arbiter.heads import ADMIN, DECIDER, NEW, OTHER, OWNER, QUIET, STRANGER, Head, User, head, told
from tests.arbiter.test_processes import Own
from tests.daemon.daemons import clear
from tests.support.builders import job, node, on, running, spec
from tests.support.teams import trained
from tests.support.users import acting_as, shared_place
from tests.support.waiting import wait_until

USERS = {
    "owner": OWNER, "other member": OTHER, "admin": ADMIN, "account of the arbiter": DECIDER, "no member": STRANGER,
}  # fmt: skip
EVERY_MEMBER = {"owner", "other member", "admin"}
ADMINS = {"admin"}
NOBODY: set[str] = set()
REFUSED = 5

NAME, PRIVATE = "its-name", "its-private-name"
FIGURES = {"speed": 98765.4321, "noise": 7654.3217, "step": 0.1234567}
PROFILE = replace(
    trained(), samples_per_second=FIGURES["speed"], noise=Noise(1.0, FIGURES["noise"], 10_000),
    rows=tuple(replace(row, step_time=row.step_time + FIGURES["step"]) for row in trained().rows),
)  # fmt: skip
SERVER = node("gpu1", 4)
JOB = running(1, on("gpu1", 0, 1), spec_=spec(name=NAME), profile=PROFILE)
WAITING = job(2, spec_=spec(gpus=8, up_to=8, name="waits"))


@dataclass(frozen=True)
class Change:
    """`undo`: what an admin asks after it."""

    fields: dict[str, Any]
    undo: dict[str, Any]


def amend(action: str, user: User | str, value: float = 0.0) -> dict[str, Any]:
    name = user if isinstance(user, str) else user.pw_name
    return {"action": action, "member": name, "value": value}


ADD = amend("add", NEW, NEW.pw_uid)
CHANGES = {
    "add": (Change(amend("add", "newer", 4242), amend("remove", "newer")), ADMINS),
    "remove": (Change(amend("remove", NEW), ADD), ADMINS),
    "share": (Change(amend("share", NEW, 9), amend("share", NEW, 1)), ADMINS),
    "pause": (Change(amend("pause", NEW), amend("resume", NEW)), ADMINS),
    "resume": (Change(amend("resume", NEW), {}), ADMINS),
    "admin": (Change(amend("admin", NEW, 1), amend("admin", NEW, 0)), ADMINS),
    "remove the last admin": (Change(amend("remove", ADMIN), {}), NOBODY),
    "pause the last admin": (Change(amend("pause", ADMIN), {}), NOBODY),
    "demote the last admin": (Change(amend("admin", ADMIN, 0), {}), NOBODY),
}
VIEWS = ("queue", "members", "audit", "why")


@pytest.fixture(scope="module")
def team() -> Iterator[Head]:
    with head() as made:
        tell_all(made)
        made.tell(QUIET, SERVER, job(7, spec_=spec(name=PRIVATE)), private=True)
        wait_until(lambda: len(made.result(ADMIN, "view", kind="queue")["rows"]) == 3, "the queue is whole")
        yield made


def tell_all(team: Head) -> None:
    for user in (ADMIN, OTHER):
        team.tell(user, SERVER)
    team.tell(OWNER, SERVER, JOB, WAITING)


def members(team: Head) -> object:
    return json.loads(team.roster.read_text())["members"]


def expect(answer: dict[str, Any], *, allowed: bool) -> None:
    assert answer["ok"] is allowed, answer
    if not allowed:
        assert answer["code"] == REFUSED
        assert answer["error"].isprintable()
        assert "result" not in answer


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("what", CHANGES)
def test_who_may_change_the_team(team: Head, who: str, what: str) -> None:
    change, allowed = CHANGES[what]
    before = members(team)
    expect(team.answer(USERS[who], "amend", **change.fields), allowed=who in allowed)
    assert (members(team) != before) == (who in allowed and what != "resume")
    if who in allowed and change.undo:
        team.result(ADMIN, "amend", **change.undo)
    assert members(team) == before


@pytest.mark.parametrize("who", USERS)
def test_who_may_leave(team: Head, who: str) -> None:
    """A member, if they are not the last admin."""
    user = USERS[who]
    allowed = who in EVERY_MEMBER - ADMINS
    before = members(team)
    expect(team.answer(user, "amend", **amend("remove", user)), allowed=allowed)
    if allowed:
        expect(team.answer(user, "view", kind="queue"), allowed=False)
        team.result(ADMIN, "amend", **amend("add", user, user.pw_uid))
        tell_all(team)
    assert members(team) == before


@pytest.mark.parametrize("who", USERS)
def test_who_may_take_the_gpus_of_a_job_back(team: Head, who: str) -> None:
    def recalls() -> int:
        return team.line(ADMIN, "view", kind="audit", lines=1000).count(b"recall")

    before = recalls()
    expect(team.answer(USERS[who], "amend", **amend("recall", OWNER, 1)), allowed=who in ADMINS)
    assert (recalls() > before) == (who in ADMINS)


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("kind", VIEWS)
def test_who_may_look(team: Head, who: str, kind: str) -> None:
    fields = {"kind": kind, "member": OWNER.pw_name, "job": 2}
    expect(team.answer(USERS[who], "view", **fields), allowed=who in EVERY_MEMBER)


@pytest.mark.parametrize("who", USERS)
def test_who_sees_what_of_a_job(team: Head, who: str) -> None:
    """All members see its user, state, GPUs, age, why it waits, and its name unless that is private. Of what was measured
    they see totals of members."""
    user = USERS[who]
    lines = [team.line(user, "view", kind=kind, member=OWNER.pw_name, job=2, lines=1000) for kind in VIEWS]
    lines += [team.line(user, "hello", team=team.name), team.line(user, "take")]
    text = b"\n".join(lines)
    assert (NAME.encode() in text) == (who in EVERY_MEMBER)
    assert PRIVATE.encode() not in text
    figures = {figure for row in PROFILE.rows for figure in (row.step_time, row.grad_time)}
    numbers = set(map(float, re.findall(rb"\d+\.\d+", text)))
    assert numbers & {*FIGURES.values(), *figures} == set()
    if who in EVERY_MEMBER:
        rows = {(row["member"], row["job"]): row for row in json.loads(lines[0])["result"]["rows"]}
        row = rows[OWNER.pw_name, 1]
        assert (row["state"], row["gpus"], row["servers"]) == ("running", 2, ["gpu1"])
        assert row["age"] >= 0
        assert rows[OWNER.pw_name, 2]["why"]
        assert rows[QUIET.pw_name, 7]["name"] == ""


@pytest.mark.parametrize("who", USERS)
def test_who_may_submit_as_somebody(team: Head, who: str) -> None:
    """What a user tells is that user's, whatever it says."""

    def names() -> set[tuple[str, str]]:
        return {(row["member"], row["name"]) for row in team.result(ADMIN, "view", kind="queue")["rows"]}

    user, before = USERS[who], names()
    lie = dict.fromkeys(("member", "user", "by", "as", "owner"), QUIET.pw_name)
    statement = told(SERVER, job(1, spec_=spec(name=f"of {who}")))
    statement["claims"] = [{**claim, **lie, "uid": QUIET.pw_uid} for claim in statement["claims"]]
    answer = team.answer(user, "tell", seq=1, statement={**statement, **lie}, uid=QUIET.pw_uid, **lie)
    expect(answer, allowed=who in EVERY_MEMBER)
    if who in EVERY_MEMBER:
        wait_until(lambda: (user.pw_name, f"of {who}") in names(), "the claim is the sender's")
    assert {name for member, name in names() if member == QUIET.pw_name} == {""}
    tell_all(team)
    wait_until(lambda: names() == before, "the queue is as before")


@pytest.mark.parametrize("who", USERS)
def test_who_may_read_and_write_the_files_of_the_arbiter(team: Head, who: str) -> None:
    for path in (team.roster, team.folder / "ledger.json", team.folder / "audit.jsonl", team.folder / "lock"):
        with acting_as(USERS[who]):
            try:
                os.close(os.open(path, os.O_RDWR))
                opens = True
            except PermissionError:
                opens = False
        assert opens == (who == "account of the arbiter")


@pytest.mark.parametrize("who", USERS)
def test_who_may_open_the_sockets_of_the_arbiter(team: Head, who: str) -> None:
    """All may open the common one. Who is no member has no other."""
    paths = {team.socket: True, team.own(OWNER): who in ("owner", "account of the arbiter")}
    for path, allowed in paths.items():
        with acting_as(USERS[who]), socket.socket(socket.AF_UNIX) as client:
            assert client.connect_ex(str(path)) == (0 if allowed else errno.EACCES)
    assert team.own(USERS[who]).exists() == (who in EVERY_MEMBER)


# -- another's job, at the daemon that holds it --------------------------------------------------------------------------

SECRET = "its-secret"


@dataclass(frozen=True)
class Held:
    """A daemon of OWNER in the team that runs a job."""

    own: Own
    job: str


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    with shared_place() as place:
        own = Own(place / "home", "[nodes.here]\nslots = 5\n", OWNER)
        try:
            own.start()
            words = ["sh", "-c", f"echo {SECRET}; exec sleep 600"]
            number = own.submit(*words, env={"TOKEN": SECRET})
            wait_until(lambda: own.states().get(number) == "running", "the job runs")
            yield Held(own, str(number))
        finally:
            clear(own)


REQUESTS: dict[str, Callable[[str], Request]] = {
    "submit": lambda job: Submit(SpecMessage(["touch", "/tmp/never"], "/", "black-box", name="forged")),
    "edit": lambda job: Edit([job], {"priority": 10}),
    "cancel": lambda job: Cancel([job]),
    "hold": lambda job: Hold([job]),
    "requeue": lambda job: Requeue([job]),
    "logs": lambda job: Logs(job),
    "env and command": lambda job: Show(job),
    "why": lambda job: Why(job),
    "status": lambda job: Status(),
    "info": lambda job: Info(),
    "shutdown": lambda job: Shutdown(),
}


@pytest.mark.parametrize("who", [who for who in USERS if who != "owner"])
@pytest.mark.parametrize("what", REQUESTS)
def test_nobody_else_may_do_anything_with_a_job_at_its_daemon(held: Held, who: str, what: str) -> None:
    """Not even if its user has opened the folder and the socket."""
    home = held.own.home
    before = held.own.call(Show(held.job), JobDetail)
    request = REQUESTS[what](held.job)
    for folder_mode, socket_mode in ((0o700, 0o600), (0o755, 0o666)):
        home.chmod(folder_mode)
        Path(held.own.socket).chmod(socket_mode)
        try:
            answer = asked(held.own.socket, USERS[who], request)
        finally:
            Path(held.own.socket).chmod(0o600)
            home.chmod(0o700)
        assert (answer is None) == (folder_mode == 0o700)
        if answer is not None:
            assert answer["ok"] is False
            assert answer["code"] == REFUSED
            assert SECRET not in json.dumps(answer)
    after = held.own.call(Show(held.job), JobDetail)
    assert list(held.own.states()) == [int(held.job)]
    assert (after.job.state, after.spec.priority) == (before.job.state, before.spec.priority) == ("running", 0)


def asked(path: str, user: User, request: Request) -> dict[str, Any] | None:
    """The answer, or None if the kernel refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, acting_as(user):
        connection.settimeout(60)
        try:
            connection.connect(path)
        except PermissionError:
            return None
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(encode_request(request))
        with connection.makefile("rb") as stream:
            answer: dict[str, Any] = json.loads(stream.readline())
        return answer


@pytest.mark.parametrize("who", [who for who in USERS if who != "owner"])
def test_nobody_else_may_read_what_a_daemon_keeps_of_a_job(held: Held, who: str) -> None:
    paths = [path for path in held.own.home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert {path.name for path in paths} >= {"gpq.db-wal"} or {path.name for path in paths} >= {"gpq.db"}
    for path in paths:
        with acting_as(USERS[who]), pytest.raises(PermissionError):
            os.close(os.open(path, os.O_RDONLY))
