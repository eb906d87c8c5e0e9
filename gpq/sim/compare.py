"""Many simulated runs, side by side: policies x workloads x clusters x seeds, in several processes where that is asked for.

Decides nothing about a run: `replay` does. Results come in the order of the runs, however many processes there are.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import FIRST_EXCEPTION, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Protocol

from gpq.core.nodes import Node
from gpq.errors import GpqError, Refused, UsageError
from gpq.policies.registry import entry
from gpq.sim.outcomes import Outcome, Summary, means, summary
from gpq.sim.replay import replay
from gpq.sim.rules import Rules
from gpq.sim.sources import Published, Source
from gpq.sim.tables import at
from gpq.sim.truth import Task

LOOK_SECONDS = 0.2  # between two looks at how far the other processes are

Progress = Callable[
    [Sequence[float]], None
]  # gets the share of each run that is done, 0 to 1, in the order of the runs


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


def blocks(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> list[Block]:
    """By cluster, in the order of the runs."""
    pairs = list(zip(runs, outcomes, strict=True))
    names = dict.fromkeys(run.cluster for run in runs)
    return [Block(name, tuple(found for run, found in pairs if run.cluster == name)) for name in names]


def check(sources: Sequence[Source], clusters: Sequence[Cluster], policies: Sequence[str]) -> None:
    """Can every job run on every cluster under every policy? Raises UsageError about the first that cannot."""
    gang = any(entry(policy).gang for policy in policies)
    for source in sources:
        for task in source.tasks():
            for cluster in clusters:
                problem = _misfit(task, cluster.nodes, whole=gang or task.rigid)
                if problem:
                    raise _refusal(source, task, f"job {task.name} does not fit {cluster.name}: {problem}")


def _misfit(task: Task, nodes: Sequence[Node], *, whole: bool) -> str:
    """Why the job can run nowhere, or cannot have all the GPUs that it asks for; "" where it can."""
    counts = Counter(device.type for node in nodes for device in node.devices)
    unknown = next(filter(None, (_unmeasured(task, gpu_type) for gpu_type in sorted(counts))), "")
    if unknown:
        return unknown
    fitting = {kind: count for kind, count in counts.items() if task.gpu_type.lower() in kind.lower()}
    if not fitting:
        return f"it asks for GPUs of type {task.gpu_type}"
    most, least = max(fitting.values()), task.replicas if whole else 1
    of_type = " of one type" if len(fitting) > 1 else ""
    return f"it asks for {least} GPUs, and there are {most}{of_type}" if least > most else ""


def _unmeasured(task: Task, gpu_type: str) -> str:
    try:
        task.truth.limits(gpu_type)
    except UsageError as error:
        return error.message
    return ""


def _refusal(source: Source, task: Task, problem: str) -> UsageError:
    hint = "name with --nodes a cluster on which every job can run"
    if isinstance(source, Published):
        return at(Path(source.path), source.rows()[task.name], problem, hint)
    return UsageError(f"{source.name}: {problem}", hint)


def run_all(runs: Sequence[Run], processes: int = 1, progress: Progress | None = None) -> list[Outcome]:
    """The outcomes, in the order of the runs. An error in one of them, like Ctrl-C, ends all."""
    with _without_chatter():
        return _all(runs, processes, progress)


@contextmanager
def _without_chatter() -> Iterator[None]:
    """HiGHS now and then writes a line of its own to the standard output, past Python: it would spoil what is printed."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _all(runs: Sequence[Run], processes: int, progress: Progress | None) -> list[Outcome]:
    if min(processes, len(runs)) > 1:
        return _in_processes(runs, min(processes, len(runs)), progress)
    shares = [0.0] * len(runs)
    outcomes = []
    for index, run in enumerate(runs):
        outcomes.append(_run(run, partial(_tell, shares, index, progress)))
        _tell(shares, index, progress, 1.0)
    return outcomes


def _tell(shares: list[float], index: int, progress: Progress | None, share: float) -> None:
    shares[index] = share
    if progress is not None:
        progress(shares)


def _run(run: Run, watch: Callable[[float], None]) -> Outcome:
    try:
        return replay(run.policy, run.source.tasks(), run.rules, workload=run.source.name, watch=watch)
    except Refused as error:
        raise Refused(f"{run.policy} on {run.source.name}: {error.message}", error.hint) from None


# -- several processes -------------------------------------------------------------------------------------------------

_shares: MutableSequence[float] = []  # in a worker: memory that it shares with the process that started it


def _in_processes(runs: Sequence[Run], processes: int, progress: Progress | None) -> list[Outcome]:
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(runs), lock=False)
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_prepare, initargs=(shares,))
    try:
        with _deaf():
            futures = [pool.submit(_work, run, index) for index, run in enumerate(runs)]
        pending: set[Future[Outcome]] = set(futures)
        while pending:
            done, pending = wait(pending, LOOK_SECONDS, FIRST_EXCEPTION)
            for future in done:
                future.result()
            if progress is not None:
                progress(list(shares))
        return [future.result() for future in futures]
    except BrokenExecutor:
        raise GpqError("a process of the simulation was killed", "give it more memory, or fewer processes") from None
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started meanwhile never hear Ctrl-C: whoever started them ends them."""
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)


def _prepare(shares: MutableSequence[float]) -> None:
    """In a worker: where to say how far it is. It does not outlive the process that started it."""
    global _shares
    _shares = shares
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _work(run: Run, index: int) -> Outcome:
    def watch(share: float) -> None:
        _shares[index] = share

    outcome = _run(run, watch)
    watch(1.0)
    return outcome
