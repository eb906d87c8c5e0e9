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
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpq.core.model.nodes import Node
from gpq.errors import Refused, UsageError
from gpq.lab.measurements.ground_truth import Task
from gpq.lab.measurements.sources import Published, Source
from gpq.lab.measurements.tables import at
from gpq.lab.measurements.timings import Counts, NotMeasured
from gpq.lab.simulator.outcomes import Alone, Outcome, Summary, means, summary
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


class MakeRules(Protocol):
    def __call__(self, cluster: Cluster, seed: int) -> Rules: ...


def plan(
    policies: Sequence[str],
    sources: Sequence[Source],
    clusters: Sequence[Cluster],
    rules: MakeRules,
    seeds: Sequence[int] = (0,),
) -> list[Run]:
    """Every combination: by cluster, then policy, then workload, then seed."""
    return [
        Run(policy, source, cluster.name, rules(cluster, seed))
        for cluster in clusters
        for policy in policies
        for source in sources
        for seed in seeds
    ]


def blocks(runs: Sequence[Run], outcomes: Sequence[Outcome | FailedRun]) -> list[Block]:
    """By cluster, in the order of the runs. A cluster on which every run failed is left out."""
    pairs = [
        (run.cluster, outcome)
        for run, outcome in zip(runs, outcomes, strict=True)
        if isinstance(outcome, Outcome)
    ]
    names = dict.fromkeys(cluster for cluster, _ in pairs)
    return [
        Block(name, tuple(outcome for cluster, outcome in pairs if cluster == name))
        for name in names
    ]


def attempt_all(
    runs: Sequence[Run], processes: int = 1, progress: Progress | None = None
) -> list[Outcome | FailedRun]:
    """The outcome of each run in order, or why it cannot be simulated to its end. Unreadable input
    ends all runs. So do Ctrl-C and SIGTERM, as Interrupted."""
    with _without_chatter():
        return work_on(runs, _attempt, _fallback, processes, progress)


def run_all(
    runs: Sequence[Run], processes: int = 1, progress: Progress | None = None
) -> list[Outcome]:
    """The outcomes, in the order of the runs. Raises Refused about the first that failed, when all
    others have ended."""
    results = attempt_all(runs, processes, progress)
    failure = next((result for result in results if isinstance(result, FailedRun)), None)
    if failure is not None:
        raise Refused(f"{failure.policy} on {failure.workload}: {failure.error}", failure.hint)
    return [result for result in results if isinstance(result, Outcome)]


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
        ctypes.CDLL(None).fflush(
            None
        )  # C buffers output for a file or a pipe until the program ends
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(null)


def _attempt(run: Run, watch: Callable[[float], None]) -> Outcome | FailedRun:
    try:
        return replay(
            run.policy, run.source.tasks(), run.rules, workload=run.source.name, watch=watch
        )
    except Refused as error:
        return FailedRun(
            run.cluster, run.policy, run.source.name, run.rules.seed, error.message, error.hint
        )


def _fallback(run: Run) -> FailedRun:
    message = "a process of the simulation was killed"
    hint = "give it more memory, or use fewer processes"
    return FailedRun(run.cluster, run.policy, run.source.name, run.rules.seed, message, hint)


@dataclass(frozen=True, slots=True)
class _Problem:
    message: str
    hint: str = HINT


def preflight(
    sources: Sequence[Source], clusters: Sequence[Cluster], policies: Sequence[str]
) -> None:
    """Can every job run on every cluster under every policy? Raises UsageError about the first that
    cannot, with file, row and what exists. gpq asks this before hours of simulation.

    Some answers come only in the run: nobody knows in advance which placements over several nodes a
    policy will choose.
    """
    sizes = {cluster.name: Alone(cluster.nodes).sizes for cluster in clusters}
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


def _misfit(
    task: Task, sizes: Mapping[str, Sequence[int]], policies: Sequence[str]
) -> _Problem | None:
    """Why the job can run nowhere, or cannot have all the GPUs that it asks for."""
    try:
        for kind in sizes:
            task.truth.limits(kind)
    except UsageError as error:
        return _Problem(error.message, error.hint)
    gpus_by_type = {
        kind: sum(counts) for kind, counts in sizes.items() if task.gpu_type.lower() in kind.lower()
    }
    if not gpus_by_type:
        return _Problem(f"it asks for GPUs of type {task.gpu_type}")
    is_gang = task.rigid or any(entry(policy).gang for policy in policies)
    most, least = max(gpus_by_type.values()), task.replicas if is_gang else 1
    if least <= most:
        return None
    of_type = " of one type" if len(gpus_by_type) > 1 else ""
    return _Problem(f"it asks for {least} GPUs, but there are {most}{of_type}")


def _first_unmeasured(
    task: Task,
    sizes: Mapping[str, Sequence[int]],
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
                verdicts[key] = None
                try:
                    task.truth.measured(counts, kind)
                except NotMeasured as error:
                    verdicts[key] = _Problem(error.message, error.hint)
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
