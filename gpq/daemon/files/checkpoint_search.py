"""Which server has the newest checkpoint of a job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpq.core.feasibility.checkpoints import has_checkpoint, holders
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.daemon.files.transfer import GIVE_UP, LOOK, Abandoned, Task
from gpq.errors import GpqError, NodeSilent

# an operation of a server. Raises NodeSilent, GpqError
AskNode = Callable[[NodeId, str, Mapping[str, Any], Seconds], Mapping[str, Any]]

LISTING: Seconds = 600.0  # to look at all files of a job


class Stays(GpqError):
    """Why a checkpoint cannot be restored on another server."""


class CheckpointSearch:
    """`ask` is an operation of a server, and `view` gives the newest snapshot. `is_wanted` tells
    whether the attempt of a task should still start."""

    def __init__(
        self,
        ask: AskNode,
        view: Callable[[], Snapshot],
        is_wanted: Callable[[Task], bool],
    ) -> None:
        self._ask = ask
        self._view = view
        self._is_wanted = is_wanted

    def newest(self, task: Task, job: Job) -> NodeId | None:
        """None if there is nothing to copy. Raises NodeSilent if no server that has it answered for
        GIVE_UP seconds, Abandoned, and Stays."""
        until = time.monotonic() + GIVE_UP
        source = job.files.node if job.files else ""
        while True:
            snapshot = self._view()
            nodes = holders(snapshot, job)
            task.what = f"its checkpoint from {next(iter(nodes), source)}"
            for node in nodes:
                with contextlib.suppress(NodeSilent):
                    is_there = self._look(node, job.id)["count"]
                    return node if is_there else self._elsewhere(snapshot, job, nodes)
            if not has_checkpoint(job):
                return None
            task.note = f"server {nodes[-1] if nodes else source} does not answer"
            if time.monotonic() > until:
                raise NodeSilent(task.note, "`gpq nodes` shows since when and why")
            if not self._is_wanted(task):
                raise Abandoned
            time.sleep(LOOK)

    def _look(self, node: NodeId, job: JobId) -> Mapping[str, Any]:
        """What the server has of the job, as its errand `files` answers."""
        errand = {"errand": "files", "fields": {"job": job}, "limit": LISTING}
        answer: Mapping[str, Any] = self._ask(node, "errand", errand, LISTING)["answer"]
        if answer.get("error"):
            raise GpqError(f"server {node}: {answer['error']}", "try again")
        if answer["stays"]:
            raise Stays(f"its checkpoint cannot leave server {node}: {answer['stays']}")
        return answer

    def _elsewhere(self, snapshot: Snapshot, job: Job, nodes: Sequence[NodeId]) -> NodeId | None:
        """The server with the newest checkpoint of those not in `nodes`, after these lost it."""
        ages: dict[NodeId, list[int]] = {}
        for node in sorted(snapshot.nodes):
            if node in nodes or snapshot.nodes[node].state is not NodeState.UP:
                continue
            with contextlib.suppress(NodeSilent):
                answer = self._look(node, job.id)
                if answer["count"]:
                    ages[node] = list(answer["age"])
        return max(ages, key=lambda node: ages[node], default=None)
