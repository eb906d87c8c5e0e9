"""One submission becomes an array: what each of its jobs runs, and how they are named."""

from __future__ import annotations

import pytest

from gpq.control.selectors import is_selector, resolve, single
from gpq.control.submission import submission_events
from gpq.control.submit import elements
from gpq.core.model.events import JobsRemoved
from gpq.core.model.jobs import JobSpec, JobState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.state.apply_events import fold
from gpq.errors import NotFound, UsageError
from gpq.rpc.requests import ArrayMessage, fill_placeholders
from tests.support import builders
from tests.support.builders import black_box
from tests.support.memory_store import MemoryStore


def queue(*specs: JobSpec | ArrayMessage) -> Snapshot:
    """Submitted one after the other: arrays of `echo {index} {lr}`."""
    state = Snapshot()
    for one in specs:
        made = [one] if isinstance(one, JobSpec) else list(elements(ECHO, one, JobId(state.next_id)))
        state = fold(state, submission_events(state, made, (), 0.0, on_hold=False)).snapshot
    return state


ECHO = black_box(argv=("echo", "{index}", "{lr}", "{other}"), env=(("OUT", "run-{lr}"), ("PATH", "/bin")), name="echo")


def test_each_job_of_an_array_runs_what_its_index_and_parameters_say() -> None:
    one, two = elements(ECHO, ArrayMessage([3, 7], [{"lr": "0.1"}, {"lr": "0.2"}], 1), JobId(42))
    assert one.argv == ("echo", "3", "0.1", "{other}")
    assert dict(two.env) == {
        "GPQ_ARRAY_ID": "42", "GPQ_ARRAY_INDEX": "7", "GPQ_ARRAY_SIZE": "2", "GPQ_SWEEP_lr": "0.2",
        "OUT": "run-0.2", "PATH": "/bin",
    }  # fmt: skip
    assert two.seat is not None
    assert (two.seat.array, two.seat.index, two.seat.size, two.seat.limit, two.seat.params) == (
        42,
        7,
        2,
        1,
        (("lr", "0.2"),),
    )


def test_each_job_of_an_array_has_its_own_done_file() -> None:
    spec = ECHO.having(done_file="runs/{index}-{lr}/done", resume_argv=("--from", "{index}"))
    made = list(elements(spec, ArrayMessage([3, 7], [{"lr": "0.1"}, {"lr": "0.2"}], 1), JobId(42)))
    assert [one.done_file for one in made] == ["runs/3-0.1/done", "runs/7-0.2/done"]
    assert [one.resume_argv for one in made] == [("--from", "3"), ("--from", "7")]


def test_a_value_is_put_in_once_and_never_read_as_a_name() -> None:
    assert fill_placeholders("{a}{b} {c} {{a}}", {"a": "{b}", "b": "x"}) == "{b}x {c} {{b}}"


def test_variables_of_the_shell_stay_as_they_are() -> None:
    text = "${lr} $lr ${lr:-1} {lr} ${x[{lr}]} $${lr} ${index}"
    spec = ECHO.having(argv=(text,), resume_argv=(text,), done_file=text, env=(("OUT", text),))
    [one] = elements(spec, ArrayMessage([3], [{"lr": "1e-3"}]), JobId(42))
    filled_in = "${lr} $lr ${lr:-1} 1e-3 ${x[1e-3]} $${lr} ${index}"
    assert (one.argv, one.resume_argv, one.done_file) == ((filled_in,), (filled_in,), filled_in)
    assert dict(one.env)["OUT"] == filled_in


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (ArrayMessage([]), "invalid array of 0 jobs"),
        (ArrayMessage(list(range(10_001))), "invalid array of 10001 jobs"),
        (ArrayMessage([1, 1]), "must be different"),
        (ArrayMessage([-1]), "from 0"),
        (ArrayMessage([1], limit=-1), "%-1"),
        (ArrayMessage([0, 1], [{"a": "1"}]), "2 indices with 1 sets"),
        (ArrayMessage([0], [{"index": "1"}]), "invalid name in the sweep"),
        (ArrayMessage([0], [{"a b": "1"}]), "invalid name in the sweep"),
        (ArrayMessage([0], [{"a": "\0"}]), "NUL"),
    ],
)
def test_an_invalid_array_is_refused(array: ArrayMessage, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        list(elements(ECHO, array, JobId(1)))


def test_the_id_of_an_array_is_its_own_and_names_all_its_jobs() -> None:
    state = queue(black_box(), ArrayMessage([0, 1, 5]), black_box())
    assert sorted(state.jobs) == [1, 3, 4, 5, 6]
    assert state.next_id == 7
    past = MemoryStore()
    assert resolve(["2"], state, past) == [3, 4, 5]
    assert resolve(["2_1"], state, past) == [4]
    assert resolve(["2_1-9,6"], state, past) == [4, 5, 6]
    assert resolve(["1-3"], state, past) == [1, 3]
    assert resolve(["echo"], state, past) == [3, 4, 5]
    assert resolve(["@"], state, past) == [6]
    assert resolve(["@"], queue(ArrayMessage([0, 1])), past) == [2, 3]
    assert resolve(["@~1"], state, past) == [5]


def test_ended_jobs_still_belong_to_their_array() -> None:
    state = queue(ArrayMessage([0, 1, 2]))
    past = MemoryStore()
    ended = builders.job(2, spec_=state.jobs[JobId(2)].spec, state=JobState.COMPLETED, ended_at=5.0)
    live = Snapshot(jobs={name: job for name, job in state.jobs.items() if name != 2}, next_id=state.next_id)
    past.commit([], live, [ended])
    assert resolve(["1"], live, past) == [2, 3, 4]
    assert resolve(["1_0"], live, past) == [2]
    swept = live.jobs[JobId(3)].spec.having(name="sweep")
    others = Snapshot(jobs={JobId(4): live.jobs[JobId(4)]}, next_id=state.next_id)
    past.commit([], others, [builders.job(3, spec_=swept, state=JobState.COMPLETED, ended_at=5.0)])
    assert resolve(["sweep"], others, past) == [2, 3, 4]  # a name, too, means the whole array


def test_an_array_is_found_by_the_jobs_that_are_left_of_it() -> None:
    state = queue(ArrayMessage([0, 1, 2]), black_box())
    past = MemoryStore()
    ended = [builders.job(name, spec_=state.jobs[JobId(name)].spec, ended_at=5.0) for name in (2, 3, 4)]
    live = Snapshot(jobs={JobId(5): state.jobs[JobId(5)]}, next_id=state.next_id)
    past.commit([], live, ended)
    past.commit([JobsRemoved(9.0, (JobId(2), JobId(4)))], live)
    assert resolve(["1"], live, past) == [3]
    assert resolve(["1_0-2"], live, past) == [3]
    for word, told in (
        ("2", "`2`: ended long ago and was removed"),
        ("1_0", "no such job"),
        ("9", "there is no job 9"),
    ):
        with pytest.raises(NotFound, match=told):
            resolve([word], live, past)
    past.commit([JobsRemoved(9.0, (JobId(3),))], live)
    for word in ("1", "1_0", "1_0-2", "1-4"):
        with pytest.raises(NotFound, match=f"`{word}`: ended long ago and was removed"):
            resolve([word], live, past)
    with pytest.raises(NotFound, match="there is no job 0"):
        resolve(["0"], live, past)


def test_a_single_job_of_an_array_must_be_named() -> None:
    state, past = queue(ArrayMessage([0, 1])), MemoryStore()
    assert single("1_1", state, past) == 3
    assert single("echo", state, past) == 3
    for many in ("1", "1_0-1"):
        with pytest.raises(UsageError, match="array of 2 jobs"):
            single(many, state, past)


@pytest.mark.parametrize("word", ["1_7", "5_0", "2_0"])
def test_a_missing_index_is_not_found(word: str) -> None:
    with pytest.raises(NotFound):
        resolve([word], queue(ArrayMessage([0, 1])), MemoryStore())


def test_a_name_cannot_look_like_an_element() -> None:
    assert is_selector("42_3")
    assert not is_selector("run_3")
