"""Reports against hand-computed windows. Sums by user, job, server and day agree, and match what the jobs say."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.core.accounting.report import BY, Figures, Report, over_time, quantile, report
from gpq.core.accounting.usage import KINDS, Journal, Record, RecordSpec, Spell, read, record_of
from gpq.core.model import events as facts
from gpq.core.model.accounts import Account, AttemptAccount, Saving
from gpq.core.model.jobs import JobState, StopReason
from gpq.core.model.placements import BatchOrder, Exit, Placement
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.state.apply_events import fold
from tests.support.builders import black_box, node, on, snapshot, spec
from tests.support.examples import examples

A, B = NodeId("a"), NodeId("b")
NOW = 1000.0


def record(
    number: int, user: str, began: float, ended: float | None, state: str = "completed", **more: object
) -> Record:
    account = Account(waited=more.pop("waited", None), rho=more.pop("rho", None))  # type: ignore[arg-type]
    return Record(JobId(number), RecordSpec(user), began, JobState(state), ended, account=account)


def spell(number: int, began: float, ended: float, gpus: int = 1, where: str = "a", **more: object) -> Spell:
    return Spell(JobId(number), bool(more.pop("again", False)), ((NodeId(where), gpus),), began, ended, **more)  # type: ignore[arg-type]


def made(records: list[Record], spells: list[Spell], by: str = "user", edges: tuple[float, ...] = (0.0, NOW)) -> Report:
    return report({each.id: each for each in records}, Journal(tuple(spells)), edges, by, NOW, Config())


def test_a_journal_is_read_as_spells_with_what_restarts_took() -> None:
    spread = Placement((*on("a", 0, 1).parts, *on("b", 0).parts))
    one, two = JobId(1), JobId(2)
    events = [
        facts.Launched(10.0, one, 1, spread, BatchOrder()),
        facts.Held(11.0, two),
        facts.StopSent(40.0, one, 1, StopReason.RESIZE),
        facts.StopSent(42.0, one, 1, StopReason.RESIZE),
        facts.Stopped(50.0, one, Exit(0, stopped=True, ended_at=48.0), tally=AttemptAccount(15.0, 60.0)),
        facts.Released(60.0, two),
        facts.Launched(70.0, one, 2, on("a", 0), BatchOrder()),
        facts.Failed(90.0, one, Exit(1), tally=AttemptAccount(75.0, None, warm=True)),
        facts.Launched(95.0, two, 1, on("a", 0), BatchOrder()),
        facts.Held(96.0, JobId(3)),
    ]
    found = read(events, 100.0, {(two, 1): AttemptAccount(97.0, 2.0)})
    first, second, third = found.spells
    assert first == Spell(one, False, ((A, 2), (B, 1)), 10.0, 48.0, 60.0, ((40.0, 48.0),), tally=first.tally)
    tally = AttemptAccount(75.0, None, warm=True)
    assert second == Spell(one, True, ((A, 1),), 70.0, 90.0, None, ((70.0, 75.0),), failed=True, tally=tally)
    assert third == Spell(two, False, ((A, 1),), 95.0, 100.0, 2.0, tally=AttemptAccount(97.0, 2.0))
    assert found.holds == {two: ((11.0, 60.0),), JobId(3): ((96.0, 100.0),)}


def test_a_shrink_or_a_growth_that_was_not_measured_saves_nothing() -> None:
    for promised, measured in ((0.6, 0.5), (1.8, None), (None, None)):
        assert AttemptAccount(promised=promised, measured=measured).saving(60.0) == Saving()


def test_a_journal_from_before_tallies_has_the_times_and_no_costs() -> None:
    ends = [facts.Stopped(20.0, JobId(1), Exit(0, stopped=True)), facts.Cancelled(40.0, JobId(1))]
    starts = [facts.Launched(at, JobId(1), n, on("a", 0), BatchOrder()) for at, n in ((10.0, 1), (30.0, 2))]
    first, second = read([starts[0], ends[0], starts[1], ends[1]], 50.0, {}).spells
    assert (first.restarting, second.restarting, second.again) == ((), (), True)


def test_only_time_inside_the_window_counts() -> None:
    jobs = [record(1, "ana", 0.0, 300.0, waited=5.0), record(2, "bo", 0.0, 900.0, "failed", waited=7.0)]
    grown = AttemptAccount(180.0, warm=True, promised=1.8, measured=1.5)
    spells = [
        spell(1, 100.0, 300.0, 2, worth=200.0),
        spell(2, 0.0, 120.0, worth=60.0, failed=True),
        spell(2, 150.0, 900.0, again=True, restarting=((150.0, 180.0),), tally=grown),
    ]
    found = made(jobs, spells, edges=(110.0, 210.0))
    ana, bo = found.rows["ana"], found.rows["bo"]
    assert (ana.held, ana.worth, ana.known, ana.efficiency) == (200.0, 100.0, 200.0, 0.5)
    assert (bo.held, bo.worth, bo.known, bo.failed) == (70.0, pytest.approx(5.0), 10.0, 10.0)
    assert (bo.restarts, bo.warm, bo.restarting, bo.waits, bo.ended) == (1, 1, 30.0, [], {})
    assert (len(ana.jobs), len(found.total.jobs), found.total.held) == (1, 2, 270.0)
    assert (bo.growths.promised, bo.growths.measured) == (pytest.approx(48.0), 30.0)  # of 60 s
    whole = made(jobs, spells)
    assert whole.rows["bo"].ended == {JobState.FAILED: 1}
    assert (whole.rows["ana"].waits, sorted(whole.total.waits)) == ([5.0], [5.0, 7.0])


def test_fair_shares_split_held_gpus_equally_among_present_users() -> None:
    """ana: 4 GPUs from 0 to 100. bo waits from 50 and has 4 from 100 to 200. ana has left at 100."""
    jobs = [record(1, "ana", 0.0, 100.0), record(2, "bo", 50.0, 200.0)]
    spells = [spell(1, 0.0, 100.0, 4), spell(2, 100.0, 200.0, 4)]
    first, second = over_time(
        {each.id: each for each in jobs}, Journal(tuple(spells)), (0.0, 100.0, 200.0), NOW, Config()
    )
    assert (first["ana"].held, first["ana"].fair) == (400.0, 300.0)
    assert (first["bo"].held, first["bo"].fair) == (0.0, 100.0)
    assert (second["bo"].held, second["bo"].fair, "ana" in second) == (400.0, 400.0, False)
    assert made(jobs, spells).rows["bo"].fair == 500.0


def test_a_held_job_has_no_share_and_twenty_jobs_are_one_user() -> None:
    jobs = [record(n, "ana", 0.0, 100.0) for n in range(1, 21)] + [record(21, "bo", 0.0, 100.0)]
    journal = Journal((spell(1, 0.0, 100.0, 2),), {JobId(21): ((0.0, 60.0),)})
    by_id = {each.id: each for each in jobs}
    [piece] = over_time(by_id, journal, (0.0, 100.0), NOW, Config())
    assert (piece["ana"].fair, piece["bo"].fair) == (pytest.approx(160.0), pytest.approx(40.0))
    [piece] = over_time(by_id, journal, (0.0, 100.0), NOW, Config(by_user=False))
    assert piece["bo"].fair == pytest.approx(2 * 40 / 21)


def test_weights_count_in_fair_shares_while_their_users_are_present() -> None:
    """4 GPUs for 200 s. bo counts 3 times as much as ana, from 50 to 150."""
    jobs = [record(1, "ana", 0.0, 200.0), record(2, "bo", 50.0, 150.0)]
    by_id, weights = {each.id: each for each in jobs}, Config(user_weights=(("bo", 3.0),))
    first, second = over_time(by_id, Journal((spell(1, 0.0, 200.0, 4),)), (0.0, 100.0, 200.0), NOW, weights)
    assert (first["ana"].fair, first["bo"].fair) == (250.0, 150.0)
    assert (second["ana"].fair, second["bo"].fair) == (250.0, 150.0)


def test_a_job_that_waits_for_something_else_has_no_share_until_then() -> None:
    """bo's job was submitted at 0, to begin at 60, and waited 10 for GPUs. carl's has waited 25 until now and has none
    yet."""
    jobs = [
        record(1, "ana", 0.0, 100.0, waited=0.0),
        record(2, "bo", 0.0, 100.0, waited=10.0),
        record(3, "carl", 0.0, None, "pending", waited=25.0),
    ]
    by_id = {each.id: each for each in jobs}
    journal = Journal((spell(1, 0.0, 100.0, 6), spell(2, 70.0, 100.0, 0)))
    [piece] = over_time(by_id, journal, (0.0, 100.0), 100.0, Config())
    fair = {user: each.fair for user, each in piece.items()}
    assert fair == {
        "ana": pytest.approx(6 * 60 + 3 * 15 + 2 * 25),
        "bo": pytest.approx(3 * 15 + 2 * 25),
        "carl": pytest.approx(2 * 25),
    }


def test_finish_time_fairness_is_counted_in_bars() -> None:
    jobs = [record(n, "ana", 0.0, 9.0, rho=rho) for n, rho in enumerate((0.4, 0.9, 0.99, 1.0, 1.3, 7.0, None))]
    found = made(jobs, [])
    assert found.rho_counts == (1, 0, 2, 1, 1, 1)
    assert (len(found.total.rhos), max(found.total.rhos)) == (6, 7.0)
    assert quantile(found.total.rhos, 0.5) == pytest.approx(0.995)


def test_nothing_is_an_empty_report() -> None:
    for by in BY:
        found = made([], [], by, (0.0, 10.0, 20.0))
        assert not found.rows
        assert (found.total.held, found.total.worth, found.total.waits) == (0.0, None, [])
        assert found.pieces == ({}, {})


def test_quantiles() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([1.0, 2.0, 4.0, 3.0], 0.5) == 2.5


def life(state: Snapshot, draw: random.Random, number: int, user: str) -> tuple[Snapshot, list[facts.Event]]:
    """One job from its submission to its state at NOW, by the rules of the fold."""
    job, at = JobId(number), draw.uniform(0, 500)
    journal: list[facts.Event] = []
    asked = black_box(user=user, retries=3) if draw.random() < 0.5 else spec(user=user, retries=3)

    def happen(event: facts.Event) -> None:
        nonlocal state
        folded = fold(state, [event])
        journal.extend(folded.journal)
        ended.extend(folded.ended)
        state = folded.snapshot

    ended: list[object] = []
    happen(facts.Submitted(at, job, asked))
    attempt = 0
    while at < NOW and not ended:
        at += draw.uniform(1, 100)
        choice = draw.random()
        if choice < 0.15:
            happen(facts.Held(at, job))
            at += draw.uniform(1, 50)
            happen(facts.Released(at, job))
        elif choice < 0.2:
            happen(facts.Cancelled(at, job))
        else:
            attempt += 1
            placement = draw.choice([on("a", 0), on("a", 0, 1), Placement((*on("a", 2).parts, *on("b", 0, 1).parts))])
            happen(facts.Launched(at, job, attempt, placement, BatchOrder()))
            for name, _ in placement.parts:
                happen(facts.Started(at + 1, job, attempt, name))
            at += draw.uniform(2, 200)
            if draw.random() < 0.6:
                happen(facts.StopSent(at, job, attempt, StopReason.PREEMPT))
            for name, _ in placement.parts:
                end = Exit(draw.choice([0, 1]), stopped=draw.random() < 0.4, ended_at=at - 0.5)
                happen(facts.Exited(at, job, attempt, name, end))
    return state, journal


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6), st.lists(st.floats(1.0, 2000.0), max_size=4))
def test_sums_agree_for_every_key_and_match_the_jobs(seed: int, cuts: list[float]) -> None:
    draw = random.Random(seed)
    state = snapshot(node("a"), node("b"))
    journal: list[facts.Event] = []
    for number in range(1, 8):
        state, told = life(state, draw, number, draw.choice("abc"))
        journal += told
    events = sorted((e for e in journal if isinstance(e, KINDS)), key=lambda e: e.at)
    records = dict(everybody(journal))
    found = read(events, 5000.0, {})
    edges = tuple(sorted({0.0, 5000.0, *cuts}))
    for each in records.values():
        mine = [one for one in found.spells if one.job == each.id]
        assert sum((one.ended - one.began) * one.gpus for one in mine) == pytest.approx(each.service)
        cost = sum((b - a) * one.gpus for one in mine for a, b in one.restarting)
        assert cost == pytest.approx(each.account.restart_cost or 0.0)
        assert sum((one.ended - one.began) * one.gpus for one in mine if one.failed) == pytest.approx(
            each.account.failed
        )
    totals = []
    for by in BY:
        rows = report(records, found, edges, by, 5000.0, Config())
        assert_adds_up(rows.rows.values(), rows.total, by)
        totals.append(rows.total)
        for piece in rows.pieces:
            held, fair = (sum(getattr(each, name) for each in piece.values()) for name in ("held", "fair"))
            assert fair == pytest.approx(held), "shares of what is held add up to it"
    assert all(one == two for one, two in pairwise(totals))
    assert totals[0].held == pytest.approx(sum(each.service for each in records.values()))


def everybody(journal: list[facts.Event]) -> list[tuple[JobId, Record]]:
    """Each job as the fold of its own events has it."""
    found = []
    for number in {e.job for e in journal if isinstance(e, facts.Submitted)}:
        folded = fold(snapshot(), [e for e in journal if getattr(e, "job", None) == number and not concluded(e)])
        [job] = [*folded.ended, *folded.snapshot.jobs.values()]
        found.append((job.id, record_of(job)))
    return found


def concluded(event: facts.Event) -> bool:
    """Does the fold add it on its own?"""
    return isinstance(event, (facts.Stopped, facts.Succeeded, facts.Failed, facts.TimeLimitReached)) or (
        isinstance(event, facts.Cancelled) and event.tally is not None
    )


def assert_adds_up(rows: object, total: Figures, by: str) -> None:
    figures = list(rows)  # type: ignore[call-overload]
    for name in ("held", "known", "restarting", "failed"):
        assert sum(getattr(each, name) for each in figures) == pytest.approx(getattr(total, name)), (by, name)
    assert sum(each.worth or 0.0 for each in figures) == pytest.approx(total.worth or 0.0)
    if by != "server":  # whose restarts may span several days, and on which no job ends
        assert sum(each.restarts for each in figures) == total.restarts
        for name in ("waits", "rhos"):
            assert sum(len(getattr(each, name)) for each in figures) == len(getattr(total, name)), (by, name)
        assert sum(sum(each.ended.values()) for each in figures) == sum(total.ended.values())
