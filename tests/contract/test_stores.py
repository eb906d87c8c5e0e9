"""One suite for two stores: what the loop and the readers may rely on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpq.core.accounting.usage import record_of
from gpq.core.model.accounts import Account, MeanShare, Standing
from gpq.core.model.events import (
    Edited,
    Failed,
    JobsRemoved,
    Launched,
    LinkMeasured,
    NodeDrained,
    NodeReserved,
    NodeSeen,
    NodeUndrained,
    NodeUnreserved,
    Profiled,
    Submitted,
    Succeeded,
)
from gpq.core.model.jobs import Dependency, Job, JobSpec, JobState
from gpq.core.model.nodes import Link, Node, Reservation
from gpq.core.model.placements import BatchOrder, Exit, Placement
from gpq.core.model.profile import Noise, Prior, Profile, ProfileRow
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.ports import Wanted
from gpq.store import past, rows
from gpq.store.sqlite import SqliteStore
from tests.support.memory_store import MemoryStore

AnyStore = MemoryStore | SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyStore]:
    made: AnyStore = MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path / "state" / "gpq.db"))
    yield made
    made.close()


def spec(name: str = "", user: str = "ada") -> JobSpec:
    return JobSpec(argv=("true",), cwd="/", user=user, uid=1000, name=name)


def submit(store: AnyStore, *specs: JobSpec) -> list[Job]:
    """Jobs with the next ids, committed."""
    state = store.load()
    jobs = [Job(JobId(state.next_id + place), each, submitted_at=float(place)) for place, each in enumerate(specs)]
    store.commit(
        [Submitted(job.submitted_at, job.id, job.spec) for job in jobs],
        replace(state, jobs={**state.jobs, **{job.id: job for job in jobs}}, next_id=state.next_id + len(jobs)),
    )
    return jobs


def end(store: AnyStore, job: Job, at: float, state: JobState = JobState.COMPLETED) -> Job:
    """The ended job, committed."""
    before = store.load()
    over = replace(job, state=state, ended_at=at, exit=Exit(0))
    left = {name: each for name, each in before.jobs.items() if name != job.id}
    store.commit([Succeeded(at, job.id, Exit(0))], replace(before, jobs=left, now=at), [over])
    return over


def test_a_new_store_is_empty_and_its_first_job_gets_id_1(store: AnyStore) -> None:
    state = store.load()
    assert (dict(state.jobs), state.next_id, store.ended_count(), store.events(), store.history()) == ({}, 1, 0, [], [])


def test_removed_jobs_are_gone_with_their_events_and_it_remembers_which(store: AnyStore) -> None:
    jobs = submit(store, *[spec() for _ in range(6)])
    for job in jobs[:5]:
        end(store, job, 10.0 + job.id)
    amended = replace(store.history(ids=[JobId(4)])[0], attempt=7)
    removal = JobsRemoved(20.0, tuple(map(JobId, (1, 2, 4))))
    edited = Edited(20.0, JobId(4), amended.spec, past=amended)
    store.commit([removal, edited], store.load(), [amended])
    assert [job.id for job in store.history()] == [5, 4, 3], "job 4 changed in the same pass"
    assert store.removed_ids([JobId(name) for name in range(1, 9)]) == [1, 2]
    assert store.ended_count() == 3
    assert {event.job for event in store.events()} == {3, 4, 5, 6}  # type: ignore[union-attr]
    assert store.ids(Wanted(until=20.0, quiet_since=15.0, limit=1)) == [3], "4 was edited at 20, and 5 ended at 15"
    assert store.ids(Wanted(until=20.0, quiet_since=13.0)) == []
    assert list(store.load().jobs) == [6]


def test_a_job_that_a_new_one_comes_after_in_the_same_pass_is_not_removed(store: AnyStore) -> None:
    for job in submit(store, spec(), spec()):
        end(store, job, 10.0)
    assert not store.has_removed()
    state = store.load()
    newer = Job(JobId(3), spec().having(after=(Dependency(JobId(1)),)), submitted_at=20.0)
    removal, submission = JobsRemoved(20.0, (JobId(1), JobId(2))), Submitted(20.0, newer.id, newer.spec)
    store.commit([removal, submission], replace(state, jobs={newer.id: newer}, next_id=4))
    assert (store.removed_ids([JobId(1), JobId(2)]), store.ended_count()) == ([2], 1)
    assert [job.id for job in store.history()] == [1]
    assert store.has_removed()


def test_what_was_committed_is_loaded(store: AnyStore) -> None:
    [job] = submit(store, spec("digits"))
    assert store.load().jobs == {job.id: job}
    assert store.load().next_id == 2


def test_every_field_of_a_job_survives(store: AnyStore) -> None:
    [job] = submit(store, spec().having(env=(("A", "ä \n"),), argv=("a", "b c"), time_limit=3.5))
    full = replace(
        job,
        placement=Placement(((NodeId("a"), (DeviceId("a-0"),)),)),
        state=JobState.RUNNING,
        exits=((NodeId("a"), Exit(None, signal=9, oom=True)),),
        order=BatchOrder(3, 64, 1),
        profile=Profile(metrics=(("loss", 0.5),)),
        notices=("one", "two"),
    )
    store.commit([], replace(store.load(), jobs={full.id: full}))
    assert store.load().jobs[full.id] == full


def test_a_metric_that_is_not_finite_survives(store: AnyStore) -> None:
    [job] = submit(store, spec())
    diverged = replace(job, profile=Profile(metrics=(("loss", math.nan), ("norm", math.inf))))
    store.commit([], replace(store.load(), jobs={job.id: diverged}))
    end(store, diverged, at=9.0)
    [kept] = store.history()
    values = dict(kept.profile.metrics)
    assert math.isnan(values["loss"])
    assert values["norm"] == math.inf


def test_priors_are_kept_unchanged_and_dropped_ones_are_gone(store: AnyStore) -> None:
    one = Prior((ProfileRow(1, 2, 32, 0.1, 0.2, 40.0, "A100"),), Noise(1.0, 8.0, 640), 2)
    store.commit([], replace(store.load(), priors={"a": one, "b": Prior()}, now=1.0))
    store.commit([], replace(store.load(), priors={"a": replace(one, max_replicas=4), "c": one}, now=2.0))
    submit(store, spec())
    assert store.load().priors == {"a": replace(one, max_replicas=4), "c": one}


def test_an_ended_job_leaves_the_state_and_enters_history(store: AnyStore) -> None:
    first, second = submit(store, spec("a"), spec("b"))
    over = end(store, first, at=5.0)
    assert store.load().jobs == {second.id: second}
    assert store.history() == [over]
    assert store.ended_count() == 1


def test_a_renamed_job_is_found_by_its_new_name(store: AnyStore) -> None:
    [job] = submit(store, spec("digits"))
    before = store.load()
    edited = replace(job, spec=job.spec.having(name="letters"))
    said = Edited(1.0, job.id, edited.spec, said="name digits -> letters")
    store.commit([said], replace(before, jobs={job.id: edited}))
    over = end(store, edited, 2.0)
    assert store.history(names=["letters"]) == [over]
    assert store.history(names=["digits"]) == []
    assert store.events(kinds=[Edited]) == [said]


def test_a_job_cannot_leave_without_an_outcome(store: AnyStore) -> None:
    [job] = submit(store, spec())
    with pytest.raises(ValueError, match="without an outcome"):
        store.commit([], replace(store.load(), jobs={}))
    assert store.load().jobs == {job.id: job}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [3, 2, 1]),
        ({"limit": 2}, [3, 2]),
        ({"limit": 0}, []),
        ({"ids": [1, 3, 9]}, [3, 1]),
        ({"ids": []}, []),
        ({"names": ["b"]}, [2]),
        ({"user": "bob"}, [3]),
        ({"states": [JobState.FAILED]}, [1]),
        ({"states": ["completed"], "user": "ada"}, [2]),
    ],
)
def test_history_returns_only_matches_the_latest_first(
    store: AnyStore, query: dict[str, object], expected: list[int]
) -> None:
    a, b, c, _ = submit(store, spec("a"), spec("b"), spec("c", user="bob"), spec("live"))
    end(store, a, at=10.0, state=JobState.FAILED)
    end(store, b, at=20.0)
    end(store, c, at=30.0)
    history: Callable[..., list[Job]] = store.history
    assert [job.id for job in history(**query)] == expected


def test_the_journal_is_kept_in_order_and_found_by_job_and_kind(store: AnyStore) -> None:
    one, two = submit(store, spec(), spec())
    launched = Launched(3.0, one.id, 1, Placement(((NodeId("a"), (DeviceId("a-0"),)),)), BatchOrder(), "starts")
    store.commit([launched], store.load())
    failed = Failed(4.0, two.id, Exit(1, note="no such file"))
    store.commit([failed], store.load())
    assert store.events() == [Submitted(0.0, one.id, one.spec), Submitted(1.0, two.id, two.spec), launched, failed]
    assert store.events(job=one.id) == [Submitted(0.0, one.id, one.spec), launched]
    assert store.events(kinds=(Failed, Launched)) == [launched, failed]
    assert store.events(limit=1) == [failed]
    assert store.events(job=one.id, kinds=(Failed,)) == []


def test_reports_of_servers_and_training_are_not_journaled(store: AnyStore) -> None:
    [job] = submit(store, spec())
    seen = [NodeSeen(1.0, Node(NodeId("a"))), Profiled(1.0, job.id, 1, offset=10)]
    store.commit(seen, store.load())
    assert len(store.events()) == 1


def test_reservations_are_remembered_and_their_numbers_not_reused(store: AnyStore) -> None:
    held = Reservation(4, NodeId("a"), 10.0, 20.0, (DeviceId("GPU-1"),), "bo", "ada")
    here = replace(store.load(), reservations={4: held}, next_reservation=5)
    store.commit([NodeReserved(1.0, held)], here)
    assert (dict(store.load().reservations), store.load().next_reservation) == ({4: held}, 5)
    if isinstance(store, SqliteStore):
        again = SqliteStore(store.path)
        assert (dict(again.load().reservations), again.load().next_reservation) == ({4: held}, 5)
        assert again.events() == [NodeReserved(1.0, held)]
        again.commit([NodeUnreserved(2.0, 4)], replace(again.load(), reservations={}))
        again.close()
        third = SqliteStore(store.path)
        assert (dict(third.load().reservations), third.load().next_reservation) == ({}, 5)
        third.close()


def test_drained_nodes_are_remembered(store: AnyStore) -> None:
    node = NodeId("a")
    store.commit([NodeDrained(1.0, node, "repair", "ada")], replace(store.load(), drained={node: "repair"}))
    assert dict(store.load().drained) == {node: "repair"}
    if isinstance(store, SqliteStore):
        again = SqliteStore(store.path)
        assert dict(again.load().drained) == {node: "repair"}
        assert again.events() == [NodeDrained(1.0, node, "repair", "ada")]
        again.commit([NodeUndrained(2.0, node)], replace(again.load(), drained={}))
        again.close()
        third = SqliteStore(store.path)
        assert not third.load().drained
        third.close()


def test_measurements_between_servers_are_remembered(store: AnyStore) -> None:
    known = {
        (NodeId("a"), NodeId("b")): Link(1e-3, 1.2e8, "gloo", 5.0),
        (NodeId("a"), NodeId("c")): Link(1e-5, 9e9, "nccl"),
    }
    event = LinkMeasured(5.0, (NodeId("a"), NodeId("b")), 1e-3, 1.2e8)
    store.commit([event], replace(store.load(), links=known))
    assert store.load().links == known
    if isinstance(store, SqliteStore):
        again = SqliteStore(store.path)
        assert again.load().links == known
        assert again.events() == [event]
        again.close()


def test_unreadable_measurements_are_dropped_and_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert rows.decode_links("[]") == {}
    for text in ("", "{}", '[["a", "b"]]', '[["a", "b", {"latency": "x"}]]'):
        assert rows.decode_links(text) == {}
    assert "gpq doctor" in caplog.text


# -- accounts ----------------------------------------------------------------------------------------------------------


def test_records_match_the_jobs_and_filters_match_history(store: AnyStore) -> None:
    jobs = submit(store, spec("a", "ada"), spec("b", "bo"), spec("a", "bo"), spec("c", "ada"))
    full = replace(
        jobs[0], service=7.0, account=Account(waited=3.0, worth=2.0, rho=0.9), profile=Profile(checkpoints=3)
    )
    over = [end(store, job, at=float(at)) for at, job in zip((5, 6, 7), (full, *jobs[1:3]), strict=True)]
    assert store.records(Wanted()) == [record_of(job) for job in reversed(over)]

    def found(wanted: Wanted) -> list[int]:
        assert store.count(wanted) == len(store.records(replace(wanted, limit=None)))
        return [record.id for record in store.records(wanted)]

    assert found(Wanted(user="bo")) == [3, 2]
    assert found(Wanted(names=["a"])) == [3, 1]
    assert found(Wanted(ids=[JobId(2), JobId(4)], names=["a"])) == [3, 2, 1], "these, and those with these names"
    assert found(Wanted(states=["failed"])) == []
    assert found(Wanted(since=6.0)) == [3, 2]
    assert found(Wanted(until=6.0)) == [1]
    assert found(Wanted(limit=2)) == [3, 2]
    assert found(Wanted(limit=0)) == []


def test_a_record_whose_loss_diverged_is_read(store: AnyStore) -> None:
    [job] = submit(store, spec())
    end(store, replace(job, profile=Profile(metrics=(("loss", math.nan),))), at=1.0)
    assert [record.id for record in store.records(Wanted())] == [1]


def test_the_journal_is_read_in_order_by_kind_and_time_at_any_length(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "PAGE", 3)
    jobs = submit(store, *(spec() for _ in range(10)))
    for at, job in enumerate(jobs):
        end(store, job, at=float(at))
    assert [event.job for event in store.journal([Succeeded])] == list(range(1, 11))  # type: ignore[union-attr]
    assert len(list(store.journal([Submitted, Succeeded], since=4.0))) == 12
    assert [record.id for record in store.records(Wanted())] == list(range(10, 0, -1))
    assert [record.id for record in store.records(Wanted(limit=7))] == list(range(10, 3, -1))
    assert list(store.journal([Failed])) == []


def test_a_long_read_lets_others_take_their_turn(store: AnyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "PAGE", 1)
    for at, job in enumerate(submit(store, spec("a"), spec("b"))):
        end(store, job, at=float(at))
    reading = store.journal([Succeeded])
    assert next(reading).at == 0.0
    [third] = submit(store, spec("c"))
    end(store, third, at=2.0)
    assert len(store.history()) == store.ended_count() == 3
    assert len(list(reading)) >= 1


def test_average_shares_are_kept(store: AnyStore) -> None:
    [job] = submit(store, spec())
    kept = {job.id: MeanShare(120.0, 60.0)}
    store.commit([], replace(store.load(), means_kept=kept))
    assert store.load().means == store.load().means_kept == kept


def test_standings_are_kept_until_nobody_has_one(store: AnyStore) -> None:
    for standings in ({"ana": Standing(0.1 + 0.2, 0.0), "bö": Standing(0.0, 600.0)}, {}):
        store.commit([], replace(store.load(), standings=standings, standings_at=1e9 / 3))
        assert store.load().standings == standings
