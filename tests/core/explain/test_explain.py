"""Each reason for which a job can wait, and what would change it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.control.sentences import Texts
from gpq.core.model.accounts import RestartTimes
from gpq.core.model.jobs import DesiredState, Job, JobSpec, JobState, StopReason
from gpq.core.model.nodes import DeviceState, NodeState
from gpq.core.model.placements import Exit, Placement, Shape
from gpq.core.model.profile import Noise, Profile, ProfileRow
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.placement import place
from gpq.core.rounds.motives import motives
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot, spec
from tests.support.explanations import explain


def why(here: Snapshot, number: int = 1, allocation: dict[JobId, Shape] | None = None) -> Texts:
    return explain(here, allocation, here.jobs[JobId(number)])


def said(answer: Texts) -> str:
    return " | ".join([answer.headline, *answer.reasons, *answer.remedies])


@pytest.mark.parametrize(
    ("waiting", "words"),
    [
        (job(1, wish=DesiredState.CANCEL), "cancelled"),
        (job(1, state=JobState.HELD), "gpq release 1"),
        (job(1, spec_=black_box(9)), "the largest server has 4"),
        (job(1, spec_=spec(gpu_type="H100")), "the servers have: A100 40000 MiB"),
        (job(1, spec_=spec(min_gpu_memory_mib=80_000)), "80000 MiB"),
        (job(1, not_before=30.0, exit=Exit(1, note="exit code 1")), "tries again in 30 s"),
        (job(1, spec_=black_box(2)), "in use by job 2 (ana, 3 GPUs)"),
    ],
)
def test_a_waiting_job_says_what_it_waits_for(waiting: Job, words: str) -> None:
    assert words in said(why(snapshot(node("a"), waiting, running(2, on("a", 0, 1, 2)))))


def test_a_gpu_out_of_use_is_named_with_its_reason() -> None:
    machine = node("a", 1)
    broken = replace(machine.devices[0], state=DeviceState.FOREIGN, reason="pid 7 (bob, python) uses 5000 MiB")
    answer = why(snapshot(replace(machine, devices=(broken,)), job(1)))
    assert "bob" in said(answer)


def test_without_servers_it_says_so_with_a_hint() -> None:
    assert "gpq nodes" in said(why(snapshot(job(1))))
    silent = replace(node("a", state=NodeState.UNREACHABLE), reason="the agent ended: no core 99 may be used here")
    assert "no server answers" in said(why(snapshot(silent, job(1))))
    assert "server a does not answer: the agent ended: no core 99" in said(why(snapshot(silent, job(1))))
    assert "no core 99" in said(why(snapshot(silent, node("b", 1), job(1, spec_=black_box(2)))))


def test_unmovable_jobs_are_named_in_the_remedy() -> None:
    answer = why(snapshot(node("a", 1), running(2, on("a", 0), spec_=black_box()), job(1)))
    assert any("job 2 ends" in remedy for remedy in answer.remedies)
    two = [running(number, on("a", number - 2), spec_=black_box()) for number in (2, 3)]
    assert any("jobs 2, 3 end," in remedy for remedy in why(snapshot(node("a", 2), *two, job(1))).remedies)


def profiled(number: int) -> Job:
    rows = tuple(ProfileRow(1, k, 64, 0.08, 0.08 + 0.01 * k, 100.0) for k in (1, 2))
    return running(number, on("a", 0), profile=Profile(declared=DECLARED, rows=rows, atomic_batch=64))


def test_a_running_job_says_what_one_more_gpu_would_bring() -> None:
    answer = why(snapshot(node("a"), profiled(1)))
    assert "2 GPUs would change its goodput by +" in said(answer)


def test_a_running_job_says_what_its_last_restart_took() -> None:
    times = RestartTimes(2, True, start=0.75, restore=0.1, stop=0.5, save=0.3)
    moved = running(1, on("a", 0), attempt=2, restart_times=(times,))
    words = "its last restart took 1.2 s in a standby: 0.5 s to stop, 0.8 s until the first step"
    assert words in said(why(snapshot(node("a"), moved)))
    assert "its last restart" not in said(why(snapshot(node("a"), replace(moved, attempt=3))))


def test_a_rigid_job_says_why_it_is_left_alone() -> None:
    assert "rigid" in said(why(snapshot(node("a"), running(1, on("a", 0), spec_=black_box()))))
    assert "has not declared itself" in said(why(snapshot(node("a"), running(1, on("a", 0), declared=False))))


def test_a_silent_server_says_nothing_about_the_job() -> None:
    silent = snapshot(node("a", state=NodeState.UNREACHABLE), profiled(1))
    assert "keeps its GPUs" in said(why(silent))


def test_each_change_of_a_round_has_its_motive() -> None:
    here = snapshot(node("a", 2), replace(profiled(1), placement=on("a", 0, 1), last_replicas=2), job(2))
    allocation = {JobId(1): Shape(1), JobId(2): Shape(1)}
    lines = motives(here, place(here, allocation))
    assert lines[JobId(1)] == "2 -> 1 GPU: job 2 needs room"
    assert lines[JobId(2)] == "starts with 1 GPU"


def test_stop_and_relaunch_show_the_same_ratio() -> None:
    times = ((1, 1, 0.09), (2, 2, 0.90))  # over two servers it is slower than alone
    rows = tuple(ProfileRow(over, count, 64, 0.08, step, 100.0) for over, count, step in times)
    profile = Profile(declared=DECLARED, rows=rows, atomic_batch=64)
    ran = running(1, Placement((*on("a", 0).parts, *on("b", 0).parts)), profile=profile)
    stopped = job(1, attempt=1, last_replicas=2, profile=profile)
    servers = (node("a", 1), node("b", 1))

    def motive(one: Job) -> str:
        here, allocation = snapshot(*servers, one), {JobId(1): Shape(1)}
        return motives(here, place(here, allocation))[JobId(1)]

    before, after = motive(ran), motive(stopped)
    assert before.startswith("2 -> 1 GPU: fewer are faster, goodput x")
    assert after == f"resumes with 1 GPU instead of 2: {before.partition('faster, ')[2]}"
    unknown = replace(stopped, last_replicas=3)
    assert motive(unknown) == "resumes with 1 GPU instead of 3"


def test_free_gpus_are_listed_by_server_for_a_job_that_needs_one() -> None:
    held = [running(2, on("a", 0), spec_=black_box()), running(3, on("b", 0), spec_=black_box())]
    here = snapshot(node("a", 2), node("b", 2), job(1, spec_=black_box(2)), *held)
    assert (
        "it needs 2 GPUs on one server. 2 of 4 are free, but on different servers: 1 on a, 1 on b" in why(here).reasons
    )


def test_gpus_of_a_drained_server_are_not_said_to_be_shared() -> None:
    here = snapshot(node("a", 2), node("b", 6), profiled(1), running(2, on("a", 1)))
    assert "it shares 8 GPUs with 1 other running job" in why(here).reasons
    drained = replace(here, drained={NodeId("b"): ""})
    assert "it shares 2 GPUs with 1 other running job" in why(drained).reasons


def test_a_job_on_a_removed_server_is_explained() -> None:
    lone = running(1, on("gone", 0))
    told = explain(snapshot(node("a"), lone), None, lone)
    assert told.headline == "unknown: server gone does not answer"
    assert "gpq cancel 1" in told.remedies[0]


def test_a_job_that_needs_several_gpus_learns_that_smaller_jobs_may_pass() -> None:
    state = snapshot(node("a", 2), running(2, on("a", 0), spec_=black_box()), job(1, spec_=black_box(2)))
    answer = why(state)
    assert "jobs that need fewer GPUs may start before it" in said(answer)
    assert "it fits on the free GPUs if 1 GPU is enough: `gpq edit 1 --gpus 1`" in answer.remedies
    for policy in ("fifo", "backfill"):
        strict = why(replace(state, config=replace(state.config, policy=policy)))
        assert "may start before it" not in said(strict)
    one = why(snapshot(node("a", 1), running(2, on("a", 0), spec_=black_box()), job(1, spec_=black_box())))
    assert "fewer" not in said(one)


def test_a_batch_is_called_best_only_if_it_is() -> None:
    """With little noise the base batch size is the best there is, with much noise a larger one would be."""
    rows = tuple(ProfileRow(1, 1, size, 0.02 + 0.0001 * size, 0.03 + 0.0001 * size, 100.0) for size in (64, 128))
    for scale, best in ((1.0, True), (1e6, False)):
        profile = Profile(declared=DECLARED, rows=rows, noise=Noise(1.0, scale, 100), atomic_batch=64)
        one = running(1, on("a", 0), profile=profile)
        [line] = [line for line in why(snapshot(node("a", 1), one)).reasons if "batch size" in line]
        assert line.startswith("its batch size of 64 is its base batch size, and ")
        assert line.endswith("no other gives more goodput on these GPUs") is best, line
        if not best:
            assert float(line.partition(" x")[2].split()[0]) > 1.01


@pytest.mark.parametrize(
    ("asked", "words", "remedy"),
    [
        (spec(gpus=9), "it asks for 9 GPUs, but all servers together have 6 of one type", "gpq edit 1 --gpus 6"),
        (black_box(5), "it asks for 5 GPUs on one server, but the largest server has 4", "gpq edit 1 --gpus 4"),
        (black_box(3, gpu_type="T4"), "the largest server has 2 that suit it", "gpq edit 1 --gpus 2"),
    ],
)
def test_missing_gpus_are_counted_and_the_remedy_fits(asked: JobSpec, words: str, remedy: str) -> None:
    mixed = node("b", 4)
    devices = tuple(replace(each, type="T4") if each.index < 2 else each for each in mixed.devices)
    here = snapshot(node("a", 4), replace(mixed, devices=devices), job(1, spec_=asked))
    answer = why(here)
    assert words in said(answer)
    assert remedy in said(answer)
    count = int(remedy.rpartition(" ")[2])
    edited = replace(here, jobs={JobId(1): job(1, spec_=asked.having(min_gpus=count, max_gpus=count))})
    assert "more GPUs than there are" not in said(why(edited))
    assert "are free" in said(why(edited))


def test_gpus_out_of_use_are_blamed_only_if_they_would_be_enough() -> None:
    machine = node("a", 2)
    broken = replace(machine.devices[0], state=DeviceState.QUARANTINED, reason="ECC errors")
    here = snapshot(
        replace(machine, devices=(broken, machine.devices[1])), job(1, spec_=black_box(2)), job(2, spec_=black_box(9))
    )
    assert why(here).headline == "GPUs are out of use"
    assert why(here, 2).headline == "asks for more GPUs than there are"


def test_no_job_waits_for_several_parts_of_gpus() -> None:
    answer = why(snapshot(node("a", 4, type="A100 MIG 3g.40gb"), job(1, spec_=spec(gpus=2))))
    assert "a job gets at most one MIG device, because CUDA shows a process only one of them" in answer.reasons
    assert answer.remedies == ("`gpq edit 1 --gpus 1` lets it run on the GPUs that there are",)


def test_a_hold_by_the_user_hides_an_earlier_hold_by_gpq() -> None:
    told = "held: failed 3 times in a row, each within 30 s. `gpq release 1` tries again"
    by_gpq = job(1, state=JobState.HELD, notices=(told,), quick_failures=3)
    assert why(snapshot(node("a"), by_gpq)).headline == told
    assert why(snapshot(node("a"), replace(by_gpq, quick_failures=0))).headline == "held by its user"


def test_a_stopping_job_says_how_long_it_has_and_for_what() -> None:
    stopping = {"state": JobState.STOPPING, "stop": StopReason.TIME, "stop_sent_at": 90.0}
    command = running(1, on("a", 0), spec_=black_box(), **stopping)  # type: ignore[arg-type]
    trains = running(2, on("a", 1), spec_=spec(grace=300.0), **stopping)  # type: ignore[arg-type]
    here = snapshot(node("a"), command, trains, now=100.0)
    assert why(here).reasons == ("gpq asked it to stop 10 s ago (time). It has 10 s from then to end",)
    assert why(here, 2).reasons == (
        "gpq asked it to stop 10 s ago (time). It has 300 s from then to save a checkpoint",
    )


def test_jobs_on_other_servers_are_not_blamed_for_a_wait() -> None:
    mine = job(1, spec_=black_box(gpu_type="A100"))
    held = [running(2, on("a", 0)), running(3, on("b", 0), spec_=black_box())]
    here = snapshot(node("a", 1), node("b", 1, type="T4"), mine, *held)
    assert "GPUs are in use by job 2 (ana, 1 GPU)" in why(here).reasons
    assert not any("job 3" in line for line in why(here).remedies)
