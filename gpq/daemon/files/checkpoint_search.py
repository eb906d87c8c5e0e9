"""Which server has the newest checkpoint of a job, and which files it consists of."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpq.core.feasibility.checkpoints import has_checkpoint, holders
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.daemon.files.task import Task
from gpq.daemon.files.transfer import GIVE_UP, LONG_WORK, LOOK, Abandoned, Ask
from gpq.errors import GpqError, NodeSilent

Checkpoint = tuple[NodeId, list[Any]]  # where it is, and its files


class Stays(GpqError):
    """Why a checkpoint cannot be restored on another server."""


class CheckpointSearch:
    """`ask` gives the operations of a server and `view` the newest snapshot. `is_wanted` tells
    whether the attempt of a task should still start."""

    def __init__(
        self,
        ask: Callable[[NodeId], Ask],
        view: Callable[[], Snapshot],
        is_wanted: Callable[[Task], bool],
    ) -> None:
        self._ask = ask
        self._view = view
        self._is_wanted = is_wanted

    def newest(self, task: Task, job: Job) -> Checkpoint | None:
        """None if there is nothing to copy. Raises NodeSilent if no server that has it answered for
        GIVE_UP seconds, Abandoned, and Stays."""
        until = time.monotonic() + GIVE_UP
        source = job.files.node if job.files else ""
        while True:
            snapshot = self._view()
            nodes = holders(snapshot, job)
            task.what = f"its checkpoint from {next(iter(nodes), source)}"
            checkpoint, silence = self._first(job.id, nodes)
            if checkpoint is not None:
                _, files = checkpoint
                return checkpoint if files else self._elsewhere(snapshot, job, nodes)
            if not has_checkpoint(job):
                return None
            task.note = silence or _silence(source)
            if time.monotonic() > until:
                raise NodeSilent(task.note, "`gpq nodes` shows since when and why")
            if not self._is_wanted(task):
                raise Abandoned
            time.sleep(LOOK)

    def _listing(self, node: NodeId, job: JobId) -> Mapping[str, Any]:
        """As wire's `files`."""
        answer = self._ask(node)("files", {"job": job}, LONG_WORK)
        if answer["stays"]:
            raise Stays(f"its checkpoint cannot leave server {node}: {answer['stays']}")
        return answer

    def _first(self, job: JobId, nodes: Sequence[NodeId]) -> tuple[Checkpoint | None, str]:
        """(the first of `nodes` that answers, what it has, why the others do not answer)."""
        silence = ""
        for node in nodes:
            with contextlib.suppress(NodeSilent):
                return (node, list(self._listing(node, job)["files"])), ""
            silence = _silence(node)
        return None, silence

    def _elsewhere(
        self, snapshot: Snapshot, job: Job, nodes: Sequence[NodeId]
    ) -> Checkpoint | None:
        """The newest checkpoint on a server that is not in `nodes`, after its server lost it."""
        candidates: list[tuple[list[int], NodeId, list[Any]]] = []
        for node in sorted(snapshot.nodes):
            if node in nodes or snapshot.nodes[node].state is not NodeState.UP:
                continue
            with contextlib.suppress(NodeSilent):
                answer = self._listing(node, job.id)
                if answer["files"]:
                    candidates.append((list(answer["age"]), node, list(answer["files"])))
        if not candidates:
            return None
        _, node, files = max(candidates, key=lambda candidate: candidate[0])
        return node, files


def _silence(node: str) -> str:
    return f"server {node} does not answer"
