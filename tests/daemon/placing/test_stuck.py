"""gpq shows a job as stuck, with the reason, if its server cannot end it. It shows no other job as stuck."""

from __future__ import annotations

import os
from typing import Any

from gpq.control.reader import Reader
from gpq.core.model.nodes import DeviceState
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.reconcile import stuck_reason
from gpq.core.state.apply_events import fold
from gpq.daemon.clock import Clock
from gpq.daemon.nodes.observer import Observer
from gpq.daemon.nodes.settings import NodeSettings
from tests.support.builders import black_box, on, running, snapshot
from tests.support.explanations import explain

A = NodeId("a")
WHY = "pid 77 (python, state D) cannot be killed: the kernel holds it"
SLOT: dict[str, Any] = {"id": "slot-0", "index": 0, "kind": "cpu", "type": "cpu", "memory_mib": 1}


def info(job: int, note: str, state: str = "running") -> dict[str, Any]:
    return {"job": job, "attempt": 1, "state": state, "pid": 7, "devices": ["slot-0"], "exit": {"note": note}}


def test_a_note_about_a_live_attempt_is_its_jobs_reason_and_its_device_stays_in_use() -> None:
    job = running(1, on("a", 0), spec_=black_box(), declared=False)
    observer = Observer(NodeSettings(A), Clock())
    before = snapshot(job)
    known = {(JobId(1), 1): info(1, WHY), (JobId(2), 1): info(2, "gone", state="exited")}
    events, _ = observer.news(known, [SLOT], before, offsets={}, start_possible=lambda _: False)
    after = fold(before, events).snapshot
    assert after.nodes[A].stuck == (("1.1", WHY),)
    assert after.nodes[A].devices[0].state is DeviceState.OK  # it is held, so nobody else gets it anyway
    assert stuck_reason(after, after.jobs[JobId(1)]) == f"a: {WHY}"
    row = Reader(after, None, 0.0).job(after.jobs[JobId(1)])
    assert (row.state, row.reason) == ("running", f"stuck: a: {WHY}")
    said = explain(after, None, after.jobs[JobId(1)])
    assert said.headline.startswith("stuck: ")
    assert "Everything else on a runs as usual" in said.reasons[1]
    known = {(JobId(1), 1): info(1, "")}
    events, _ = observer.news(known, [SLOT], after, offsets={}, start_possible=lambda _: False)
    assert stuck_reason(fold(after, events).snapshot, job) == ""


def test_a_long_note_is_cut() -> None:
    observer = Observer(NodeSettings(A), Clock())
    job = running(1, on("a", 0), spec_=black_box(), declared=False)
    known = {(JobId(1), 1): info(1, "x" * os.sysconf("SC_PAGESIZE"))}
    events, _ = observer.news(known, [SLOT], snapshot(job), offsets={}, start_possible=lambda _: False)
    [(_, why)] = fold(snapshot(job), events).snapshot.nodes[A].stuck
    assert len(why) == 500
