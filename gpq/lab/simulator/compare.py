"""Many simulated runs next to each other: policies x workloads x clusters x seeds. Decides nothing
about a run, because `replay` does.

Results come in the order of the runs, for any number of processes. A failed run does not affect the
others.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpq.core.model.nodes import Node
from gpq.errors import GpqError, Refused, UsageError
from gpq.lab.measurements.ground_truth import Task
from gpq.lab.measurements.sources import Published, Source
from gpq.lab.measurements.tables import at
from gpq.lab.measurements.timings import Counts, NotMeasured
from gpq.lab.simulator.outcomes import (
    Alone,
    MemberSummary,
    Outcome,
    Summary,
    means,
    members,
    summary,
)
from gpq.lab.simulator.process_pool import Progress, work_on
from gpq.lab.simulator.replay import replay
from gpq.lab.simulator.rules import Rules
from gpq.policies.registry import entry

_Key = tuple[int, str, Counts]  # the truth, the GPU type, the GPUs on each node
HINT = "choose a cluster with --nodes on which every job can run"


@dataclass(frozen=True, slots=True)
class Cluster:
    """`name`: as typed, `16x4`."""

    name: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one workload and cluster. The rules hold the seed."""

    policy: str
    source: Source
    cluster: str
    rules: Rules

    def failed(self, message: str, hint: str) -> FailedRun:
        return FailedRun(
            self.cluster, self.policy, self.source.name, self.rules.seed, message, hint
        )


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed, and why."""

    cluster: str
    policy: str
    workload: str
    seed: int
    error: str
    hint: str


@dataclass(frozen=True, slots=True)
class Block:
    """The outcomes of the runs on one cluster, in the requested order."""

    cluster: str
    outcomes: tuple[Outcome, ...]

    @property
    def rows(self) -> list[Summary]:
        return [summary(outcome) for outcome in self.outcomes]

    @property
    def means(self) -> list[Summary]:
        return means(self.rows)

    @property
    def members(self) -> list[MemberSummary]:
        return [row for outcome in self.outcomes for row in members(outcome)]


def plan(
    policies: Sequence[str],
    sources: Sequence[Source],
    clusters: Sequence[Cluster],
    rules: Rules,
    seeds: Sequence[int] = (0,),
) -> list[Run]:
    """Every combination: by cluster, then policy, then workload, then seed. The rules are those of
    all runs, except for servers and seed."""
    return [
        Run(policy, source, cluster.name, replace(rules, nodes=cluster.nodes, seed=seed))
        for cluster in clusters
        for policy in policies
        for source in sources
        for seed in seeds
    ]


def blocks(runs: Sequence[Run], outcomes: Sequence[Outcome | FailedRun]) -> list[Block]:
    """By cluster, in the order of the runs. A cluster on which every run failed is left out."""
    outcomes_by_cluster: dict[str, list[Outcome]] = {}
    for run, outcome in zip(runs, outcomes, strict=True):
        if isinstance(outcome, Outcome):
            outcomes_by_cluster.setdefault(run.cluster, []).append(outcome)
    return [Block(name, tuple(group)) for name, group in outcomes_by_cluster.items()]


def attempt_all(
    runs: Sequence[Run], processes: int = 1, progress: Progress | None = None
) -> list[Outcome | FailedRun]:
    """The outcome of each run in order, or why it cannot be simulated to its end. Unreadable input
    ends all runs. So do Ctrl-C and SIGTERM, as Interrupted."""

    def fallback(run: Run) -> FailedRun:
        return run.failed(
            "a process of the simulation was killed", "give it more memory, or use fewer processes"
        )

    with _without_chatter():
        return work_on(runs, _attempt, fallback, processes, progress)


@contextmanager
def _without_chatter() -> Iterator[None]:
    """HiGHS sometimes writes a line to standard output, past Python, which would spoil the
    output."""
    sys.stdout.flush()
    stdout, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 1)
        yield
    finally:
        # C buffers output for a file or a pipe until the program ends
        ctypes.CDLL(None).fflush(None)
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(null)


def _attempt(run: Run, watch: Callable[[float], None]) -> Outcome | FailedRun:
    try:
        return replay(
            run.policy, run.source.tasks(), run.rules, workload=run.source.name, watch=watch
        )
    except Refused as error:
        return run.failed(error.message, error.hint)


def preflight(
    sources: Sequence[Source], clusters: Sequence[Cluster], policies: Sequence[str]
) -> None:
    """Can every job run on every cluster under every policy? Raises UsageError about the first that
    cannot, with file, row and what exists. gpq asks this before hours of simulation.

    Some answers come only in the run: nobody knows in advance which placements over several nodes a
    policy will choose.
    """
    sizes = {cluster.name: Alone(cluster.nodes).sizes for cluster in clusters}
    measured: set[_Key] = set()
    for source in sources:
        for task in source.tasks():
            for cluster in clusters:
                nodes_by_type = sizes[cluster.name]
                try:
                    _check_size(task, nodes_by_type, policies)
                    _check_measured(task, nodes_by_type, policies, measured)
                except (UsageError, NotMeasured) as error:
                    raise _refusal(source, task, cluster, error) from None


def _refusal(source: Source, task: Task, cluster: Cluster, error: GpqError) -> UsageError:
    message = f"job {task.name} does not fit {cluster.name}: {error.message}"
    if isinstance(source, Published):
        return at(Path(source.path), source.rows()[task.name], message, error.hint)
    return UsageError(f"{source.name}: {message}", error.hint)


def _check_size(task: Task, sizes: Mapping[str, Sequence[int]], policies: Sequence[str]) -> None:
    """Raises UsageError if the job can run nowhere, or cannot have all the GPUs that it asks
    for."""
    for kind in sizes:
        task.truth.limits(kind)
    gpus_by_type = {
        kind: sum(counts) for kind, counts in sizes.items() if task.gpu_type.lower() in kind.lower()
    }
    if not gpus_by_type:
        raise UsageError(f"it asks for GPUs of type {task.gpu_type}", HINT)
    is_gang = task.rigid or any(entry(policy).gang for policy in policies)
    most = max(gpus_by_type.values())
    if is_gang and task.replicas > most:
        of_type = " of one type" if len(gpus_by_type) > 1 else ""
        raise UsageError(f"it asks for {task.replicas} GPUs, but there are {most}{of_type}", HINT)


def _check_measured(
    task: Task, sizes: Mapping[str, Sequence[int]], policies: Sequence[str], measured: set[_Key]
) -> None:
    """Raises NotMeasured about the first placement without measured times among those that a policy
    will give the job. `measured`: earlier findings."""
    for kind, nodes in sizes.items():
        if task.gpu_type.lower() not in kind.lower():
            continue
        for counts in _placements(task, kind, nodes, policies):
            key = (id(task.truth), kind, counts)
            if key not in measured:
                task.truth.measured(counts, kind)
                measured.add(key)


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
