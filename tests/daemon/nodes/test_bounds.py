"""Whatever a server sends, its connection ends with one line that names the bound, and what an honest one sends breaks
none."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from gpq_agent import records, wire
from gpq_agent.node.spool import checkpoint_folder
from gpq_agent.node.states import fitting
from gpq_agent.node.watches import LONGEST_REPORT, MOST_REPORT

from gpq import pace
from gpq.core.model.events import Exited
from gpq.core.model.units import NodeId
from gpq.daemon.clock import Clock
from gpq.daemon.nodes import decode, link
from gpq.daemon.nodes.link import Link, LinkLost
from gpq.daemon.nodes.observer import Observer
from gpq.daemon.nodes.settings import NodeSettings
from tests.support.builders import on, running, snapshot

A = NodeId("a")
SILENCE = 0.5
END = {"job": 1, "attempt": 1, "code": 0, "signal": None, "stopped": False, "asked": None}
END = {**END, "started_at": 1.0, "ended_at": 2.0}


class Pipes:
    """A channel. `there` is the server's end of its output, `heard` reads what the daemon said."""

    def __init__(self) -> None:
        reader, there = os.pipe()
        heard, writer = os.pipe()
        self.reader: BinaryIO = os.fdopen(reader, "rb", buffering=0)
        self.there: BinaryIO = os.fdopen(there, "wb", buffering=0)
        self.heard: BinaryIO = os.fdopen(heard, "rb")
        self.writer: BinaryIO = os.fdopen(writer, "wb", buffering=0)

    def last_words(self) -> str:
        return ""

    def close(self) -> None:
        for stream in (self.reader, self.there, self.heard, self.writer):
            with contextlib.suppress(OSError):
                stream.close()


def talk(say: Callable[[BinaryIO, int], None], op: str = "watch") -> tuple[str, list[Mapping[str, Any]]]:
    """One request, and what the server says to it: why the link was lost, and the replies before that."""
    pipes = Pipes()
    wires = Link(pipes, "a")
    replies: list[Mapping[str, Any]] = []
    wires.send(op, {}, replies.append)
    number = json.loads(pipes.heard.readline())["id"]

    def server() -> None:
        with contextlib.suppress(OSError, ValueError):  # the daemon has hung up
            say(pipes.there, number)
        with contextlib.suppress(OSError):
            pipes.there.close()

    thread = threading.Thread(target=server)
    thread.start()
    try:
        wires.serve(SILENCE)
    except LinkLost as error:
        pipes.reader.close()
        thread.join()
        wires.close(str(error))
        return str(error), [reply for reply in replies if not reply.get("lost")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "POLL", 0.05)


def write(stream: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]


def line(number: int, **fields: object) -> bytes:
    return wire.encode({"v": 1, "id": number, "ok": True, **fields})


DEVICE = {"id": "e", "kind": "cuda", "type": "t"}
FLOODS: dict[str, tuple[Callable[[int], bytes], str]] = {
    "a line without end": (lambda _: b"x" * (13 << 20), "a line of more than 12 MiB"),
    "noise": (lambda _: b"noise\n" * 20_000, "more than 64 KiB that are no answer"),
    "blank lines": (lambda _: b"\n" * 70_000, "more than 64 KiB that are no answer"),
    "deep": (lambda n: b'{"id":%d,"a":' % n + b"[" * 300_000 + b"]" * 300_000 + b"}\n", "more than 200,000 values"),
    "values": (lambda n: b'{"id":%d,"a":[' % n + b"{}," * 150_000 + b"0]}\n", "more than 200,000 values"),
    "quotes": (lambda n: b'{"id":%d,"a":[' % n + b'"",' * 900_000 + b"0]}\n", "more than 200,000 values"),
    "devices": (lambda n: line(n, devices=[DEVICE] * 3000), "devices has 3000 items, and the most is 2048"),
    "attempts": (lambda n: line(n, attempts=[{}] * 5000), "attempts has 5000 items, and the most is 4096"),
    "a text": (lambda n: line(n, digest="x" * 5000), "digest has 5000 characters, and the most is 4096"),
    "an unknown text": (lambda n: line(n, new="x" * 2_000_000), "new has 2000000 characters, and the most is 1048576"),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_what_breaks_a_bound_ends_the_connection_and_is_named(flood: str) -> None:
    data, words = FLOODS[flood]
    reason, replies = talk(lambda stream, number: write(stream, data(number)))
    assert words in reason
    assert replies == []


def test_the_longest_list_of_files_breaks_no_bound(tmp_path: Path) -> None:
    names = [*checkpoint_folder.jobs(str(tmp_path)), "forgotten"]
    lists = {name: ["f" * 64 if name == "code" else "12345678"] * wire.LENGTHS[name] for name in names}
    reason, [reply] = talk(lambda stream, number: write(stream, line(number, **lists)), "kept")
    assert reason == "the agent ended"
    assert all(len(reply[name]) == wire.LENGTHS[name] for name in names)


@pytest.mark.parametrize("drop", [b"x", b"x\n", b"\n", b'{"id":99}\n', b"[1]\n"])
def test_a_slow_drip_is_silence(drop: bytes) -> None:
    def drip(stream: BinaryIO, _: int) -> None:
        while True:
            stream.write(drop)
            time.sleep(0.02)

    reason, _ = talk(drip)
    assert reason == link.NO_ANSWER


def test_a_slow_look_after_the_greeting_is_no_silence() -> None:
    """An agent greets when it has read its spool, and then waits up to 10 s for the GPU driver."""

    def wake(stream: BinaryIO, number: int) -> None:
        time.sleep(0.7 * SILENCE)
        write(stream, wire.encode({"v": 1, "id": 0, "ok": True, "op": "hello"}))
        time.sleep(0.7 * SILENCE)
        write(stream, line(number))

    reason, replies = talk(wake)
    assert (reason, len(replies)) == ("the agent ended", 1)


def test_a_large_answer_over_a_slow_line_is_life() -> None:
    def trickle(stream: BinaryIO, number: int) -> None:
        data = line(number, data="x" * 1_000_000)
        for place in range(0, len(data), link.CHUNK):
            write(stream, data[place : place + link.CHUNK])
            time.sleep(SILENCE / 4)

    reason, replies = talk(trickle)
    assert reason == "the agent ended"
    assert [len(reply["data"]) for reply in replies] == [1_000_000]


def test_text_full_of_marks_counts_as_text_and_noise_before_an_answer_is_passed() -> None:
    text = ',[{\\"' * 200_000
    reason, replies = talk(lambda stream, n: write(stream, b"Welcome!\n" + line(n, report=text)))
    assert reason == "the agent ended"
    assert [reply["report"] for reply in replies] == [text]


def honest() -> dict[str, Any]:
    """As much as an agent ever says: each attempt has ended with the longest texts, in signs that JSON escapes."""
    words = "\x01" * 1000
    texts = ("note", "cause", "evidence", "excused", "boot_id", "unlaunched")
    end = {**END, **dict.fromkeys(texts, words), "stamp": 1e6, "oom": False, "fenced": False, "victim": False}
    infos = [
        wire.AttemptInfo(n, 1, "exited", 1 << 22, 1e9, end, "", 1 << 40, devices=["GPU-" + "x" * 36], damage=[words])
        for n in range(wire.LENGTHS["attempts"])
    ]
    reports = ["\x01" * (most // 6) for most in (MOST_REPORT, LONGEST_REPORT)]
    attempts = [info._asdict() for info in fitting(infos)]
    for attempt, report in zip(attempts, reports, strict=False):
        attempt["report"] = report
    device = wire.DeviceInfo("GPU-" + "x" * 36, 2047, "cuda", "NVIDIA " + "x" * 89, 1 << 20, "foreign", "x" * 200)
    devices = [device._replace(cores=[1023])._asdict()] * wire.LENGTHS["devices"]
    return {"digest": "x" * 64, "attempts": attempts, "devices": devices, "time": 1e9, "stamp": 1e6, "yields": []}


def test_the_largest_answer_of_an_honest_server_is_within_all_bounds() -> None:
    answer = honest()
    reason, replies = talk(lambda stream, number: write(stream, line(number, **answer)))
    assert reason == "the agent ended"
    [reply] = replies
    assert {name: reply[name] for name in answer} == answer
    attempts = decode.attempts_of(reply["attempts"])
    assert len(attempts) == wire.LENGTHS["attempts"]
    assert not any(info["damage"] for info in list(attempts.values())[-100:])
    assert all(info["exit"]["code"] == 0 for info in attempts.values())


def test_a_server_that_answers_no_request_is_given_up() -> None:
    pipes = Pipes()
    wires = Link(pipes, "a")
    replies: list[Mapping[str, Any]] = []
    reader = threading.Thread(target=pipes.heard.read)
    reader.start()
    for _ in range(link.MOST_PENDING + 1):
        wires.send("stop", {}, replies.append)
    assert [reply["error"] for reply in replies] == ["it left 16,384 requests unanswered"]
    with pytest.raises(LinkLost, match="requests unanswered"):
        wires.serve(SILENCE)
    reader.join()  # the daemon has hung up
    wires.close("over")
    assert len(replies) == link.MOST_PENDING + 1


def test_a_record_beyond_a_bound_is_damaged_alone() -> None:
    long = "x" * 70_000
    attempts = decode.attempts_of(
        [
            {"job": 1, "attempt": 1, "state": "exited", "exit": {**END, "note": long}},
            {"job": 2, "attempt": 1, "state": "exited", "exit": {**END, "note": "short"}},
        ]
    )
    assert [info["state"] for info in attempts.values()] == ["lost", "exited"]
    device = {"index": 0, "memory_mib": 1, "state": "ok", "kind": "cuda", "type": "t"}
    first, second = decode.devices_of([{**device, "id": long}, {**device, "id": "e"}], {})
    assert (len(first.id), first.state, first.reason) == (256, "degraded", "its server sent an invalid id")
    assert second.state == "ok"


def test_an_end_waits_for_a_report_that_did_not_fit_into_the_answer() -> None:
    observer = Observer(NodeSettings(A), Clock())
    observer.greet({})
    live = snapshot(running(1, on("a", 0)))
    info = {"job": 1, "attempt": 1, "state": "exited", "exit": END, "report_offset": 5}
    for unread in (True, False):
        events, more = observer.news(
            decode.attempts_of([{**info, "unread": unread}]),
            [],
            live,
            offsets={"1.1": 5},
            start_possible=lambda _: False,
        )
        assert (any(isinstance(event, Exited) for event in events), more) == (not unread, unread)


def test_a_server_with_ever_new_attempts_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    observer = Observer(NodeSettings(A), Clock())
    for number in range(1000):
        observer.note(f"attempt {number}.1 is not in this daemon's database")
    assert len(caplog.records) == 100


@pytest.mark.parametrize("name", ["devices", "digest"])
def test_the_bound_itself_is_accepted(name: str) -> None:
    most = records.LENGTHS[name]
    assert records.excess(name, "x" * most) == records.excess(name, [0] * most) == ""
    assert records.excess(name, [0] * (most + 1)) == f"{name} has {most + 1} items, and the most is {most}"


@pytest.fixture(scope="module", autouse=True)
def threads_end() -> Iterator[None]:
    before = threading.active_count()
    yield
    deadline = time.monotonic() + 10.0
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
