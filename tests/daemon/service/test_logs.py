"""What `gpq logs` gets around the start of an attempt."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gpq.cli.jobs import logs
from gpq.control.controller import Controller
from gpq.control.logs import FIRST_PIECE, LogReader
from gpq.core.model.events import Launched
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import BatchOrder
from gpq.core.model.snapshot import Config
from gpq.core.model.units import JobId, NodeId
from gpq.errors import GpqError, NodeSilent, UsageError
from gpq.policies.fifo import Fifo
from gpq.rpc.job_answers import LogChunk
from gpq.rpc.requests import Logs
from tests.support.builders import black_box, job, on, snapshot
from tests.support.figures import Figures
from tests.support.memory_store import MemoryStore
from tests.support.sim_world import SimWorld

ONE = JobId(1)


def look(now: Job, tail: Mapping[str, Any] | None) -> LogChunk:
    """The answer while the snapshot knows `now` and the journal its first launch. The server does not have the attempt,
    so it answers None."""
    store = MemoryStore()
    store.commit([Launched(0.0, ONE, 1, on("a", 0), BatchOrder())], snapshot(now))

    def asked(*_: object) -> Mapping[str, Any]:
        if tail is None:
            raise GpqError("node a: no attempt 1.1 on this node")
        return tail

    controller = Controller(SimWorld([], []), store, Fifo(), Config())
    return LogReader(controller, store, asked).read(ONE, Logs("1"), lambda: False)


def test_an_attempt_unknown_to_the_snapshot_is_not_over() -> None:
    assert not look(job(1, spec_=black_box()), {"data": "", "offset": 0, "size": 0}).ended


def test_a_node_that_has_not_started_the_attempt_yet_has_an_empty_log_and_one_that_lost_it_says_so() -> None:
    fields = {"spec_": black_box(), "attempt": 1, "placement": on("a", 0), "launched_at": 0.0}
    chunk = look(job(1, state=JobState.STARTING, **fields), None)
    assert (chunk.data, chunk.ended) == ("", False)
    with pytest.raises(GpqError, match="no attempt"):
        look(job(1, state=JobState.RUNNING, started_nodes=(NodeId("a"),), **fields), None)


def test_a_finished_attempt_unknown_to_its_server_gives_the_last_piece() -> None:
    chunk = look(job(1, spec_=black_box(), attempt=1), None)  # queued again because its server refused it
    assert (chunk.silent, chunk.ended, chunk.attempts) == ("node a: no attempt 1.1 on this node", True, [1])


def test_a_reader_that_does_not_follow_is_also_told_about_a_silent_server() -> None:
    def silent(offset: int, limit: int) -> Mapping[str, Any]:
        raise NodeSilent("node a does not answer")

    chunk = reader(silent).read(ONE, Logs("1"), lambda: False)
    assert (chunk.silent, chunk.ended) == ("node a does not answer", False)


def reader(tail: Callable[[int, int], Mapping[str, Any]]) -> LogReader:
    """Reads the log of a running job. `tail` gets offset and limit."""
    store = MemoryStore()
    running = job(1, state=JobState.RUNNING, spec_=black_box(), attempt=1, placement=on("a", 0), launched_at=0.0)
    store.commit([Launched(0.0, ONE, 1, on("a", 0), BatchOrder())], snapshot(running))
    controller = Controller(SimWorld([], []), store, Fifo(), Config())
    return LogReader(controller, store, lambda node, name, attempt, offset, limit: tail(offset, limit))


def test_a_follower_waits_for_a_silent_server_and_is_told_about_it(figures: Figures) -> None:
    def silent(offset: int, limit: int) -> Mapping[str, Any]:
        raise NodeSilent("node a does not answer")

    began = time.monotonic()
    chunk = reader(silent).read(ONE, Logs("1", offset=7, wait=100.0), lambda: False)
    figures.at_most("until a reader that waits 100 s is told about the silence", time.monotonic() - began, 10.0)
    assert (chunk.silent, chunk.data, chunk.offset, chunk.ended) == ("node a does not answer", "", 7, False)


def test_requests_are_no_larger_than_the_connection_can_carry_soon() -> None:
    def way(bytes_a_second: float) -> tuple[LogReader, list[int]]:
        asked: list[int] = []

        def tail(offset: int, limit: int) -> Mapping[str, Any]:
            asked.append(limit)
            time.sleep(limit / bytes_a_second)
            return {"data": base64.b64encode(b"x" * limit).decode(), "offset": offset + limit, "size": 1 << 40}

        return reader(tail), asked

    slow, of_slow = way(100_000)
    fast, of_fast = way(1e12)
    for _ in range(9):
        for each in (slow, fast):
            each.read(ONE, Logs("1", limit=1 << 20), lambda: False)
    assert all(20_000 < piece < 50_000 for piece in of_slow)
    assert of_fast[-1] == 1 << 20


def test_the_part_that_the_limit_removed_is_skipped_and_reported() -> None:
    def cut(offset: int, limit: int) -> Mapping[str, Any]:
        data = base64.b64encode(b"end").decode()
        return {"data": data, "offset": offset + 5_000_000 + 3, "size": 9_000_000, "skipped": 5_000_000}

    chunk = reader(cut).read(ONE, Logs("1", offset=100), lambda: False)
    assert (base64.b64decode(chunk.data), chunk.offset, chunk.skipped) == (b"end", 5_000_103, 5_000_000)


@pytest.mark.parametrize(("tail", "found"), [(4, b"6789"), (100, b"0123456789")])
def test_a_tail_begins_that_many_bytes_before_the_end(tail: int, found: bytes) -> None:
    log, asked = b"0123456789", []

    def told(offset: int, limit: int) -> Mapping[str, Any]:
        asked.append(limit)
        data = log[offset : offset + limit]
        return {"data": base64.b64encode(data).decode(), "offset": offset + len(data), "size": len(log)}

    reads = reader(told)
    chunk = reads.read(ONE, Logs("1", tail=tail), lambda: False)
    assert (base64.b64decode(chunk.data), chunk.offset) == (found, len(log))
    reads.read(ONE, Logs("1"), lambda: False)
    assert asked == [1, FIRST_PIECE, FIRST_PIECE], "the byte that shows the size says nothing about the speed"
    with pytest.raises(UsageError, match="negative"):
        reads.read(ONE, Logs("1", tail=-1), lambda: False)


@pytest.mark.parametrize("skipped", [-3, 4, "many", None])
def test_an_invalid_hole_is_not_trusted(skipped: object) -> None:
    def lying(offset: int, limit: int) -> Mapping[str, Any]:
        return {"data": "", "offset": offset + 3, "size": 3, "skipped": skipped}

    chunk = reader(lying).read(ONE, Logs("1"), lambda: False)
    assert (chunk.offset, chunk.skipped) == (0, 0)


def test_the_command_says_how_much_was_left_out_on_a_line_of_its_own(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def piece(data: bytes, offset: int, skipped: int = 0) -> LogChunk:
        text = base64.b64encode(data).decode()
        return LogChunk(1, "a", text, offset, False, [1], ["a"], "running", skipped=skipped)

    transcript = logs.Transcript(filtered=False)
    transcript.write(piece(b"head", 4))
    transcript.write(piece(b"end\n", 8 + (3 << 20), 3 << 20))
    said = capfdbinary.readouterr().out
    assert said == b"head\n--- 3 MiB left out: the log exceeded its limit (log_limit) ---\nend\n"
