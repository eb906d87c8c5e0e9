"""What `gpq why` says of users and their floors: who may not borrow, who borrows, and when another user gets theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.control.reader import Reader
from gpq.core.explain.explain import explain as reasons
from gpq.core.model.accounts import Standing
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId
from gpq.policies.registry import policy
from tests.support import teams
from tests.support.builders import black_box, job, node, on, running, snapshot, spec
from tests.support.explanations import explain

BOB = running(8, on("a", 4, 5, 6, 7), spec_=spec(user="bob"))


def why(here: Snapshot, number: int) -> str:
    answer = explain(here, None, here.jobs[JobId(number)])
    return " | ".join([*answer.reasons, *answer.remedies])


def boxes(*devices: int) -> list[Job]:
    return [running(1 + device, on("a", device), spec_=black_box()) for device in devices]


def test_a_job_for_which_its_user_may_not_borrow_says_so_and_how_it_could_start() -> None:
    here = snapshot(node("a", 8), *boxes(0, 1, 2), job(5, spec_=black_box(2)))
    full = replace(here, jobs={**here.jobs, BOB.id: BOB})
    line = "it cannot give GPUs back, so it may use only ana's floor of 4 GPUs. Other such jobs need 3 of these"
    remedy = "`gpq edit 5 --time` with at most 2 h, or `gpq edit 5 --background`, lets it use GPUs beyond the floor"
    assert line in why(full, 5)
    assert "at once" not in why(full, 5), "a GPU is free, but not for this job"
    assert why(full, 5).endswith(f"it may start when jobs 1, 2, 3 end, because gpq may not move them | {remedy}")
    assert "floor" not in why(here, 5), "no other user has something to run"
    for way_out in (black_box(2, time_limit=7200.0), black_box(2, background=True), black_box()):
        changed = replace(full, jobs={**full.jobs, JobId(5): job(5, spec_=way_out)})
        assert "cannot give GPUs back" not in why(changed, 5)


def test_earlier_jobs_of_the_user_come_first_and_other_types_do_not_count() -> None:
    waiting = [job(number, spec_=black_box(2, gpu_type="A100")) for number in (5, 6)]
    here = snapshot(node("a", 4), node("h", 2, type="H100"), *waiting, replace(BOB, placement=on("a", 2)))
    assert "cannot give GPUs back" not in why(here, 5)
    assert "ana's floor of 2 GPUs of type A100. Other such jobs need 2 of these" in why(here, 6)
    larger = replace(here, jobs={**here.jobs, JobId(5): job(5, spec_=black_box(3))})
    assert "only ana's floor of 2 GPUs of type A100. Other such jobs need 2 of these" in why(larger, 5)
    assert "it may start when" not in why(larger, 5), "no end of a job makes the floor larger"


@pytest.mark.parametrize(
    ("short", "words"),
    [
        (0.0, "ana has 1 of the 4 GPUs of their floor |"),
        (120.0, "gets what their jobs can use of the rest within 11 m, because the policy has left them short for 2 m"),
        (600.0, "gpq now gives them what their jobs can use of it, although the policy would not"),
    ],
)
def test_a_waiting_job_says_who_borrows_and_when_the_floor_of_its_user_comes(short: float, words: str) -> None:
    borrower = replace(BOB, placement=on("a", 1, 2, 3, 4, 5, 6, 7))
    mine = [running(1, on("a", 0)), job(2)]
    here = snapshot(node("a", 8), *mine, borrower, now=1000.0, interval=30.0)
    here = replace(here, standings={"ana": Standing(short=short)}, standings_at=1000.0)
    borrows = "user bob has 7 GPUs, 3 of them beyond the floor of 4. These go back when another user needs them"
    assert f"{borrows} | user ana has 1 of the 4 GPUs of their floor" in why(here, 2)
    assert words in why(here, 2)
    assert "floor" not in why(replace(here, jobs={JobId(1): mine[0], JobId(2): mine[1]}), 2)
    background = job(2, spec_=spec(background=True))
    assert "floor" not in why(replace(here, jobs={**here.jobs, JobId(2): background}), 2)


def test_a_user_with_a_full_floor_hears_how_much_that_is() -> None:
    here = snapshot(node("a", 8), running(1, on("a", 0, 1, 2, 3)), job(2), BOB)
    assert "| user ana has 4 GPUs, and their floor is 4 GPUs |" in why(here, 2)


def test_the_floor_comes_no_later_than_announced() -> None:
    """Bob's job is first in the queue and takes what Ana's second job needs."""
    profile = teams.trained()
    jobs = {
        JobId(number): job(number, spec_=spec(user=user, gpus=count, up_to=count), profile=profile)
        for number, (user, count) in enumerate([("bob", 7), ("ana", 1), ("ana", 3)], 1)
    }
    config = Config(floor_patience=300.0)
    team = teams.Team(teams.servers(1, 8), jobs, policy("fifo"), config=config)
    promises = []
    while JobId(3) not in team.placements:
        team.round()
        here = team.snapshot_now()
        if here.jobs[JobId(3)].placement is None:
            answer = reasons(here, None, here.jobs[JobId(3)])
            promises += [team.now + one.facts["wait"] for one in answer.reasons if one.code == "floor-later"]
        assert team.now < 2000.0, "the floor never came"
    assert promises
    assert team.now - config.interval <= min(promises)
    assert team.gpus("ana") == 4


def test_a_running_job_says_how_its_user_compares_with_the_floor() -> None:
    mine = running(1, on("a", 0, 1, 2))
    here = snapshot(node("a", 8), mine, replace(BOB, placement=on("a", 3, 4, 5, 6, 7)))
    line = "user bob has 5 GPUs, 1 of them beyond the floor of 4. These go back when another user needs them"
    assert line in why(here, 8)
    assert "user ana has 3 of the 4 GPUs of their floor" in why(here, 1)
    even = snapshot(node("a", 8), running(1, on("a", 0, 1, 2, 3)), BOB)
    alone = snapshot(node("a", 8), mine)
    for other in (even, alone):
        assert "floor" not in why(other, 1)


def test_a_user_row_has_the_floor_and_what_is_borrowed_by_weight() -> None:
    weights = (("ana", 3.0),)
    here = snapshot(
        node("a", 8), running(1, on("a", 0)), replace(BOB, placement=on("a", 1, 2, 3)), user_weights=weights
    )
    rows = Reader(here, None, 0.0).users()
    assert [(row.user, row.fair_share, row.floor, row.borrowed) for row in rows] == [
        ("ana", 0.75, 6, 0),
        ("bob", 0.25, 2, 1),
    ]
    [alone] = Reader(snapshot(node("a", 8), running(1, on("a", 0)), user_weights=weights), None, 0.0).users()
    assert (alone.fair_share, alone.floor, alone.borrowed) == (1.0, None, 0)
