"""Removes what nobody needs any more: checkpoint copies of ended jobs except the last one, and code
of no live job. It checks the state, not changes: if a server does not answer, a later pass finds
what it missed."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from gpq.core.feasibility.checkpoints import shares
from gpq.core.model.nodes import Node, NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.daemon.files.staging import AskNode
from gpq.errors import GpqError
from gpq.ports import History

log = logging.getLogger(__name__)

PERIOD: Seconds = 60.0
ANSWER: Seconds = 20.0
YOUNG: Seconds = 3600.0  # an archive may belong to a job that is just being submitted


class GarbageCollector:
    """`start`, then `close`. `codes` is the folder of the archives."""

    def __init__(
        self, ask: AskNode, view: Callable[[], Snapshot], past: History, codes: str
    ) -> None:
        self._ask = ask
        self._view = view
        self._past = past
        self._codes = codes
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(PERIOD):
            self._try()

    def _try(self) -> None:
        try:
            self.look()
        except Exception:
            log.exception("cannot remove files that are no longer needed")

    def look(self) -> None:
        """Once over all servers that answer, and the daemon's own archives."""
        snapshot = self._view()
        for _, node in sorted(snapshot.nodes.items()):
            if node.state is NodeState.UP and node.storage:
                with contextlib.suppress(GpqError):
                    # it no longer answers, or a job runs there: a later pass does it
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

    def _drop(self, node: NodeId, subject: dict[str, object]) -> None:
        if subject.get("job") in self._view().jobs:
            return
        self._ask(node, "drop", subject, ANSWER)
        log.info("%s: removed the files of %s", node, subject)


def _live_archives(snapshot: Snapshot) -> set[str]:
    return {archive for job in snapshot.jobs.values() for archive in job.spec.archives}
