"""Requests -> events or refusals, on snapshots: which request a job accepts in which state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from gpq.control import dependencies, job_requests, submission
from gpq.control.dependencies import StillEnding
from gpq.control.job_requests import changes, hold, release, requeue, requeue_ended
from gpq.control.selectors import is_selector, resolve, single
from gpq.control.submission import fits
from gpq.core.model.events import CancelAsked, HoldAsked, ReleaseAsked, RequeueAsked
from gpq.core.model.jobs import Dependency, DesiredState, Job, JobSpec, JobState, Level, Proof
from gpq.core.model.nodes import NodeState
from gpq.core.model.placements import FilesAt
from gpq.core.model.profile import Profile
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.errors import GpqError, NotFound, Refused, UsageError
from gpq.rpc import job_answers
from gpq.rpc.requests import AttributesMessage, ProofMessage, SpecMessage
from tests.support import builders
from tests.support.builders import DECLARED, black_box, node, on, spec
from tests.support.memory_store import MemoryStore

NOW = 100.0
SIGNAL = spec(level=Level.SIGNAL, up_to=1)


def queued(number: int, of: JobSpec, **more: object) -> Job:
    return builders.job(number, spec_=of, **more)  # type: ignore[arg-type]


def running(number: int, of: JobSpec, **more: object) -> Job:
    return queued(number, of, state=JobState.RUNNING, placement=on("a", 0), attempt=1, **more)


def snapshot(*jobs: Job, **more: object) -> Snapshot:
    return Snapshot(now=NOW, jobs={job.id: job for job in jobs}, next_id=10, **more)  # type: ignore[arg-type]


DECLARING = replace(queued(1, spec()).profile, declared=DECLARED)
HELD = queued(1, SIGNAL, state=JobState.HELD, wish=DesiredState.HOLD)


@pytest.mark.parametrize(
    ("judge", "job", "expected"),
    [
        (hold, queued(1, black_box()), HoldAsked),
        (hold, running(1, SIGNAL), HoldAsked),
        (hold, running(1, spec(), profile=DECLARING), HoldAsked),
        (hold, running(1, spec()), "has not declared itself"),
        (hold, running(1, black_box()), "cannot stop and restart"),
        (hold, HELD, str),
        (hold, running(1, SIGNAL, wish=DesiredState.HOLD), str),
        (hold, queued(1, SIGNAL, wish=DesiredState.CANCEL), "being cancelled"),
        (release, HELD, ReleaseAsked),
        (release, queued(1, SIGNAL, state=JobState.HELD), ReleaseAsked),
        (release, running(1, SIGNAL, wish=DesiredState.HOLD), ReleaseAsked),
        (release, running(1, SIGNAL), str),
        (release, queued(1, SIGNAL, wish=DesiredState.CANCEL), "being cancelled"),
        (requeue, running(1, SIGNAL), RequeueAsked),
        (requeue, HELD, RequeueAsked),
        (requeue, queued(1, SIGNAL), str),
        (requeue, running(1, SIGNAL, wish=DesiredState.REQUEUE), str),
        (requeue, running(1, black_box()), "cannot stop and restart"),
        (requeue, running(1, SIGNAL, wish=DesiredState.CANCEL), "being cancelled"),
    ],
)
def test_which_requests_a_job_accepts(judge: object, job: Job, expected: type | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(Refused, match=expected) as refusal:
            judge(job, NOW, "ada")  # type: ignore[operator]
        assert refusal.value.hint
    else:
        assert isinstance(judge(job, NOW, "ada"), expected)  # type: ignore[operator]


def test_a_hold_right_after_a_release_is_not_a_repetition() -> None:
    assert isinstance(hold(queued(1, SIGNAL, state=JobState.HELD), NOW, "ada"), HoldAsked)
    assert hold(queued(1, SIGNAL, state=JobState.HELD, wish=DesiredState.HOLD), NOW, "ada") == "job 1 is already held"


def test_a_cancel_is_requested_once() -> None:
    state = snapshot(queued(1, black_box()), queued(2, black_box(), wish=DesiredState.CANCEL))
    wanted = [JobId(number) for number in (1, 2, 3)]
    assert job_requests.cancel(state, wanted, NOW, "ada") == [CancelAsked(NOW, JobId(1), "ada")]


def test_among_others_a_job_that_cannot_change_gets_a_line_and_the_others_change() -> None:
    state = snapshot(queued(1, black_box()), running(2, black_box()))
    events, answer = changes(state, [JobId(1), JobId(2)], [], hold, NOW, "ada")
    assert events == [HoldAsked(NOW, JobId(1), "ada")]
    assert answer.jobs == [1]
    assert len(answer.unchanged) == 1
    with pytest.raises(Refused):
        changes(state, [JobId(2)], [], hold, NOW, "ada")


def over(number: int, state: JobState, *after: int, **more: object) -> Job:
    spec_ = black_box(after=tuple(Dependency(JobId(name)) for name in after))
    return queued(number, spec_, state=state, attempt=1, ended_at=NOW, **more)


def requeued(ended: list[Job], fresh: bool | None = None) -> tuple[list[RequeueAsked], job_answers.Changed]:
    def ready(job: Job, after: Sequence[Dependency]) -> tuple[Dependency, ...]:
        return dependencies.open_dependencies(
            after,
            snapshot(),
            lambda ids: [over(9, JobState.FAILED), over(3, JobState.CANCELLED)],
            lambda ids: [],
        )

    of_ended = requeue_ended(ended, fresh, ready)
    names = [job.id for job in ended]
    events, answer = changes(snapshot(), names, ended, requeue, NOW, "ada", of_ended)
    assert all(isinstance(event, RequeueAsked) for event in events)
    return events, answer  # type: ignore[return-value]


SAVED = FilesAt(NodeId("a"), "disk", True)


@pytest.mark.parametrize(
    ("job", "fresh", "anew", "said"),
    [
        (over(1, JobState.FAILED, files=SAVED, profile=Profile(checkpoint_step=384, checkpoints=1)), None, False,
            "resumes from its newest checkpoint, of step 384"),
        (over(1, JobState.TIMEOUT, files=SAVED), None, False, "resumes from its newest checkpoint"),
        (over(1, JobState.CANCELLED), None, False, "starts from the beginning"),
        (over(1, JobState.FAILED, files=replace(SAVED, proved=False)), None, False, "knows of no checkpoint"),
        (over(1, JobState.FAILED, files=SAVED), True, True, "starts from the beginning. What was in its checkpoint folder"
            " moves to 1.before-2"),
        (over(1, JobState.COMPLETED, files=SAVED), None, True, "With --no-fresh it resumes"),
        (over(1, JobState.COMPLETED, files=SAVED), False, False, "resumes from its newest checkpoint"),
    ],
)  # fmt: skip
def test_a_job_that_ended_says_where_it_goes_on(job: Job, fresh: bool | None, anew: bool, said: str) -> None:
    [event], answer = requeued([job], fresh)
    assert (event.past, event.fresh, answer.jobs) == (job, anew, [1])
    assert said in answer.messages[0]


def test_what_a_requeued_job_waits_for_runs_with_it_or_it_is_refused() -> None:
    first, second = over(1, JobState.FAILED), over(2, JobState.CANCELLED, 1)
    events, _ = requeued([second, first])
    assert [event.job for event in events] == [2, 1]
    lost, after_lost = over(3, JobState.CANCELLED, 9), over(4, JobState.CANCELLED, 3)
    with pytest.raises(Refused, match="job 9 failed"):
        requeued([lost])
    _, answer = requeued([first, lost, after_lost])
    assert answer.jobs == [1]  # job 4 must not run without job 3
    with pytest.raises(Refused, match="job 1 has ended"):
        changes(snapshot(), [JobId(1)], [first], hold, NOW, "ada")
    with pytest.raises(StillEnding):
        changes(snapshot(), [JobId(1)], [], requeue, NOW, "ada", requeue)


def test_a_job_that_was_removed_meanwhile_is_refused_at_once() -> None:
    first = over(1, JobState.FAILED)
    removed = {JobId(2)}.intersection
    with pytest.raises(NotFound, match="job 2 ended long ago and was removed"):
        changes(snapshot(), [JobId(2)], [], requeue, NOW, "ada", requeue, lambda ids: list(removed(ids)))
    _, answer = changes(
        snapshot(), [JobId(1), JobId(2)], [first], requeue, NOW, "ada", requeue, lambda ids: list(removed(ids))
    )
    assert (answer.jobs, answer.unchanged) == ([1], ["job 2 ended long ago and was removed"])


def test_a_rigid_script_with_checkpoints_may_be_restarted() -> None:
    rigid = builders.running(1, on("a", 0), spec_=spec(rigid=True))
    assert isinstance(requeue(rigid, NOW, "ada"), RequeueAsked)
    with pytest.raises(Refused, match="has not declared itself"):
        requeue(builders.running(1, on("a", 0), spec_=spec(rigid=True), declared=False), NOW, "ada")


@pytest.mark.parametrize(
    ("of", "refused"),
    [
        (black_box(4), False),
        (black_box(5), True),  # no single server has them
        (spec(gpus=6, up_to=6), False),  # a script may span servers
        (spec(gpus=7, up_to=9), True),
        (spec(gpus=1, up_to=900), False),  # the upper end is only a wish
        (black_box(1, gpu_type="a100"), False),
        (black_box(3, gpu_type="v100"), True),
        (black_box(1, min_gpu_memory_mib=50_000), True),
    ],
)
def test_a_job_that_would_never_start_is_refused_with_what_there_is(of: JobSpec, refused: bool) -> None:
    state = snapshot(nodes={"a": node("a", 4), "b": node("b", 2, type="V100")})
    if not refused:
        fits(state, of, ["a", "b"])
        return
    with pytest.raises(Refused) as refusal:
        fits(state, of, ["a", "b"])
    assert refusal.value.hint == "a has 4 x A100 (40000 MiB), b has 2 x V100 (40000 MiB)"


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (black_box(gpu_type="H100"), "there is no GPU of type 'H100'"),
        (spec(gpus=7), "there are fewer than 7 GPUs"),
        (spec(gpus=3, gpu_type="V100"), "there are fewer than 3 GPUs of type 'V100'"),
        (black_box(5, min_gpu_memory_mib=30000), "no server has 5 GPUs with 30000 MiB"),
    ],
)
def test_a_sentence_says_what_is_missing(of: JobSpec, said: str) -> None:
    with pytest.raises(Refused) as refusal:
        fits(snapshot(nodes={"a": node("a", 4), "b": node("b", 2, type="V100")}), of, ["a", "b"])
    assert refusal.value.message == said


def test_nothing_is_refused_for_lack_of_gpus_while_a_server_is_unknown() -> None:
    fits(snapshot(nodes={"a": node("a", 4)}), black_box(100), ["a", "b"])
    silent = node("b", 0, state=NodeState.UNREACHABLE)
    fits(snapshot(nodes={"a": node("a", 4), "b": silent}), black_box(100), ["a", "b"])


def test_a_spec_survives_the_round_trip() -> None:
    message = submission.message_of(black_box(2, name="x", env=(("A", "b"),), tags=("t",)))
    assert submission.message_of(submission.spec_of(message, "ana", 1000, 60.0)) == message
    noted = AttributesMessage(0o27, 3, {"nofile": (256, -1), "core": (0, 0)})
    message = structs.replace(message, attributes=noted)
    assert submission.message_of(submission.spec_of(message, "ana", 1000, 60.0)) == message


@pytest.mark.parametrize(
    "wrong",
    [
        AttributesMessage(0o1000, 0), AttributesMessage(-1, 0), AttributesMessage(0, 20), AttributesMessage(0, -21),
        AttributesMessage(0, 0, {"nofile": (2, 1)}), AttributesMessage(0, 0, {"nofile": (-1, 1)}),
        AttributesMessage(0, 0, {"nofile": (-2, 1)}), AttributesMessage(0, 0, {"no file": (1, 1)}),
    ],
)  # fmt: skip
def test_impossible_attributes_are_refused(wrong: AttributesMessage) -> None:
    with pytest.raises(UsageError, match="invalid"):
        submission.spec_of(SpecMessage(["true"], "/tmp", "black-box", attributes=wrong), "ana", 1000, 60.0)


def test_jobs_that_need_the_same_have_one_environment_and_others_another() -> None:
    script = SpecMessage(["a.py"], "/tmp", "script", python="/py", modules=["torch"], env={"PATH": "/bin", "LR": "1"})
    same = [
        structs.replace(script, argv=["b.py", "--x"], name="b", min_gpus=4),
        structs.replace(script, env={"PATH": "/bin", "LR": "2"}),  # which find no module
    ]
    others = [
        structs.replace(script, **changed)
        for changed in (
            {"cwd": "/"}, {"python": "/other"}, {"python_asked": True}, {"modules": []}, {"setup": "make"},
            {"env": {"PATH": "/sbin"}}, {"setup": "make", "env": {"LR": "2"}}, {"level": "black-box"},
        )
    ]  # fmt: skip
    first = submission.environment_of(script)
    assert {submission.environment_of(each) for each in same} == {first}
    assert len({first, *map(submission.environment_of, others)}) == len(others) + 1
    assert submission.spec_of(script, "ana", 1000, 1.0).environment == first


@pytest.mark.parametrize("wrong", [{"modules": ["a b"]}, {"modules": ["-c"]}, {"setup": "x" * 10_001}, {"setup": "\0"}])
def test_an_invalid_setup_or_module_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError) as refusal:
        submission.spec_of(SpecMessage(["a.py"], "/tmp", "script", **wrong), "ana", 1000, 1.0)  # type: ignore[arg-type]
    assert refusal.value.hint


def test_jobs_without_a_grace_get_the_daemons() -> None:
    asked = SpecMessage(["true"], "/tmp", "black-box")
    assert submission.spec_of(asked, "ana", 1000, 33.0).grace == 33.0
    assert submission.spec_of(structs.replace(asked, grace=5.0), "ana", 1000, 33.0).grace == 5.0


# -- selectors ---------------------------------------------------------------------------------------------------------


def past(*jobs: Job) -> MemoryStore:
    store = MemoryStore()
    store.commit([], snapshot(), [replace(job, state=JobState.COMPLETED, ended_at=float(job.id)) for job in jobs])
    return store


LIVE = snapshot(*[queued(number, black_box(name=name)) for number, name in ((7, "a"), (8, "twin"), (9, "twin"))])
PAST = past(*[queued(number, black_box(name=name)) for number, name in ((3, "old"), (4, "old"), (5, "resnet-50"))])


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        (["7"], [7]),
        (["3"], [3]),
        (["@"], [9]),
        (["@~2"], [7]),
        (["4-8"], [4, 5, 7, 8]),
        (["9,3-4"], [9, 3, 4]),
        (["9", "9,@"], [9]),
        (["a"], [7]),
        (["twin"], [8, 9]),
        (["old"], [4]),
        (["all"], [7, 8, 9]),
    ],
)
def test_selectors_name_jobs(selectors: list[str], expected: list[int]) -> None:
    assert resolve(selectors, LIVE, PAST) == expected


def test_of_several_jobs_the_newest_is_meant() -> None:
    assert single("twin", LIVE, PAST) == 9


@pytest.mark.parametrize(
    ("selector", "error", "said"),
    [
        ("1", NotFound, "there is no job 1"),
        ("10", NotFound, "there is no job 10"),
        ("@~20", NotFound, "no such job"),
        ("0", NotFound, "there is no job 0"),
        ("8-7", UsageError, "range end is below its start"),
        ("1-999999999", UsageError, "at most"),
        ("", UsageError, "names no job"),
        ("a b", UsageError, "names no job"),
        ("\x1b[2J", UsageError, "names no job"),
        ("resnet50", NotFound, "no job is named"),
    ],
)
def test_a_word_that_names_no_job_is_an_error_with_a_hint(selector: str, error: type[GpqError], said: str) -> None:
    with pytest.raises(error, match=said) as raised:
        resolve([selector], LIVE, PAST)
    assert raised.value.hint
    assert "\x1b" not in raised.value.message


def test_a_misspelt_name_lists_similar_ones() -> None:
    with pytest.raises(NotFound) as raised:
        resolve(["resnet50"], LIVE, PAST)
    assert "resnet-50" in raised.value.hint


@pytest.mark.parametrize("word", ["all", "@", "@~3", "42", "3-7"])
def test_words_with_a_meaning_cannot_be_names(word: str) -> None:
    assert is_selector(word)


PROOF = ProofMessage("abc", ["split"], ["resize"], "two replicas: differs", "2026-11-27T10:00:00Z")
SCRIPT = SpecMessage(["/x/train.py"], "/x", "script", proof=PROOF)


def test_the_result_of_gpq_check_survives_the_round_trip() -> None:
    made = submission.spec_of(SCRIPT, "ana", 1000, 60.0)
    assert made.proof == Proof("abc", ("split",), ("resize",), "two replicas: differs", "2026-11-27T10:00:00Z")
    assert submission.message_of(made).proof == PROOF


@pytest.mark.parametrize(
    "proof",
    [
        structs.replace(PROOF, same=["everything"]),
        structs.replace(PROOF, same=["resize"]),
        structs.replace(PROOF, message="x" * 10_000),
        structs.replace(PROOF, program="a\x1b"),
    ],
)
def test_an_invalid_result_of_gpq_check_is_refused(proof: ProofMessage) -> None:
    with pytest.raises(UsageError, match="invalid result of gpq check"):
        submission.spec_of(structs.replace(SCRIPT, proof=proof), "ana", 1000, 60.0)
    with pytest.raises(UsageError, match="invalid result of gpq check"):
        submission.spec_of(structs.replace(SCRIPT, level="black-box"), "ana", 1000, 60.0)


def test_config_accepts_suspicions_of_a_script_by_its_path_or_its_files_name() -> None:
    programs = {"train.py": ["own-next"], "/a/train.py": ["own-count"], "other.py": ["own-end"]}
    here = spec(argv=("./train.py",), cwd="/a", accept=("own-next", "forgotten-copy"))
    assert submission.accepting(here, programs).accept == ("own-next", "forgotten-copy", "own-count")
    assert submission.accepting(here.having(cwd="/b"), programs).accept == ("own-next", "forgotten-copy")
    command = black_box(argv=("train.py",))
    assert submission.accepting(command, programs) is command
