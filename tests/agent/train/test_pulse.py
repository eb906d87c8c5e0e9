"""Where a replica is, and how long its steps take compared with those of the others."""

from __future__ import annotations

import math
import struct
import time
from pathlib import Path

import pytest
import torch
from gpq_agent import wire
from gpq_agent.node.attempt_files import pulses
from gpq_agent.train.data.batches import Configuration
from gpq_agent.train.process.channels import Heartbeat
from gpq_agent.train.process.timing import WARM_UP, StepClock, StepTimes

from tests.support.figures import Figures


def test_the_agent_reads_what_the_replica_writes(tmp_path: Path) -> None:
    first, third = Heartbeat(str(tmp_path), 0), Heartbeat(str(tmp_path), 10)
    assert pulses(str(tmp_path)) == [wire.Pulse(0, 0, "starting", 0.0), wire.Pulse(10, 0, "starting", 0.0)]
    first.beat(7, "computing")
    third.beat(6, "arrived")
    before = pulses(str(tmp_path))
    assert [one[:3] for one in before] == [(0, 7, "computing"), (10, 6, "arrived")]
    time.sleep(0.25)
    first.phase("arrived")  # not a step, so the age of the last step keeps growing
    third.beat(7, "computing")
    ages = [one.age for one in pulses(str(tmp_path))]
    assert ages[0] >= 0.2
    assert ages[0] > ages[1] + 0.1, "the step of replica 10 began a quarter of a second later"


def test_invalid_heartbeats_are_ignored_and_nothing_is_written_without_a_folder(tmp_path: Path) -> None:
    Heartbeat(str(tmp_path), 0).beat(3, "saving")
    (tmp_path / f"{wire.RANK}1").write_bytes(b"short")
    (tmp_path / f"{wire.RANK}2").write_bytes(b"\xff" * 32)
    (tmp_path / f"{wire.RANK}x").write_bytes((tmp_path / f"{wire.RANK}0").read_bytes())
    valid = (tmp_path / f"{wire.RANK}0").read_bytes()
    layout = struct.Struct(wire.PULSE)
    first, _, phase, since = layout.unpack(valid[: layout.size])
    for rank, step in (("3", 1 << 60), ("4", -1), ("-5", 1), ("\u00b2", 1), ("9" * 200, 1)):
        (tmp_path / f"{wire.RANK}{rank}").write_bytes(layout.pack(first, step, phase, since))
    (tmp_path / f"{wire.RANK}6").write_bytes(layout.pack(first, 1, phase, math.nan))
    assert [one[:3] for one in pulses(str(tmp_path))] == [(0, 3, "saving")]
    for rank in range(5000):
        (tmp_path / f"{wire.RANK}{rank}").write_bytes(valid)
    assert len(pulses(str(tmp_path))) <= 4096
    Heartbeat(None, 0).beat(1, "computing")
    Heartbeat(str(tmp_path / "nowhere"), 0).beat(1, "computing")
    assert pulses(str(tmp_path / "nowhere")) == []


def test_a_heartbeat_costs_microseconds(tmp_path: Path, figures: Figures) -> None:
    pulse = Heartbeat(str(tmp_path), 0)
    best = 1.0
    for _ in range(20):
        begin = time.perf_counter()
        for step in range(100):
            pulse.beat(step, "computing")
            pulse.phase("arrived")
        best = min(best, (time.perf_counter() - begin) / 100)
    figures.at_most("two writes of a step", best * 1e3, 0.05, "ms")


class Clock(StepClock):
    """The test decides when marks are reached."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.now = 0.0
        self.mark = lambda: self.now


def micro(times: StepTimes, clock: Clock, *, first: bool, last: bool, seconds: float, waited: float = 0.0) -> None:
    times.start()
    times.begin(Configuration(1, 8, 1, 32), first=first, usable=True)
    ready = clock.now + seconds - waited
    clock.now += seconds
    times.end(synchronised=last, tail=(ready, ready + waited) if last else None)


def test_a_window_has_only_complete_steps_and_their_time_before_the_wait() -> None:
    clock = Clock()
    times = StepTimes(clock)
    for _ in range(WARM_UP + 2):
        micro(times, clock, first=True, last=False, seconds=1.0)
        micro(times, clock, first=False, last=True, seconds=4.0, waited=2.5)
    micro(times, clock, first=True, last=False, seconds=1.0)
    times.discard()
    micro(times, clock, first=False, last=True, seconds=100.0)
    assert times.flush() != []
    steps, compute, p95, whole, wait, fetch = times.window()
    assert (steps, compute, p95, whole, wait) == (2.0, 2.5, 2.5, 5.0, 2.5)
    assert fetch == pytest.approx(0.0, abs=0.1)
    assert times.window() == [0.0] * 6
