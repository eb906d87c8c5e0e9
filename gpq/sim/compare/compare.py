"""Many simulated runs, side by side: policies x workloads x clusters x seeds. Decides nothing about
a run: `replay` does.

Results come in the order of the runs, however many processes there are; one that fails takes no
other along.
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
    """`name`: as it was asked for, `16x4`."""

    name: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one workload and cluster; the seed is in the rules."""

    policy: str
    source: Source
    cluster: str
    rules: Rules


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that could not be simulated to its end, and why."""

    cluster: str
    policy: str
    workload: str
    seed: int
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Block:
    """What the runs on one cluster came to, in the order they were asked for."""

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


def blocks(runs: Sequence[Run], outcomes: Sequence[Outcome | Failure]) -> list[Block]:
    """By cluster, in the order of the runs; clusters on which all failed are left out."""
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
) -> list[Outcome | Failure]:
    """What each came to, in the order of the runs: of one that cannot be simulated to its end, why.
    Input that cannot be read ends all; so do Ctrl-C and SIGTERM, as Interrupted."""
    with _without_chatter():
        return work_on(runs, _attempt, _fallback, processes, progress)


def run_all(
    runs: Sequence[Run], processes: int = 1, progress: Progress | None = None
) -> list[Outcome]:
    """The outcomes, in the order of the runs. Raises Refused about the first that failed, once all
    others have ended."""
    results = attempt_all(runs, processes, progress)
    failure = next((result for result in results if isinstance(result, Failure)), None)
    if failure is not None:
        raise Refused(f"{failure.policy} on {failure.workload}: {failure.message}", failure.hint)
    return [result for result in results if isinstance(result, Outcome)]


@contextmanager
def _without_chatter() -> Iterator[None]:
    """HiGHS now and then writes a line of its own to the standard output, past Python: it would
    spoil what is printed."""
    sys.stdout.flush()
    stdout, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 1)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what C keeps for a file or a pipe until the program ends
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(null)


def _attempt(run: Run, watch: Callable[[float], None]) -> Outcome | Failure:
    try:
        return replay(
            run.policy, run.source.tasks(), run.rules, workload=run.source.name, watch=watch
        )
    except Refused as error:
        return Failure(
            run.cluster, run.policy, run.source.name, run.rules.seed, error.message, error.hint
        )


def _fallback(run: Run) -> Failure:
    message = "a process of the simulation was killed"
    hint = "give it more memory, or use fewer processes"
    return Failure(run.cluster, run.policy, run.source.name, run.rules.seed, message, hint)
