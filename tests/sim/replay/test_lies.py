"""Members of a team, and what of a job a lie changes: what policies see, one fact for each kind, and never the physics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpq.lab.measurements.sources import SPLIT, Member, Published
from gpq.lab.simulator.lies import KINDS
from gpq.lab.simulator.outcomes import JobOutcome
from gpq.lab.simulator.replay import Replay, replay
from gpq.lab.simulator.rules import Rules, parse_cluster
from gpq.policies.registry import policy
from tests.support.measurements import tiny, workload

DAY = 86_400.0
RULES = Rules(parse_cluster("1x4"), interval=20.0, known_length=True)


def published(folder: Path, *kinds: str, rows: tuple[str, ...] = ("a,0,tiny,2,64",)) -> Published:
    """The jobs of one member with these lies."""
    path, traces = workload(folder / "w.csv", *rows), tiny(folder / "traces")
    return Published("w", str(path), str(traces), members=(Member("ana", kinds),))


def facts(folder: Path, *kinds: str) -> dict[str, object]:
    """What `fifo` sees of a job after some rounds on two GPUs of one server."""
    run = Replay(policy("fifo"), published(folder, *kinds).tasks(), RULES)
    for _ in range(5):
        run.round()
    snapshot = run.snapshot()
    [job] = snapshot.jobs.values()
    profile = job.profile
    [row] = profile.rows
    assert profile.noise is not None
    assert profile.early_noise is not None
    assert profile.progress is not None
    return {
        "replicas": job.replicas,
        "times": (round(row.grad_time, 6), round(row.step_time, 6)),
        "noise": profile.noise.var / profile.noise.sqr,
        "early noise": profile.early_noise.var / profile.early_noise.sqr,
        "noise curve": {point.scale for point in profile.noise_curve},
        "base steps": profile.progress.base_steps,
        "fraction": profile.progress.fraction,
        "priority": job.spec.priority,
        "submitted": job.submitted_at,
        "service": job.service_at(snapshot.now),
    }


LIES: dict[str, dict[str, object]] = {
    "speed": {"times": (0.084, 0.084)},
    "superlinear": {"times": (0.042, 0.042)},
    "noise": {"noise": 1e9, "early noise": 1e9, "noise curve": {1e9}},
    "length": {"fraction": 0.99},
    "priority": {"priority": 10},
    "age": {"submitted": -30 * DAY, "service": 0.0},
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != SPLIT])
def test_policies_see_what_a_lie_says_and_all_else_as_it_is(tmp_path: Path, kind: str) -> None:
    honest = facts(tmp_path)
    assert (honest["times"], honest["noise"]) == ((0.084, 0.094), 128.0)
    assert (honest["priority"], honest["submitted"], honest["service"]) == (0, 0.0, 160.0)
    assert facts(tmp_path, kind) == {**honest, **LIES[kind]}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != SPLIT])
def test_a_lie_does_not_change_what_a_job_does_on_its_gpus(tmp_path: Path, kind: str) -> None:
    """`fifo` gives jobs what they ask for, here at once, so only the physics decides."""
    honest, liar = (replay("fifo", published(tmp_path, *kinds).tasks(), RULES).jobs for kinds in ((), (kind,)))
    assert liar == tuple(replace(job, lies=(kind,)) for job in honest)


def alone(folder: Path, *kinds: str) -> JobOutcome:
    [job] = replay("goodput", published(folder, *kinds).tasks(), replace(RULES, nodes=parse_cluster("1x1"))).jobs
    return job


def test_gpq_orders_the_batch_that_a_lie_calls_for_and_the_true_progress_pays(tmp_path: Path) -> None:
    """On one GPU it is 256 examples, in two passes of the 128 that were measured: 532 ms. At noise scales of 4, 8 and 12
    base batches that is worth 40/12, 72/16 and 104/20 base steps."""
    liar = alone(tmp_path, "noise")
    seconds = sum(round(1000 * 0.532 * cost) for cost in (12 / 40, 16 / 72, 20 / 104))
    assert liar.ended_at - liar.started_at == pytest.approx(30.0 + seconds, abs=10.0)  # its first batch knew no noise
    honest = alone(tmp_path)
    assert honest.ended_at < liar.ended_at


def test_parts_of_a_job_share_its_work(tmp_path: Path) -> None:
    source = published(tmp_path, SPLIT, rows=("a,0,tiny,1,32", "b,30,tiny,2,64"))
    tasks = source.tasks()
    assert [task.name for task in tasks] == ["a/1", "a/2", "a/3", "a/4", "b/1", "b/2", "b/3", "b/4"]
    assert source.rows()["b/2"] == 3
    jobs = replay("fifo", tasks[:4], RULES).jobs
    assert {job.gpu_seconds for job in jobs} == {30.0 + 3 * 21}  # a start, and a quarter of 84 s for each epoch


def test_jobs_are_dealt_in_turn_by_arrival(tmp_path: Path) -> None:
    rows = ("late,90,tiny,1,32", "a,0,tiny,1,32", "b,30,tiny,1,32")
    members = (Member("ana"), Member("bob", ("speed",)))
    tasks = replace(published(tmp_path, rows=rows), members=members).tasks()
    assert [(task.name, task.user, task.lies) for task in tasks] == [
        ("a", "ana", ()), ("b", "bob", ("speed",)), ("late", "ana", ()),
    ]  # fmt: skip
