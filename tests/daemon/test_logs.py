"""What `gpq logs` is told in the moments around the start of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpq.control.controller import Controller
from gpq.core.events import Launched
from gpq.core.models import BatchOrder, Config, Job, JobState
from gpq.core.units import JobId, NodeId
from gpq.daemon.logs import LogReader
from gpq.errors import GpqError
from gpq.policies.fifo import Fifo
from gpq.rpc.messages import LogChunk, Logs
from gpq.sim.world import SimWorld
from gpq.store.memory import MemoryStore
from tests.builders import black_box, job, on, snapshot

ONE = JobId(1)


def look(now: Job, tail: Mapping[str, Any] | None) -> LogChunk:
    """The answer while the snapshot knows `now` and the journal its first launch; the node has no such attempt: None."""
    store = MemoryStore()
    store.commit([Launched(0.0, ONE, 1, on("a", 0), BatchOrder())], snapshot(now))

    def asked(*_: object) -> Mapping[str, Any]:
        if tail is None:
            raise GpqError("node a: no attempt 1.1 on this node")
        return tail

    controller = Controller(SimWorld([], []), store, Fifo(), Config())
    return LogReader(controller, store, asked).read(ONE, Logs("1"), lambda: False)


def test_an_attempt_that_the_snapshot_does_not_know_yet_is_not_over() -> None:
    assert not look(job(1, spec_=black_box()), {"data": "", "offset": 0, "size": 0}).ended


def test_a_node_that_has_not_started_the_attempt_yet_has_an_empty_log_and_one_that_lost_it_says_so() -> None:
    fields = {"spec_": black_box(), "attempt": 1, "placement": on("a", 0), "launched_at": 0.0}
    chunk = look(job(1, state=JobState.STARTING, **fields), None)
    assert (chunk.data, chunk.ended) == ("", False)
    with pytest.raises(GpqError, match="no attempt"):
        look(job(1, state=JobState.RUNNING, started_nodes=(NodeId("a"),), **fields), None)
