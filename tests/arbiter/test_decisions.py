"""Several daemons and an arbiter, without processes: who gets which GPUs, and what nobody can bring about."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gpq.arbiter import arbiter as module
from gpq.arbiter.arbiter import Arbiter
from gpq.arbiter.roster import Member as Row
from gpq.arbiter.roster import Roster
from gpq.core.model.events import RequeueAsked
from gpq.core.model.snapshot import Config
from gpq.core.rounds.rounds import offer_of
from gpq.core.team.claims import Statement, statement
from gpq.core.team.grants import VALID, Grants
from gpq.errors import NotFound, Refused
from gpq.policies.registry import policy
from gpq.ports import Peer
from gpq.rpc.team_messages import Amend, Reasons, Take, TeamServers, Tell, View
from tests.support.builders import black_box, spec
from tests.support.laboratory import Laboratory, machine
from tests.support.teams import trained
from tests.support.waiting import wait_until

USERS = {"ana": 1001, "bob": 1002, "cat": 1003}


def peer(name: str) -> Peer:
    return Peer(USERS[name], 1, name, lambda: False)


class Head:
    """The arbiter of a laboratory. It can be ended and started again."""

    def __init__(self, lab: Laboratory, folder: Path, names: Iterable[str] = USERS) -> None:
        self.lab, self.folder = lab, str(folder)
        members = {name: Row([USERS[name]], admin=name == "ana") for name in names}
        Roster("lab", members=members).save(f"{folder}/roster.json")
        self.start()

    def start(self) -> None:
        self.arbiter = Arbiter(self.folder, policy("goodput"), Config(), lambda: self.lab.now)

    def answer(self, member: str, seq: int, news: Statement) -> Grants | None:
        self.arbiter.handle(Tell(seq=seq, statement=news), peer(member))
        self.arbiter.decide()
        grants = self.arbiter.handle(Take(), peer(member))
        assert isinstance(grants, Grants)
        return grants


Made = tuple[Laboratory, Head]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    lab = Laboratory({"gpu1": machine("1", 4), "gpu2": machine("2", 4)})
    return lab, Head(lab, tmp_path)


def after(made: Made, steps: int, *, until: Callable[[], bool] = lambda: False) -> int:
    """How many steps it took."""
    lab, head = made
    for number in range(steps):
        if until():
            return number
        lab.step(head.answer)
    return steps


def test_a_job_starts_on_the_devices_that_were_granted(made: Made) -> None:
    lab, _ = made
    ana = lab.join("ana")
    name = ana.submit(spec(), trained())
    assert after(made, 10, until=lambda: ana.gpus > 0) <= 2
    assert ana.refused == 0
    assert set(lab.locks.values()) == {("ana", name)}


def test_three_members_get_their_floors_although_the_first_had_all(made: Made) -> None:
    lab, _ = made
    ana, bob, cat = (lab.join(name) for name in USERS)
    for _ in range(4):
        ana.submit(spec(), trained())
    after(made, 100, until=lambda: ana.gpus == 8)
    assert ana.gpus == 8
    for member in (bob, cat):
        member.submit(spec(), trained())
    after(made, 300, until=lambda: min(bob.gpus, cat.gpus) >= 2)
    assert min(bob.gpus, cat.gpus) >= 2
    assert ana.gpus >= 2
    assert ana.refused + bob.refused + cat.refused == 0


def test_each_member_hears_first_of_themselves_then_of_those_who_have_gpus_or_wait(made: Made) -> None:
    lab, head = made
    ana, bob = lab.join("ana"), lab.join("bob")
    ana.submit(black_box(3), trained())
    for _ in range(2):
        bob.submit(black_box(4), trained())

    def heard(name: str) -> Grants:
        grants = head.arbiter.handle(Take(), peer(name))
        assert isinstance(grants, Grants)
        return grants

    after(made, 30, until=lambda: heard("ana").holdings[1:] == (("bob", 4, 4, 1),))
    assert heard("ana").holdings == (("ana", 3, 4, 0), ("bob", 4, 4, 1))
    assert heard("bob").holdings == (("bob", 4, 4, 1), ("ana", 3, 4, 0))
    assert heard("ana").gpus == 8
    before = heard("ana").round
    bob.submit(black_box(4), trained())
    after(made, 3)
    assert heard("ana").holdings[1].waiting == 2
    assert heard("ana").round > before, "a daemon that waits for news gets them"
    for number in (-(1 << 52), 1 << 52):  # however bob lies, ana's daemon believes the arbiter (`talk`)
        bob.lie = lambda news, number=number: replace(news, more=number)  # type: ignore[misc]
        after(made, 3)
        assert heard("ana").holdings[1].waiting in (0, 1 << 30)


def test_nobody_hears_of_a_team_of_one(tmp_path: Path) -> None:
    lab = Laboratory({"gpu1": machine("1", 4)})
    made = lab, Head(lab, tmp_path, ["ana"])
    ana = lab.join("ana")
    ana.submit(spec(), trained())
    after(made, 10, until=lambda: ana.gpus > 0)
    grants = made[1].arbiter.handle(Take(), peer("ana"))
    assert isinstance(grants, Grants)
    assert (grants.floor, grants.holdings) == (4, ())


def test_a_black_box_stays_where_it_is_and_counts_for_its_owner(made: Made) -> None:
    lab, _ = made
    ana, bob = lab.join("ana"), lab.join("bob")
    name = ana.submit(black_box(6), trained())
    after(made, 5)
    assert ana.gpus == 0  # no server has six
    name = ana.submit(black_box(4), trained())
    after(made, 5)
    before = ana.job(name).placement
    for _ in range(3):
        bob.submit(spec(), trained())
    after(made, 120)
    assert ana.job(name).placement == before
    assert bob.gpus == 4


def test_members_may_call_a_machine_by_other_names(made: Made) -> None:
    lab, _ = made
    ana = lab.join("ana", {"left": "gpu1", "right": "gpu2"})
    bob = lab.join("bob", {"right": "gpu1"})
    bob.submit(black_box(4), trained())
    after(made, 5, until=lambda: bob.gpus == 4)
    ana.submit(black_box(4), trained())
    after(made, 5, until=lambda: ana.gpus == 4)
    assert (ana.gpus, bob.gpus) == (4, 4)
    assert ana.snapshot.holders[0].nodes == ("right",)


def test_a_machine_that_one_member_alone_has_is_theirs(made: Made) -> None:
    lab, _ = made
    lab.machines = {**lab.machines, "desk": machine("desk", 2)}
    ana = lab.join("ana", {"gpu1": "gpu1", "gpu2": "gpu2"})
    bob = lab.join("bob", {"gpu1": "gpu1", "gpu2": "gpu2", "desk": "desk"})
    for _ in range(4):
        ana.submit(spec(), trained())
        bob.submit(spec(), trained())
    after(made, 200)
    on_desk = [place for place, (name, _) in lab.locks.items() if place[0] == "desk"]
    assert ana.gpus >= 4  # to invent machines wins nobody others' GPUs
    assert len(on_desk) == 2
    assert ana.gpus + bob.gpus == 10


def test_a_killed_arbiter_touches_no_job_and_the_queue_is_whole_after_one_round(made: Made) -> None:
    lab, head = made
    ana, bob = lab.join("ana"), lab.join("bob")
    ana.submit(black_box(4), trained())
    bob.submit(spec(), trained())
    after(made, 60)
    before = dict(lab.locks)
    for _ in range(30):
        lab.step(lambda member, seq, news: None)
    assert lab.locks == before
    epoch = head.arbiter.ledger.epoch
    head.start()
    assert head.arbiter.ledger.epoch > epoch
    after(made, 2)
    assert lab.locks == before
    assert {member for member, _ in head.arbiter.verdict.team.claims.values()} == {"ana", "bob"}


def test_without_an_arbiter_jobs_start_up_to_the_floor_and_none_grows(made: Made) -> None:
    lab, _ = made
    ana, bob = lab.join("ana"), lab.join("bob")
    for member in (ana, bob):
        member.submit(spec(up_to=2), trained())
    after(made, 60)
    assert (ana.gpus, bob.gpus) == (2, 2)
    assert (ana.term.floor, bob.term.floor) == (4, 4)
    for _ in range(6):
        ana.submit(black_box(1), trained())
    for _ in range(70):
        lab.step(lambda member, seq, news: None)
    assert (ana.gpus, bob.gpus) == (4, 2)


def test_what_a_dead_daemon_holds_is_given_to_nobody(made: Made) -> None:
    lab, _ = made
    ana, bob = lab.join("ana"), lab.join("bob")
    ana.submit(spec(), trained())
    after(made, 60)
    ana.is_up = False
    before = {place for place, (name, _) in lab.locks.items() if name == "ana"}
    assert before
    bob.submit(spec(), trained())
    after(made, 200)
    assert bob.refused == 0
    assert {place for place, (name, _) in lab.locks.items() if name == "ana"} == before
    assert bob.gpus == 8 - len(before)


def test_a_grant_that_replaces_a_lapsed_one_is_good_for_as_long(made: Made) -> None:
    lab, head = made
    ana = lab.join("ana")
    ana.round()
    ana.submit(black_box(2), trained())
    news = statement(ana.snapshot, offer_of(ana.snapshot)[0])
    changes, latest = [], ()
    for seq in range(60):
        lab.now += 1
        answer = head.answer("ana", seq, replace(news, now=lab.now))  # her daemon cannot start it
        assert answer
        if answer.grants != latest:
            changes.append(lab.now)
        latest = answer.grants
    assert len(changes) > 2
    assert all(later - earlier > VALID for earlier, later in pairwise(changes))


def test_an_answer_is_new_if_what_it_follows_from_is(made: Made) -> None:
    """A job that must start again where it was is told at once, although its devices are the same."""
    lab, head = made
    ana = lab.join("ana")
    name = ana.submit(black_box(2), trained())
    rounds, grants = [], []
    for _ in range(2):
        after(made, 3, until=lambda: ana.gpus > 0)
        assert ana.gpus == 2
        lab.step(head.answer)
        answer = head.arbiter.handle(Take(), peer("ana"))
        assert isinstance(answer, Grants)
        again = head.answer("ana", ana.seq, statement(ana.snapshot, offer_of(ana.snapshot)[0]))
        assert again
        assert again.round == answer.round
        rounds.append(answer.round)
        grants.append(answer.grants)
        ana.events.append(RequeueAsked(lab.now, name))
        lab.step(head.answer)
    assert rounds[0] != rounds[1]
    assert grants[0] == grants[1]


def test_who_waits_hears_who_has_more_than_their_floor(made: Made) -> None:
    lab, head = made
    ana, bob = lab.join("ana"), lab.join("bob")
    for _ in range(2):
        ana.submit(spec(), trained())
    after(made, 60)
    assert ana.gpus == 8
    name = bob.submit(black_box(2), trained())
    after(made, 2, until=lambda: name in bob.term.why)
    headline, *lines = bob.term.why[name]
    assert headline in ("waits for GPUs", "GPUs are being freed")
    reasons = head.arbiter.handle(View(kind="why", member="ana", job=1), peer("bob"))
    assert isinstance(reasons, Reasons)
    assert any("ana" in line for line in [*lines, *reasons.lines])
    with pytest.raises(NotFound, match="no job bob/99"):
        head.arbiter.handle(View(kind="why", member="bob", job=99), peer("ana"))


@pytest.mark.parametrize(
    "address", ["-oProxyCommand=x", "root@gpu1", "gpu 1", "a" * 300, "gpu1;id", "g\u00fc", "gpu1\n"]
)
def test_only_an_admin_says_where_a_server_is_and_only_in_the_shape_of_an_address(made: Made, address: str) -> None:
    lab, head = made
    ana, bob = lab.join("ana", {"a": "gpu1"}), lab.join("bob", {"b": "gpu1", "c": "gpu2"})

    def places() -> dict[str, tuple[str, int, int, list[str]]]:
        after(made, 2)
        answer = head.arbiter.handle(View(kind="servers"), peer("cat"))
        assert isinstance(answer, TeamServers)
        return {row.name: (row.address, row.port, row.free, row.members) for row in answer.rows}

    def at(address: str, port: int) -> Callable[[Statement], Statement]:
        return lambda news: replace(
            news, servers=tuple(replace(server, address=address, port=port) for server in news.servers)
        )

    bob.lie = at("evil", 22)
    ana.lie = at(address, 22)
    assert places() == {"a": ("", 0, 4, ["ana", "bob"]), "c": ("", 0, 4, ["bob"])}
    ana.lie = at("gpu1.lab", 65536)
    assert places()["a"][:2] == ("", 0)
    ana.lie = at("gpu1.lab", 2222)
    assert places()["a"][:2] == ("gpu1.lab", 2222)
    head.arbiter.roster = head.arbiter.roster.amendment("admin", "bob", 1, by="ana")
    assert places() == {"a": ("gpu1.lab", 2222, 4, ["ana", "bob"]), "c": ("evil", 22, 4, ["bob"])}


def test_who_holds_nothing_does_not_wait_until_the_jobs_of_a_borrower_have_settled(made: Made) -> None:
    lab, _ = made
    ana, bob = lab.join("ana"), lab.join("bob")
    for _ in range(4):
        ana.submit(spec(), trained())
    assert after(made, 20, until=lambda: ana.gpus >= 4) < 10
    bob.submit(spec(), trained())
    assert after(made, 20, until=lambda: bob.gpus > 0) <= 8
    assert ana.gpus >= 3


@pytest.mark.parametrize("action", ["remove", "pause"])
def test_who_is_removed_or_paused_does_not_wait_for_an_answer(
    made: Made, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon asks for the next answer all the time, and so hears the reason."""
    monkeypatch.setattr(module, "LONGEST_TAKE", 3600.0)
    lab, head = made
    lab.join("bob")
    lab.step(head.answer)
    answers = []
    request = Take(round=head.arbiter._answers["bob"].round, epoch=head.arbiter.ledger.epoch)
    taker = threading.Thread(target=lambda: answers.append(head.arbiter.handle(request, peer("bob"))), daemon=True)
    taker.start()
    wait_until(lambda: bool(head.arbiter._changed._waiters), "the member waits")  # type: ignore[attr-defined]
    head.arbiter.handle(Amend(action=action, member="bob"), peer("ana"))
    taker.join(60)
    assert answers
    with pytest.raises(Refused, match=r"bob|no member"):
        head.arbiter.handle(request, peer("bob"))
