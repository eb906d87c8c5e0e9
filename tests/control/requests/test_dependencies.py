"""`--after`: which jobs are meant, what to wait for, and what is refused."""

from __future__ import annotations

import pytest

from gpq.control.dependencies import StillEnding, dependencies, open_dependencies, refuse_circle
from gpq.core.model.jobs import Dependency, Job, JobState, On
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.errors import NotFound, Refused, UsageError
from tests.support import builders
from tests.support.memory_store import MemoryStore


def job(number: int, *awaits: int, **more: object) -> Job:
    return builders.job(number, awaits=tuple(Dependency(JobId(name)) for name in awaits), **more)  # type: ignore[arg-type]


def snapshot(*jobs: Job) -> Snapshot:
    return Snapshot(jobs={each.id: each for each in jobs}, next_id=20)


def history(**ended: JobState) -> MemoryStore:
    past = MemoryStore()
    past.commit([], Snapshot(next_id=20), [job(int(n[1:]), state=state, ended_at=1.0) for n, state in ended.items()])
    return past


def test_words_name_jobs_and_how_they_must_end() -> None:
    state, past = snapshot(job(1), job(2), job(7)), history(j5=JobState.FAILED)
    assert dependencies(["7:any", "1-2,5:notok"], state, past) == (
        Dependency(JobId(1)),
        Dependency(JobId(2)),
        Dependency(JobId(5), On.NOTOK),
        Dependency(JobId(7), On.ANY),
    )
    assert dependencies(["1", "1:ok"], state, past) == (Dependency(JobId(1)),)


@pytest.mark.parametrize(
    ("words", "error", "told"),
    [
        (["1:maybe"], UsageError, "no such condition"),
        (["1:"], UsageError, "no such condition"),
        ([":ok"], UsageError, "no such condition"),
        ([""], UsageError, "no such condition"),
        (["all"], UsageError, "cannot be `all`"),
        (["1:ok", "1:any"], UsageError, "twice"),
        (["9"], NotFound, "no job 9"),
        (["nobody:any"], NotFound, "no job is named"),
    ],
)
def test_words_that_name_nothing_are_refused(words: list[str], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        dependencies(words, snapshot(job(1)), history())


def test_a_job_that_ended_as_required_is_not_waited_for() -> None:
    asked = (Dependency(JobId(1)), Dependency(JobId(2)), Dependency(JobId(3), On.NOTOK))
    past = history(j2=JobState.COMPLETED, j3=JobState.CANCELLED)
    assert open_dependencies(asked, snapshot(job(1)), lambda ids: past.history(ids=ids), past.removed_ids) == (
        Dependency(JobId(1)),
    )


@pytest.mark.parametrize(
    ("state", "on"), [(JobState.FAILED, On.OK), (JobState.TIMEOUT, On.OK), (JobState.COMPLETED, On.NOTOK)]
)
def test_a_job_that_ended_otherwise_is_refused(state: JobState, on: On) -> None:
    past = history(j1=state)
    with pytest.raises(Refused, match="job 1 "):
        open_dependencies([Dependency(JobId(1), on)], snapshot(), lambda ids: past.history(ids=ids), past.removed_ids)


def test_an_end_that_is_not_stored_yet_is_looked_up_again() -> None:
    with pytest.raises(StillEnding):
        open_dependencies([Dependency(JobId(1))], snapshot(), lambda ids: [], lambda ids: [])


def test_a_job_that_was_removed_is_refused() -> None:
    with pytest.raises(Refused, match="--after 1:ok: job 1 ended long ago and was removed") as refusal:
        open_dependencies([Dependency(JobId(1))], snapshot(), lambda ids: [], lambda ids: ids)
    assert refusal.value.hint == "leave it out of --after"


def test_no_job_waits_for_itself() -> None:
    state = snapshot(job(1), job(2, 1), job(3, 2), job(4))
    with pytest.raises(Refused, match="wait for itself"):
        refuse_circle(state.jobs[JobId(1)], [Dependency(JobId(3))], state)
    with pytest.raises(Refused, match="wait for itself"):
        refuse_circle(state.jobs[JobId(1)], [Dependency(JobId(1))], state)
    refuse_circle(state.jobs[JobId(4)], [Dependency(JobId(3)), Dependency(JobId(1))], state)
