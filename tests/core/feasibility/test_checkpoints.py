"""Where a job's newest checkpoint is, and what follows from that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.feasibility.checkpoints import (
    ASSUMED_RATE,
    FIXED,
    Staging,
    bringing_seconds,
    holders,
    lacking,
    out_of_reach,
    size,
)
from gpq.core.model.events import Exited, NodeSilent, Profiled, Staged, Started, StartRefused
from gpq.core.model.jobs import Job, JobState, Level
from gpq.core.model.nodes import NodeState
from gpq.core.model.placements import Exit, FilesAt, Placement, Shape
from gpq.core.model.policy import shape_of
from gpq.core.model.profile import Noise, ProfileRow
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.rounds.rounds import decide
from gpq.core.state.apply_events import fold
from gpq.policies.registry import POLICIES, policy
from tests.support import builders
from tests.support.explanations import explain

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def cluster(job: Job, **storage: str) -> Snapshot:
    """Three servers with two devices each. The named ones have that storage."""
    nodes = [replace(builders.node(name, 2), storage=storage.get(name, f"own-{name}")) for name in "abc"]
    return builders.snapshot(job, *nodes, now=100.0)


def placed(*nodes: NodeId) -> Placement:
    return Placement(tuple((node, (DeviceId(f"{node}-0"),)) for node in nodes))


def stopped(level: Level = Level.SCRIPT) -> Job:
    """It checkpointed on `a`, whose storage was known then, and waits."""
    job = builders.job(1, spec_=builders.spec(level=level))
    return replace(job, attempt=1, files=FilesAt(A, "own-a"), profile=replace(job.profile, checkpoints=1))


def test_the_newest_checkpoint_is_where_rank_0_of_the_latest_attempt_ran() -> None:
    job = builders.job(1, state=JobState.STARTING, placement=placed(A, B), attempt=1, launched_at=99.0)
    snapshot = cluster(job)
    after = fold(snapshot, [Started(100.0, job.id, 1, B, "own-b")]).snapshot
    assert after.jobs[job.id].files is None
    after = fold(after, [Started(100.0, job.id, 1, A, "own-a")]).snapshot
    assert after.jobs[job.id].files == FilesAt(A, "own-a")
    moved = replace(after.jobs[job.id], state=JobState.STARTING, placement=placed(B), attempt=2, started_nodes=())
    refused = fold(cluster(moved), [StartRefused(100.0, job.id, 2, B, "no room", transient=True)]).snapshot
    assert refused.jobs[job.id].files == FilesAt(A, "own-a"), "what did not start wrote nothing"


def test_a_stop_that_proved_a_checkpoint_is_not_forgotten_by_a_refused_start() -> None:
    job = builders.job(
        1,
        spec_=builders.spec(level=Level.SIGNAL),
        state=JobState.RUNNING,
        placement=placed(A),
        attempt=1,
        launched_at=0.0,
    )
    job = replace(job, files=FilesAt(A, "own-a"), started_nodes=(A,), started_at=1.0)
    after = fold(cluster(job), [Exited(100.0, job.id, 1, A, Exit(75))]).snapshot.jobs[job.id]
    assert after.files == FilesAt(A, "own-a", proved=True)
    again = replace(after, state=JobState.STARTING, placement=placed(B), attempt=2, exits=(), launched_at=100.0)
    after = fold(cluster(again), [StartRefused(101.0, job.id, 2, B, "no", transient=True), NodeSilent(101.0, A, "cut")])
    assert "server a" in out_of_reach(after.snapshot, after.snapshot.jobs[job.id])


def test_one_server_of_each_folder_is_asked_and_none_that_sees_the_files() -> None:
    job = stopped()
    assert lacking(cluster(job), job, placed(A, B, C)) == [B, C]
    assert lacking(cluster(job, b="own-a"), job, placed(A, B, C)) == [C]
    assert lacking(cluster(job, b="x", c="x"), job, placed(B, C)) == [B]
    assert lacking(cluster(job, b="", c=""), job, placed(B, C)) == [B, C]
    assert lacking(cluster(replace(job, files=None)), replace(job, files=None), placed(B)) == []


def test_servers_that_share_the_folder_have_it_too() -> None:
    job = stopped()
    silent = fold(cluster(job, b="own-a"), [NodeSilent(100.0, A, "cut")]).snapshot
    assert holders(silent, job) == [B]
    assert out_of_reach(silent, job) == ""


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_restarts_from_scratch_if_the_checkpoint_is_unreachable(name: str) -> None:
    job = stopped()
    snapshot = fold(cluster(job), [NodeSilent(100.0, A, "cut")]).snapshot
    assert decide(snapshot, [], policy(name), allocate=True).actions == ()
    why = explain(snapshot, {}, job)
    assert "server a, which does not answer" in why.headline
    assert any("gpq cancel 1" in remedy for remedy in why.remedies)
    nothing = replace(job, profile=replace(job.profile, checkpoints=0))
    begun = decide(replace(snapshot, jobs={job.id: nothing}), [], policy(name), allocate=True)
    assert begun.actions, "what never told of a checkpoint begins anew elsewhere"
    back = replace(snapshot, nodes={**snapshot.nodes, A: replace(snapshot.nodes[A], state=NodeState.UP)})
    assert decide(back, [], policy(name), allocate=True).actions


def test_a_removed_server_is_named() -> None:
    snapshot = cluster(stopped())
    gone = replace(snapshot, nodes={name: node for name, node in snapshot.nodes.items() if name != A})
    assert "no longer in the configuration" in out_of_reach(gone, gone.jobs[JobId(1)])


def test_progress_is_said_in_one_line() -> None:
    assert str(Staging("its checkpoint from a", 0, 0, 0.0)) == "about to copy its checkpoint from a"
    said = Staging("its checkpoint from a", 1_234_000_000, 3_400_000_000, 85e6, "interrupted: b")
    assert str(said) == "copying its checkpoint from a: 1.23 GB of 3.4 GB, 85 MB/s (interrupted: b)"
    assert [size(999), size(999_600), size(2_000_000_000_000)] == ["999 B", "1 MB", "2 TB"]


def test_a_reported_checkpoint_counts() -> None:
    job = builders.job(1, state=JobState.RUNNING, placement=placed(A), attempt=1, launched_at=0.0)
    told = Profiled(100.0, job.id, 1, 10, checkpoint_seconds=0.5)
    assert fold(cluster(job), [told]).snapshot.jobs[job.id].profile.checkpoints == 1


SIZE = 10_000_000_000  # bytes


def offered(snapshot: Snapshot) -> dict[str, dict[NodeId, tuple[DeviceId, ...]]]:
    return {"": {name: tuple(device.id for device in node.devices) for name, node in snapshot.nodes.items()}}


def test_only_a_shape_outside_the_folder_pays_for_the_copy() -> None:
    job = stopped()
    job = replace(job, profile=replace(job.profile, checkpoint_bytes=SIZE))
    shapes = [Shape(1), Shape(2), Shape(4, 2), Shape(6, 3)]
    far, alone = SIZE / ASSUMED_RATE + FIXED, cluster(job)
    assert bringing_seconds(alone, job, shapes, offered(alone)) == [0.0, 0.0, far, far]
    pair = cluster(job, b="own-a")
    assert bringing_seconds(pair, job, shapes, offered(pair)) == [0.0, 0.0, 0.0, far]
    all_of_it = cluster(job, b="own-a", c="own-a")
    assert bringing_seconds(all_of_it, job, shapes, offered(all_of_it)) == [0.0] * 4
    nothing = replace(job, profile=replace(job.profile, checkpoint_bytes=0))
    assert bringing_seconds(alone, nothing, shapes, offered(alone)) == [0.0] * 4


def test_the_cost_follows_what_was_measured_by_the_slowest_way() -> None:
    job = stopped()
    job = replace(
        job, profile=replace(job.profile, checkpoint_bytes=SIZE), state=JobState.STARTING, placement=placed(B)
    )
    told = [Staged(100.0, job.id, 1, A, B, SIZE, 100.0), Staged(100.0, job.id, 1, A, C, SIZE, 50.0)]
    after = fold(cluster(job), [*told, Staged(100.0, job.id, 1, A, C, 5, 50.0)]).snapshot
    assert after.rates == {(A, B): 1e8, (A, C): 2e8}, "a few bytes tell no rate"
    assert after.jobs[job.id].staged_seconds == 100.0
    assert bringing_seconds(after, job, [Shape(4, 2)], offered(after)) == [100.0 + FIXED]
    again = fold(after, [Staged(100.0, job.id, 1, A, B, SIZE, 50.0)]).snapshot
    assert again.rates[A, B] == 1.5e8


def test_copying_is_not_part_of_the_measured_restart() -> None:
    job = builders.job(1, state=JobState.RUNNING, placement=placed(B), attempt=2, launched_at=50.0)
    job = replace(job, stop_seconds=2.0, staged_seconds=40.0)
    after = fold(cluster(job), [Profiled(100.0, job.id, 2, 10, ready=True)]).snapshot.jobs[job.id]
    assert after.restart_seconds == 12.0


def test_a_large_checkpoint_keeps_a_job_where_it_is_and_a_small_one_does_not() -> None:
    """It runs on all of `a`, and would gain from moving to the larger server."""

    def grows(size: int) -> bool:
        job = builders.running(1, builders.on("a", 0, 1), since=0.0)
        rows = tuple(ProfileRow(1, n, 64, 0.1, 0.1, 50.0) for n in (1, 2))
        profile = replace(job.profile, rows=rows, noise=Noise(1.0, 2000.0, 10**6), checkpoints=1, checkpoint_bytes=size)
        job = replace(
            job, profile=replace(profile, samples_per_second=1.0), files=FilesAt(A, "own-a"), restart_seconds=1.0
        )
        nodes = [replace(builders.node("a", 2), storage="own-a"), replace(builders.node("b", 3), storage="own-b")]
        found = policy("goodput").allocate(builders.snapshot(job, *nodes, now=200.0))
        return shape_of(found[job.id]).replicas > 2

    assert grows(1_000_000)
    assert not grows(1_000_000 * SIZE)
