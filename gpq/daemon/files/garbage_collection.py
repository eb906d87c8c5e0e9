"""Removes what nobody needs any more: checkpoint copies of ended jobs except the last one, code of
no live job, and all files of jobs that the database has removed. It checks the state, not changes:
if a server does not answer, a later pass finds what it missed."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

from gpq.core.feasibility.checkpoints import shares
from gpq.core.model.nodes import Node, NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.daemon.files.staging import AskNode
from gpq.errors import GpqError, NodeSilent
from gpq.pace import deadline, left
from gpq.ports import History

log = logging.getLogger(__name__)

PERIOD: Seconds = 60.0
THOUSAND = 1000  # jobs whose ended attempts a server keeps in one folder
ANSWER: Seconds = 20.0
SWEEP: Seconds = 30.0  # for the removed jobs of one server, so that others have their turns
NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
YOUNG: Seconds = 3600.0  # an archive may belong to a job that is just being submitted


class GarbageCollector:
    """`start`, then `close`. `codes` is the folder of the archives. `expire` removes the jobs whose
    time is over, and comes before each look."""

    def __init__(
        self,
        ask: AskNode,
        view: Callable[[], Snapshot],
        past: History,
        codes: str,
        expire: Callable[[], object] = lambda: None,
    ) -> None:
        self._ask = ask
        self._expire = expire
        self._view = view
        self._past = past
        self._codes = codes
        self._closing = False
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hasten(self) -> None:
        """A look at once."""
        self._due.set()

    def close(self) -> None:
        self._closing = True
        self._due.set()

    def _run(self) -> None:
        while True:
            self._due.wait(PERIOD)
            if self._closing:
                return
            self._try(self._expire)
            self._due.clear()  # if that removed something, this look is for it
            self._try(self.look)

    def _try(self, task: Callable[[], object]) -> None:
        try:
            task()
        except Exception:
            log.exception("cannot remove what is no longer needed")

    def look(self) -> None:
        """Once over all servers that answer, and the daemon's own archives."""
        snapshot = self._view()
        for _, node in sorted(snapshot.nodes.items()):
            if node.state is NodeState.UP and node.storage:
                with contextlib.suppress(GpqError, *NONSENSE):
                    # it no longer answers, or with nonsense: a later pass does it
                    self._look_at(snapshot, node)
        live_codes = _live_archives(snapshot)
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._codes)):
                path, is_live = (
                    os.path.join(self._codes, name),
                    name.partition(".")[0] in live_codes,
                )
                with contextlib.suppress(OSError):
                    if not is_live and time.time() - os.stat(path).st_mtime > YOUNG:
                        os.unlink(path)

    def _look_at(self, snapshot: Snapshot, node: Node) -> None:
        inventory = self._ask(node.id, "kept", {}, ANSWER)
        ids = (JobId(int(name)) for name in inventory["jobs"])
        # an older state of the database does not know all of them
        ended_ids = [name for name in ids if name < snapshot.next_id and name not in snapshot.jobs]
        for job in self._past.history(ids=ended_ids):
            if job.files is not None and not shares(snapshot, job, node.id):
                self._drop(node.id, {"job": job.id})
        live_codes = _live_archives(snapshot)
        for code in (*inventory["code"], *inventory["coming"]):
            if code not in live_codes:
                self._drop(node.id, {"code": str(code)})
        if self._past.has_removed():
            self._sweep(node.id, inventory)

    def _sweep(self, node: NodeId, inventory: Mapping[str, list[Any]]) -> None:
        """Remove the files of all jobs that the database has removed."""
        early_ids = {int(name) for name in inventory.get("early", [])}
        owners = {JobId(int(name)) for name in (*inventory["jobs"], *early_ids)}
        until, removed_ids = deadline(SWEEP), self._past.removed_ids(sorted(owners))
        for name in takewhile(lambda _: left(until) > 0 and not self._closing, removed_ids):
            self._drop(node, {"job": name, "early": name in early_ids})  # which lists the folder
        for folder in inventory.get("forgotten", []):
            first = int(folder) * THOUSAND
            jobs = self._past.removed_ids([JobId(first + number) for number in range(THOUSAND)])
            before = math.inf
            while jobs and left(until) > 0 and not self._closing:
                attempts = int(self._drop(node, {"forgotten": folder, "jobs": jobs}).get("left", 0))
                if not 0 < attempts < before:
                    break
                before = attempts

    def _drop(self, node: NodeId, subject: dict[str, object]) -> Mapping[str, Any]:
        """The answer of the server, {} if it refuses: something runs there."""
        if subject.get("job") in self._view().jobs:
            return {}
        try:
            answer = self._ask(node, "drop", subject, ANSWER)
        except NodeSilent:
            raise
        except GpqError:
            return {}
        if "forgotten" not in subject:  # of these, all are named again as long as one has files
            log.info("%s: removed the files of %s", node, subject)
        return answer


def _live_archives(snapshot: Snapshot) -> set[str]:
    return {archive for job in snapshot.jobs.values() for archive in job.spec.archives}
