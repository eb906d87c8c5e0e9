"""The tree of an attempt: everything below its shim, and everything that carries its mark. gpq
signals nothing else."""

import contextlib
import os
import time
from collections import Counter
from typing import Dict, List, Optional, Set, Tuple

from gpq_agent import wire
from gpq_agent.node.host import procs

YOUNG = 1.0  # seconds. Older processes are read together with their parents

NAMED = 3  # processes that a note names


class Tree:
    """Live processes of one attempt.

    `root` is the shim, which as subreaper becomes the parent of every escapee. It is None once that
    shim is gone. Then only the mark in the environment shows who owns a process.
    """

    def __init__(self, mark: str, root: Optional[int]) -> None:
        self.mark = mark
        self.root = root
        self._told: Set[Tuple[int, int, int]] = set()
        self._groups: Set[int] = set()  # groups that members were in

    def members(self) -> List[procs.Process]:
        """Sorted by pid, without the shim and without processes that only wait to be collected."""
        return self._of(procs.snapshot())

    def _of(self, processes: Dict[int, procs.Process]) -> List[procs.Process]:
        pids = procs.marked_pids(wire.ENV_MARK, self.mark, processes)
        pids |= procs.descendants(pids, processes)
        if self.root is not None:
            pids |= procs.descendants([self.root], processes)
        pids -= {os.getpid(), self.root}
        members = [processes[pid] for pid in sorted(pids) if processes[pid].alive]
        self._groups.update(process.group for process in members)
        return members

    def signal_once(self, number: int) -> List[procs.Process]:
        """Send a signal to every member that has not had it yet. Return the members."""
        members = self.members()
        for process in members:
            receipt = (process.pid, process.start_time, number)
            if receipt not in self._told and procs.send(process, number):
                self._told.add(receipt)
        return members

    def signal_groups(self, number: int) -> None:
        """Signal whole process groups at once. Even a process that forks faster than gpq can look
        cannot escape that.

        A group lies within a session, and the first process started its own session. So every
        process in a group of a member belongs to the tree, even if its parent, or the process
        itself, is gone before gpq reads it. Groups with an older process that does not belong to
        the tree get no signal.
        """
        processes = procs.snapshot()
        own_pids = {process.pid for process in self._of(processes)}
        seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - YOUNG
        youngest_start = seconds * os.sysconf("SC_CLK_TCK")
        strangers = {
            process.group
            for process in processes.values()
            if process.alive and process.pid not in own_pids and process.start_time < youngest_start
        }
        for group in sorted(self._groups - strangers - {0, 1, os.getpgrp()}):
            with contextlib.suppress(OSError):
                os.killpg(group, number)


def summary(members: List[procs.Process]) -> str:
    """``5 processes (4 sleep, 1 bash)``: the most frequent names."""
    counts = Counter(process.name for process in members).most_common(NAMED)
    listing = ", ".join("{} {}".format(count, name) for name, count in counts)
    return "{} process{} ({})".format(len(members), "es" if len(members) > 1 else "", listing)


def names(members: List[procs.Process]) -> str:
    """``7 (python, state D) and 2 more``."""
    descriptions = [
        "{} ({}, state {})".format(process.pid, process.name, process.state)
        for process in members[:NAMED]
    ]
    unnamed = len(members) - NAMED
    return ", ".join(descriptions) + (" and {} more".format(unnamed) if unnamed > 0 else "")
