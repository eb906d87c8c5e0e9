"""Many simulated runs next to each other: policies x workloads x clusters x seeds. Decides nothing
about a run, because `replay` does.

Results come in the order of the runs, for any number of processes. A failed run does not affect the
others.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from gpq.core.model.nodes import Node
from gpq.errors import Refused
from gpq.sim.compare.process_pool import Progress, work_on
from gpq.sim.measurements.sources import Source
from gpq.sim.replay.outcomes import Outcome, Summary, means, summary
from gpq.sim.replay.replay import replay
from gpq.sim.replay.rules import Rules


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
