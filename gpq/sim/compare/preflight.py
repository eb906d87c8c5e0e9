"""Can every job run on every cluster under every policy? gpq asks this before hours of simulation,
and names file, row and what exists.

Some answers come only in the run: nobody knows in advance which placements over several nodes a
policy will choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpq.core.model.nodes import Node
from gpq.errors import UsageError
from gpq.policies.registry import entry
from gpq.sim.compare.compare import Cluster
from gpq.sim.measurements.ground_truth import Task, Truth
from gpq.sim.measurements.sources import Published, Source
from gpq.sim.measurements.tables import at
from gpq.sim.measurements.timings import Counts, NotMeasured

_Key = tuple[int, str, Counts]  # the truth, the GPU type, the GPUs on each node

HINT = "choose a cluster with --nodes on which every job can run"


@dataclass(frozen=True, slots=True)
class _Problem:
    message: str
    hint: str = HINT


def check(sources: Sequence[Source], clusters: Sequence[Cluster], policies: Sequence[str]) -> None:
    """Raises UsageError about the first job that cannot run on one of the clusters under one of the
    policies."""
    sizes = {cluster.name: _node_sizes(cluster.nodes) for cluster in clusters}
    verdicts: dict[_Key, _Problem | None] = {}
    for source in sources:
        for task in source.tasks():
            for cluster in clusters:
                problem = _misfit(task, sizes[cluster.name], policies) or _first_unmeasured(
                    task, sizes[cluster.name], policies, verdicts
                )
                if problem:
                    raise _refusal(source, task, cluster, problem)


def _refusal(source: Source, task: Task, cluster: Cluster, problem: _Problem) -> UsageError:
    message = f"job {task.name} does not fit {cluster.name}: {problem.message}"
    if isinstance(source, Published):
        return at(Path(source.path), source.rows()[task.name], message, problem.hint)
    return UsageError(f"{source.name}: {message}", problem.hint)


def _node_sizes(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """GPUs of each node, by type, the largest first."""
    sizes: dict[str, list[int]] = {}
    for node in nodes:
        for kind, count in Counter(device.type for device in node.devices).items():
            sizes.setdefault(kind, []).append(count)
    return {kind: sorted(sizes[kind], reverse=True) for kind in sorted(sizes)}


def _misfit(task: Task, sizes: dict[str, list[int]], policies: Sequence[str]) -> _Problem | None:
    """Why the job can run nowhere, or cannot have all the GPUs that it asks for."""
    problem = next(filter(None, (_unknown(task.truth, kind) for kind in sizes)), None)
    if problem:
        return problem
    gpus_by_type = {
        kind: sum(counts) for kind, counts in sizes.items() if task.gpu_type.lower() in kind.lower()
    }
    if not gpus_by_type:
        return _Problem(f"it asks for GPUs of type {task.gpu_type}")
    most, least = max(gpus_by_type.values()), _least_gpus(task, policies)
    if least <= most:
        return None
    of_type = " of one type" if len(gpus_by_type) > 1 else ""
    return _Problem(f"it asks for {least} GPUs, but there are {most}{of_type}")


def _least_gpus(task: Task, policies: Sequence[str]) -> int:
    """The GPUs that it must have under one of the policies."""
    if task.rigid or any(entry(policy).gang for policy in policies):
        return task.replicas
    return 1


def _unknown(truth: Truth, kind: str) -> _Problem | None:
    try:
        truth.limits(kind)
    except UsageError as error:
        return _Problem(error.message, error.hint)
    return None


def _first_unmeasured(
    task: Task,
    sizes: dict[str, list[int]],
    policies: Sequence[str],
    verdicts: dict[_Key, _Problem | None],
) -> _Problem | None:
    """The first placement without measured times among those that a policy will give the job.
    `verdicts`: earlier findings."""
    for kind, nodes in sizes.items():
        if task.gpu_type.lower() not in kind.lower():
            continue
        for counts in _placements(task, kind, nodes, policies):
            key = (id(task.truth), kind, counts)
            if key not in verdicts:
                verdicts[key] = _unmeasured_problem(task.truth, kind, counts)
            if verdicts[key]:
                return verdicts[key]
    return None


def _placements(
    task: Task, kind: str, nodes: Sequence[int], policies: Sequence[str]
) -> list[Counts]:
    """Gangs have the GPUs that they ask for, packed. Other jobs have from one GPU to the whole
    largest node, as far as their batch can be split."""
    placements: set[Counts] = set()
    for policy in policies:
        traits, truth = entry(policy), task.truth
        if task.rigid or traits.gang:
            if task.replicas <= sum(nodes):
                placements.add(_pack(task.replicas, nodes))
            continue
        batch = truth.fixed_batch or truth.max_batch
        if traits.own_batch:
            batch = task.batch_size
        most = min(
            truth.most_replicas or nodes[0], max(batch // truth.limits(kind)[0], 1), nodes[0]
        )
        placements |= {(count,) for count in range(1, most + 1)}
    return sorted(placements)


def _pack(replicas: int, nodes: Sequence[int]) -> Counts:
    """On the fewest nodes, the largest first."""
    counts: list[int] = []
    for size in nodes:
        if replicas:
            counts.append(min(size, replicas))
            replicas -= counts[-1]
    return tuple(counts)


def _unmeasured_problem(truth: Truth, kind: str, counts: Counts) -> _Problem | None:
    try:
        truth.measured(counts, kind)
    except NotMeasured as error:
        return _Problem(error.message, error.hint)
    return None
