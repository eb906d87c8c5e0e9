"""An arbiter that hangs, is replaced, has a full disk, or is flooded by one user: others do not lose by it. Needs root."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpq.arbiter.arbiter import LEDGER
from gpq.arbiter.audit import Audit
from gpq.arbiter.main import PER_USER
from gpq.rpc.job_answers import JobList
from gpq.rpc.requests import Status
from tests.arbiter import test_decisions as decisions
from tests.arbiter.heads import ADMIN, DECIDER, OTHER, OWNER, STRANGER, Head, User, head, told
from tests.arbiter.liars import liar
from tests.arbiter.test_liars import CONFIG
from tests.arbiter.test_processes import Own
from tests.contract.test_sqlite_store import fill, mounted
from tests.daemon.daemons import QUICK, clear
from tests.support.builders import black_box, node
from tests.support.laboratory import Laboratory, machine
from tests.support.teams import trained
from tests.support.users import shared_place
from tests.support.waiting import wait_until


@contextlib.contextmanager
def member(place: Path, team: Head) -> Iterator[Own]:
    """A daemon of OWNER in the team, which it hears."""
    own = Own(place / "own", CONFIG.format(team=team.name, uid=DECIDER.pw_uid), OWNER, pace=QUICK)
    try:
        yield own.start()  # type: ignore[misc]
    finally:
        clear(own)


@pytest.fixture
def place() -> Iterator[Path]:
    with shared_place() as path:
        yield path


@pytest.fixture
def team(place: Path) -> Iterator[Head]:
    made = Head(place)
    try:
        made.start()
        yield made
    finally:
        made.end()


def warnings(own: Own) -> str:
    return " ".join(own.call(Status(), JobList).warnings)


def epoch_of(path: Path) -> int:
    epoch: int = json.loads(path.read_text())["epoch"]
    return epoch


def runs(own: Own, path: Path) -> None:
    job = own.submit("touch", str(path))
    wait_until(lambda: own.states().get(job) == "completed", "a job ran")
    assert path.exists()


def test_no_second_arbiter_takes_the_place_of_one_that_hangs(place: Path, team: Head) -> None:
    assert team.process is not None
    with member(place, team) as own:
        runs(own, place / "first")
        gate = place / "gate"
        lasting = own.submit("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
        wait_until(lambda: own.states()[lasting] == "running", "a job runs")
        team.process.send_signal(signal.SIGSTOP)
        second = team.spawn()
        assert second.wait(60) == 5
        team.process.send_signal(signal.SIGCONT)
        runs(own, place / "second")
        team.process.send_signal(signal.SIGSTOP)
        team.kill()
        team.start()
        runs(own, place / "third")
        assert own.states()[lasting] == "running"
        gate.touch()
        wait_until(lambda: own.states()[lasting] == "completed", "it was never touched")
    lines = [json.loads(line) for line in team.result(ADMIN, "view", kind="audit", lines=1000)["lines"]]
    assert [line["epoch"] for line in lines if line["what"] == "start"] == sorted(
        {line["epoch"] for line in lines if line["what"] == "start"}
    )
    assert not [line for line in lines if line["what"] == "recall"]


def test_a_ledger_that_was_copied_back_brings_no_old_epoch_and_an_old_arbiter_is_ignored(
    place: Path, team: Head
) -> None:
    ledger = team.folder / "ledger.json"
    with member(place, team) as own:
        runs(own, place / "first")
        copy = shutil.copy(ledger, place / "copy")
        before = [epoch_of(ledger)]
        for _ in range(2):
            team.kill()
            wait_until(lambda: time.time() > before[-1] + 1, "an epoch counts seconds")
            shutil.copyfile(copy, ledger)
            team.start()
            wait_until(lambda: epoch_of(ledger) > before[-1], "a new epoch")
            before.append(epoch_of(ledger))
        runs(own, place / "second")
        memory, epoch = own.home / "team.json", before[-1]
        assert epoch_of(memory) == epoch
        team.kill()
        shutil.rmtree(team.socket.parent)
        with liar(team.name, DECIDER, place / "canary") as old:
            old.lies_only("an epoch of the past")
            waiting = own.submit("touch", str(place / "third"))
            wait_until(
                lambda: f"an arbiter of epoch 1 answers, which one of {epoch} replaced" in warnings(own), "it says so"
            )
            assert own.states()[waiting] == "pending"
        assert epoch_of(memory) == epoch
        team.start()
        wait_until(lambda: own.states()[waiting] == "completed", "it follows the right one")
        assert warnings(own) == ""


def test_on_a_full_disk_decisions_go_on_and_what_must_be_kept_is_refused(place: Path) -> None:
    with mounted(place / "small", "256k") as disk:
        os.chown(disk, DECIDER.pw_uid, DECIDER.pw_gid)
        disk.chmod(0o700)
        team = Head(place, disk)
        try:
            team.start()
            with member(place, team) as own:
                runs(own, place / "first")
                fill(disk)
                while team.answer(ADMIN, "amend", action="share", member=OTHER.pw_name, value=2.0)["ok"]:
                    """Until the rest of a page is full as well."""
                answer = team.answer(ADMIN, "amend", action="share", member=OTHER.pw_name, value=3.0)
                assert (answer["code"], answer["error"].partition(": ")[2]) == (5, "No space left on device")
                for number in range(3):
                    runs(own, place / f"full{number}")
                roster = json.loads(team.roster.read_text())
                assert roster["members"][OTHER.pw_name]["share"] in (1.0, 2.0)
                (disk / "filler").unlink()
                assert team.answer(ADMIN, "amend", action="share", member=OTHER.pw_name, value=4.0)["ok"]
                runs(own, place / "after")
            assert team.result(ADMIN, "view", kind="audit")["broken"] == 0
            assert team.process is not None
            team.process.send_signal(signal.SIGTERM)
            assert team.process.wait(60) == 0
            assert Audit(str(team.folder / "audit.jsonl")).read(0)[1] == 0
            assert json.loads(team.roster.read_text())["members"][OTHER.pw_name]["share"] == 4.0
            log = (team.folder / "arbiter.log").read_text()
            assert "Traceback" not in log
            team.start()
            assert team.result(ADMIN, "view", kind="audit")["broken"] == 0
        finally:
            team.end()


def test_a_ledger_that_cannot_be_written_holds_up_no_decision(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "256k") as disk:
        lab = Laboratory({"gpu1": machine("1", 4)})
        made = lab, decisions.Head(lab, disk)
        ana = lab.join("ana")
        decisions.after(made, 2)
        fill(disk)
        for number in range(3):
            decisions.after(made, int(LEDGER))  # so it is written in between
            ana.submit(black_box(1), trained())
            decisions.after(made, 3, until=lambda count=number: ana.gpus > count)
            assert ana.gpus == number + 1
        (disk / "filler").unlink()
        decisions.after(made, int(LEDGER) + 1)
        assert json.loads((disk / "ledger.json").read_text())["days"]


# -- one user who wants everything -----------------------------------------------------------------------------------


def many_claims(count: int) -> dict[str, Any]:
    tree = told(node("gpu1", 4))
    return {**tree, "claims": [{"job": number + 1, "submitted_at": 0} for number in range(count)]}


def test_a_member_has_a_socket_as_long_as_they_are_one_also_after_a_new_start_of_the_arbiter() -> None:
    with head() as team:
        for uids in ([OTHER.pw_uid], [OTHER.pw_uid, STRANGER.pw_uid]):
            team.result(ADMIN, "amend", action="add", member=OTHER.pw_name, value=uids[-1])
            assert team.result(OTHER, "hello", team=team.name)["alone"]
        team.result(ADMIN, "amend", action="remove", member=OTHER.pw_name)
        assert not team.own(OTHER).exists()
        assert not team.own(STRANGER).exists()
        assert team.answer(OTHER, "hello", team=team.name)["code"] == 5
        before = {path: path.stat().st_ctime_ns for path in team.socket.parent.iterdir()}
        team.kill()
        team.own(OTHER).touch()
        team.start()
        wait_until(lambda: team.own(OWNER).stat().st_ctime_ns != before[team.own(OWNER)], "it makes them again")
        wait_until(lambda: {*team.socket.parent.iterdir()} == {*before}, "what is nobody's goes")
        assert team.result(OWNER, "hello", team=team.name)["alone"]


@pytest.mark.parametrize("user", [OTHER, STRANGER], ids=["member", "no member"])
def test_who_opens_all_connections_that_there_are_does_not_keep_others_out(user: User) -> None:
    with head() as team, contextlib.ExitStack() as stack:
        team.tell(OWNER, node("gpu1", 4))
        for _ in range(300):
            connection = stack.enter_context(team.open(user))
            with contextlib.suppress(OSError):
                connection.sendall(b'{"v":1,')  # and nothing more
        assert team.result(OWNER, "take")["seq"] == 1
        assert len(team.result(OWNER, "view", kind="members")["rows"]) == 5
        refused = stack.enter_context(team.open(user)).recv(65536)
        assert b'"code":5' in refused


def test_a_connection_beyond_those_of_a_member_waits_until_the_end_of_one_is_noticed() -> None:
    with head() as team, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(team.open(OTHER)) for _ in range(PER_USER + 1)]
        answers = [stack.enter_context(connection.makefile("rb")) for connection in connections]
        for connection in connections:
            connection.sendall(b'{"v":1,"op":"take"}\n')
        assert all(json.loads(answer.readline())["ok"] for answer in answers[:PER_USER])
        assert team.result(OWNER, "take")["seq"] == 0, "the arbiter has accepted all that came before"
        answers[0].close()
        connections[0].close()
        assert json.loads(answers[-1].readline())["ok"]


def test_claims_beyond_all_bounds_are_refused_or_only_counted_and_others_are_answered() -> None:
    with head() as team:
        team.tell(OWNER, node("gpu1", 4))
        assert team.answer(OTHER, "tell", seq=1, statement=many_claims(30_000))["code"] == 2
        assert team.answer(OTHER, "tell", seq=1, statement=many_claims(100_000))["code"] == 2
        assert team.result(OTHER, "tell", seq=1, statement=many_claims(2400))["seq"] == 1
        wait_until(lambda: len(team.result(OWNER, "view", kind="queue")["rows"]) == 500, "some take part")
        assert team.result(OWNER, "view", kind="queue")["more"] == {OTHER.pw_name: 1900}
        servers = [{**told(node("gpu1", 4))["servers"][0], "name": f"gpu{n}", "machine": f"m{n}"} for n in range(2400)]
        assert team.answer(OTHER, "tell", seq=2, statement={"now": 0, "servers": servers})["code"] == 2
