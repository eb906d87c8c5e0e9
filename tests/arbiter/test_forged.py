"""A member who forges who they are, in every message: what others see and get stays as it is. Needs root."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.arbiter.heads import ADMIN, OTHER, OWNER, QUIET, Head, User, head, told
from tests.support.builders import job, node, on, running, spec
from tests.support.teams import trained
from tests.support.users import command_of
from tests.support.waiting import wait_until

SERVER = node("gpu1", 4)
OWN = (SERVER, running(3, on("gpu1", 3), spec_=spec(up_to=1), profile=trained()))
OTHERS: dict[str, tuple[User, tuple[Any, ...]]] = {
    "admin": (ADMIN, (SERVER, running(1, on("gpu1", 0), spec_=spec(up_to=1), profile=trained()))),
    "owner": (OWNER, (SERVER, running(2, on("gpu1", 1, 2), spec_=spec(gpus=2, up_to=2), profile=trained()))),
    "quiet": (QUIET, (SERVER, job(4, spec_=spec(gpus=2)))),
}
AS_ADMIN = {
    "user": ADMIN.pw_name, "uid": ADMIN.pw_uid, "uids": [ADMIN.pw_uid], "by": ADMIN.pw_name, "as": ADMIN.pw_name,
    "peer": {"uid": ADMIN.pw_uid, "user": ADMIN.pw_name}, "pid": 1, "admin": True, "members": {}, "shares": {},
}  # fmt: skip
WHO = {"member": ADMIN.pw_name}
FORGED: dict[str, tuple[str, dict[str, Any]]] = {
    "hello": ("hello", {**WHO, "epoch": 1 << 52, "seq": 1 << 52}),
    "hello to another team": ("hello", {**WHO, "team": "other"}),
    "tell": ("tell", {**WHO, "seq": 1 << 52, "epoch": 1 << 52, "team": "other"}),
    "tell before": ("tell", {**WHO, "seq": -1, "epoch": 0}),
    "take": ("take", {**WHO, "round": -1, "epoch": 1 << 52, "seq": 1 << 52, "team": "other"}),
    "take before": ("take", {**WHO, "round": -(1 << 52), "epoch": -1}),
    **{
        f"view {kind}": ("view", {**WHO, "kind": kind, "job": 1, "lines": 1 << 52, "epoch": 9, "seq": 9, "team": "other"})
        for kind in ("queue", "members", "audit", "why")
    },
    **{
        f"amend {action}": ("amend", {"member": name, "action": action, "value": value, "epoch": 9, "seq": 9})
        for action, name, value in (
            ("add", OTHER.pw_name, ADMIN.pw_uid), ("remove", ADMIN.pw_name, 0), ("share", OTHER.pw_name, 100),
            ("pause", ADMIN.pw_name, 0), ("resume", OTHER.pw_name, 0), ("admin", OTHER.pw_name, 1),
            ("recall", OWNER.pw_name, 2), ("reset", OWNER.pw_name, 2),
        )
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def team() -> Iterator[Head]:
    with head() as made:
        for user, things in (*OTHERS.values(), (OTHER, OWN)):
            made.tell(user, *things)
        wait_until(lambda: all(answers(made)["owner"]["take"]["grants"]), "all have their answers")
        wait_until(lambda: all(len(rows) == 4 for rows in queues(made)), "the queue is whole")
        yield made


def queues(team: Head) -> list[Any]:
    return [answer["queue"]["rows"] for answer in answers(team).values()]


def answers(team: Head) -> dict[str, dict[str, Any]]:
    """What the others see and get, without what the time changes."""
    seen: dict[str, dict[str, Any]] = {}
    for who, (user, _) in OTHERS.items():
        answer = {kind: team.result(user, "view", kind=kind) for kind in ("queue", "members")}
        answer["why"] = team.answer(user, "view", kind="why", member=QUIET.pw_name, job=4)
        answer["hello"] = team.result(user, "hello", team=team.name)
        answer["take"] = team.result(user, "take")
        seen[who] = {kind: without(tree) for kind, tree in answer.items()}
    return seen


def without(tree: Any) -> Any:
    moving = ("age", "gpu_hours", "debt", "borrowed", "digest", "program")
    if isinstance(tree, dict):
        return {name: without(value) for name, value in tree.items() if name not in moving}
    return [without(item) for item in tree] if isinstance(tree, list) else tree


def lines_about_others(team: Head) -> list[Any]:
    entries = map(json.loads, team.result(ADMIN, "view", kind="audit", lines=1000)["lines"])
    return [entry for entry in entries if entry.get("member") != OTHER.pw_name]


def forged_statement() -> dict[str, Any]:
    """Each part of it says that it is another's."""
    tree = told(*OWN)
    parts = ("claims", "servers")
    return {**tree, **AS_ADMIN, **WHO, **{part: [{**item, **AS_ADMIN, **WHO} for item in tree[part]] for part in parts}}


@pytest.mark.parametrize("message", FORGED)
def test_who_sends_a_message_is_what_the_kernel_says(team: Head, message: str) -> None:
    before, past = answers(team), lines_about_others(team)
    roster = team.roster.read_bytes()
    op, fields = FORGED[message]
    if op == "tell":
        fields = {**fields, "statement": forged_statement()}
    answer = team.answer(OTHER, op, **{"team": team.name, **AS_ADMIN, **fields})
    if op == "amend":
        assert answer["code"] == 5
    if answer["ok"] and "member" in answer["result"]:
        assert (answer["result"]["member"], answer["result"]["admin"]) == (OTHER.pw_name, False)
    heard = team.result(OTHER, "tell", seq=7, statement=told(*OWN))  # a round follows
    assert heard["seq"] == 7
    wait_until(lambda: team.result(OTHER, "take")["seq"] == 7, "the round is over")
    assert answers(team) == before
    assert lines_about_others(team) == past
    assert team.roster.read_bytes() == roster


def test_root_of_a_user_namespace_is_the_user_who_made_it(team: Head) -> None:
    request = json.dumps({"v": 1, "op": "hello", "team": team.name})
    program = (
        "import ctypes, os, socket, sys\n"
        "uid, new_user_namespace = os.getuid(), 0x10000000\n"
        "assert ctypes.CDLL(None).unshare(new_user_namespace) == 0\n"
        "open('/proc/self/uid_map', 'w').write(f'0 {uid} 1')\n"
        "assert os.getuid() == 0\n"
        "connection = socket.socket(socket.AF_UNIX)\n"
        "connection.connect(sys.argv[1])\n"
        "connection.sendall(sys.argv[2].encode() + b'\\n')\n"
        "print(connection.makefile().readline())\n"
    )
    done = subprocess.run(
        [*command_of(OTHER), sys.executable, "-c", program, str(team.socket), request],
        capture_output=True, check=True, cwd="/", timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout)["result"]["member"] == OTHER.pw_name
