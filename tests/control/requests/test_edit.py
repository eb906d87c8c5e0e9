"""`gpq edit`: what may change in which state, and what gpq says about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpq.control import job_requests
from gpq.control.edit import check, judge
from gpq.core.freedoms import with_habits
from gpq.core.model.events import Edited, HoldAsked, RequeueAsked
from gpq.core.model.jobs import Dependency, DesiredState, Job, JobState, Level, Seat
from gpq.core.model.profile import Habit
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.errors import GpqError, Refused, UsageError
from gpq.outward import Notify
from gpq.rpc.requests import Edit
from tests.support import builders
from tests.support.builders import DECLARED, black_box, node, on, spec

PENDING = builders.job(1, spec_=black_box())
RIGID = builders.running(1, on("a", 0), spec_=black_box())
ELASTIC = builders.running(1, on("a", 0), spec_=spec(up_to=4))
YOUNG = builders.running(1, on("a", 0), spec_=spec(up_to=4), declared=False)
NOTIFY = Notify({"slack": "json://localhost"}, default=("desktop",), on=("fail",))


def asked(job: Job, after: Sequence[Dependency] | None = None, **request: Any) -> Edited | str:
    """The verdict on `job`."""
    edit = Edit(["1"], **request)
    check(edit)
    state = Snapshot(now=5.0, jobs={job.id: job, JobId(2): builders.job(2)}, nodes={node("a").id: node("a")}, next_id=3)
    verdict = judge(edit, after, state, lambda ids: [], lambda ids: [], ["a"], NOTIFY)(job, 5.0, "ana")
    assert isinstance(verdict, Edited | str)
    return verdict


@pytest.mark.parametrize("job", [PENDING, RIGID, ELASTIC, YOUNG])
def test_name_priority_and_limits_change_in_every_state(job: Job) -> None:
    event = asked(job, changes={"name": "new", "priority": 5, "time_limit": 60.0, "retries": 2}, tags=["x"])
    assert isinstance(event, Edited)
    assert event.said == "tags none -> x, name none -> new, priority 0 -> 5, retries 0 -> 2, time limit none -> 60 s"
    assert event.spec == job.spec.having(name="new", priority=5, time_limit=60.0, retries=2, tags=("x",))


@pytest.mark.parametrize(
    ("job", "changes", "told"),
    [
        (RIGID, {"min_gpus": 2, "max_gpus": 2}, "cannot be resized"),
        (YOUNG, {"max_gpus": 2}, "has not declared itself"),
        (ELASTIC, {"begin": 100.0}, "--begin only takes effect when a job starts"),
        (ELASTIC, {"gpu_type": "A100"}, "--gpu-type only takes effect"),
        (RIGID, {"min_gpu_memory_mib": 10}, "--min-gpu-memory only takes effect"),
        (replace(PENDING, wish=DesiredState.CANCEL), {"priority": 1}, "is being cancelled"),
        (PENDING, {"min_gpus": 9, "max_gpus": 9}, "there are fewer than 9 GPUs|no server has 9"),
    ],
)
def test_a_change_that_a_job_cannot_make_is_refused(job: Job, changes: dict[str, object], told: str) -> None:
    with pytest.raises(Refused, match=told):
        asked(job, changes=changes)


def test_gpus_of_a_job_that_can_be_resized_change_while_it_runs() -> None:
    event = asked(ELASTIC, changes={"min_gpus": 2, "max_gpus": 3})
    assert isinstance(event, Edited)
    assert event.said == "gpus 1-4 -> 2-3"


def test_a_held_job_may_change_in_everything() -> None:
    job = replace(PENDING, state=JobState.HELD)
    event = asked(job, changes={"min_gpus": 2, "max_gpus": 2, "begin": 1e9, "gpu_type": "A100"})
    assert isinstance(event, Edited)
    assert (event.spec.min_gpus, event.spec.max_gpus, event.spec.begin, event.spec.gpu_type) == (2, 2, 1e9, "A100")


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({}, "nothing to change"),
        ({"changes": {"argv": ["rm"]}}, "`argv` of a job cannot be changed"),
        ({"changes": {"uid": 0}}, "`uid` of a job cannot be changed"),
        ({"changes": {"priority": "high"}}, "Expected `int`"),
        ({"changes": {"name": "../x"}}, "invalid job name"),
        ({"changes": {"time_limit": -1.0}}, "--time must be above 0"),
        ({"changes": {"min_gpus": 1, "max_gpus": 4}}, "gets a fixed number"),
        ({"tags": ["a b"]}, "invalid tag"),
        ({"array_limit": 4}, "is not part of an array"),
        ({"changes": {"notify_on": ["end"]}}, "job 1 notifies nobody"),
        ({"changes": {"notify_on": ["never"], "notify": ["slack"]}}, "`never` is nothing to be notified of"),
        ({"changes": {"notify": ["nobody-here"]}}, "no target `nobody-here`"),
        ({"changes": {"notify": ["json://x/secret"]}}, "a URL is not the name of a target"),
        ({"changes": {"notify": "slack"}}, "Expected `array | null`"),
        ({"array_limit": -1}, "--array-limit -1"),
    ],
)
def test_an_invalid_edit_is_refused(request_: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        asked(PENDING, **request_)


def test_an_edit_to_the_present_value_says_so_and_changes_nothing() -> None:
    assert asked(PENDING, changes={"priority": 0}, untags=["x"]) == "job 1 already has these values"


def test_tags_are_added_and_taken_away() -> None:
    job = replace(PENDING, spec=PENDING.spec.having(tags=("a", "b")))
    event = asked(job, tags=["c", "a"], untags=["b"])
    assert isinstance(event, Edited)
    assert event.spec.tags == ("a", "c")


def test_what_it_waits_for_is_replaced() -> None:
    event = asked(PENDING, after=(Dependency(JobId(2)),), changes={"after": ["2"]})
    assert isinstance(event, Edited)
    assert (event.awaits, event.spec.after) == ((Dependency(JobId(2)),),) * 2
    assert event.said == "after none -> 2:ok"
    waits = replace(PENDING, spec=event.spec, awaits=event.awaits)
    freed = asked(waits, after=(), changes={"after": []})
    assert isinstance(freed, Edited)
    assert (freed.awaits, freed.said) == ((), "after 2:ok -> none")


def test_the_limit_of_an_array_changes() -> None:
    job = replace(PENDING, spec=PENDING.spec.having(seat=Seat(JobId(9), 0, 3, 1)))
    event = asked(job, array_limit=2)
    assert isinstance(event, Edited)
    assert event.said == "array limit 1 -> 2"


def test_an_edit_keeps_what_the_user_did_not_name() -> None:
    full = spec(
        level=Level.SCRIPT, env=(("A", "1"),), tags=("t",), setup="source x", environment="digest", modules=("torch",), 
        python="/p", requeue_on_lost=90.0, grace=7.0, code="a" * 64, code_cwd="src", batch_size=64, max_batch_size=128,
        begin=50.0,
    )  # fmt: skip
    job = builders.job(1, spec_=full, profile=replace(PENDING.profile, declared=DECLARED))
    event = asked(job, changes={"priority": 1})
    assert isinstance(event, Edited)
    assert event.spec == full.having(priority=1)


@pytest.mark.parametrize("job", [ELASTIC, YOUNG])
def test_only_scripts_accept_suspicions_and_in_every_state(job: Job) -> None:
    event = asked(job, changes={"accept": ["own-next"]})
    assert isinstance(event, Edited)
    assert (event.spec.accept, event.said) == (("own-next",), "accept none -> own-next")
    with pytest.raises(UsageError, match="is not the code of a habit"):
        asked(job, changes={"accept": ["Own next"]})
    with pytest.raises(UsageError, match="--accept is for training scripts"):
        asked(RIGID, changes={"accept": ["own-next"]})


@pytest.mark.parametrize("job", [PENDING, RIGID, ELASTIC, YOUNG])
def test_the_notification_targets_can_change_in_every_state(job: Job) -> None:
    event = asked(job, changes={"notify": ["slack", "mailto:ana@lab.example"]})
    assert isinstance(event, Edited)
    assert (event.spec.notify, event.spec.notify_on) == (("slack", "mailto:ana@lab.example"), ("fail",))
    assert event.said == "notify none -> slack,mailto:ana@lab.example, notify on none -> fail"
    told = replace(job, spec=event.spec)
    less = asked(told, changes={"notify_on": ["start", "end"]})
    assert isinstance(less, Edited)
    assert less.spec == event.spec.having(notify_on=("start", "end"))
    silent = asked(told, changes={"notify": []})
    assert isinstance(silent, Edited)
    assert silent.spec == job.spec
    default = asked(told, changes={"notify": None, "notify_on": None})
    assert isinstance(default, Edited)
    assert default.spec == job.spec.having(notify=("desktop",), notify_on=("fail",))


def test_a_target_removed_from_the_file_blocks_no_other_change() -> None:
    job = replace(PENDING, spec=PENDING.spec.having(notify=("gone",), notify_on=("end",)))
    event = asked(job, changes={"priority": 1})
    assert isinstance(event, Edited)
    assert event.spec == job.spec.having(priority=1)
    with pytest.raises(UsageError, match="no target `gone`"):
        asked(job, changes={"notify": ["gone", "desktop"]})


NOT_RESIZED = [
    (YOUNG, "wait for its first steps, then edit it again", ("cancel",)),
    (
        builders.running(1, on("a", 0), spec_=spec(rigid=True)),
        "`gpq hold 1`, then edit and release it",
        ("cancel", "wait"),
    ),
    (RIGID, "`gpq cancel 1` and submit it again", ("wait",)),
    (
        builders.running(1, on("a", 0), spec_=spec(level=Level.SIGNAL, up_to=1), declared=False),
        "`gpq hold 1`, then edit and release it",
        ("cancel", "wait"),
    ),
]


@pytest.mark.parametrize(("job", "way", "never"), NOT_RESIZED)
@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING, JobState.STOPPING])
def test_a_refusal_names_what_works_for_this_kind_of_job(
    job: Job, way: str, never: tuple[str, ...], state: JobState
) -> None:
    """For the number of GPUs, and for options that only take effect when a job starts."""
    for changes in ({"min_gpus": 2, "max_gpus": 2}, {"begin": 100.0}, {"gpu_type": "A100"}):
        with pytest.raises(Refused) as caught:
            asked(replace(job, state=state), changes=changes)
        hint = caught.value.hint
        assert (way in hint) or (job is YOUNG and "wait for its first steps" in hint and "`gpq hold 1`" in hint)
        assert not any(word in hint for word in never), hint


def test_a_user_who_follows_the_hint_can_edit_the_job() -> None:
    with pytest.raises(Refused, match="has not declared itself"):
        asked(YOUNG, changes={"min_gpus": 2, "max_gpus": 2})
    declared = replace(YOUNG, profile=replace(YOUNG.profile, declared=DECLARED))
    event = asked(declared, changes={"min_gpus": 2, "max_gpus": 2})
    assert isinstance(event, Edited)
    held = asked(replace(PENDING, spec=YOUNG.spec, state=JobState.HELD), changes={"begin": 100.0})
    assert isinstance(held, Edited)


def test_every_error_has_a_hint() -> None:
    with pytest.raises(GpqError) as caught:
        asked(RIGID, changes={"min_gpus": 2, "max_gpus": 2})
    assert caught.value.hint


STRICT = replace(
    ELASTIC,
    profile=with_habits(ELASTIC.profile, (Habit("own-epochs", ("resize",), "its own epochs", "use job.epochs()"),)),
)


def test_a_resize_that_the_loop_does_not_survive_is_refused_while_it_runs() -> None:
    with pytest.raises(Refused, match=r"would not resume exactly: its own epochs \(own-epochs\)") as refusal:
        asked(STRICT, changes={"min_gpus": 2, "max_gpus": 4})
    assert "use job.epochs()" in str(refusal.value.hint)
    assert isinstance(asked(STRICT, changes={"priority": 3}), Edited)
    waits = replace(STRICT, state=JobState.PENDING, placement=None)
    assert isinstance(asked(waits, changes={"min_gpus": 2, "max_gpus": 4}), Edited), "its user may, where it waits"


def test_a_hold_or_requeue_of_such_a_job_works_and_says_what_is_lost() -> None:
    state = Snapshot(now=5.0, jobs={STRICT.id: STRICT, JobId(2): replace(ELASTIC, id=JobId(2))}, next_id=3)
    for verb, kind in ((job_requests.hold, HoldAsked), (job_requests.requeue, RequeueAsked)):
        events, answer = job_requests.changes(state, [JobId(1), JobId(2)], [], verb, 5.0, "ana")
        assert [type(event) for event in events] == [kind, kind]
        assert answer.jobs == [1, 2]
        first, second = answer.warnings
        assert first.startswith(
            "job 1: it has a checkpoint, but does not resume exactly after a restart: its own epochs"
        )
        assert second == "fix for own-epochs (which takes away resize): use job.epochs()"
