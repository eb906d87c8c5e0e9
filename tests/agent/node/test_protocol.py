"""The pipe: whatever comes through it, the agent answers and lives on. Also watching and reading logs."""

from __future__ import annotations

import base64
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node.host import logs
from gpq_agent.node.spool import spool
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.node.harness import NodeAgent, interpreters, wait_until
from tests.support.examples import examples


def test_the_greeting_says_who_it_is(node: NodeAgent) -> None:
    hello = node.ask("hello")
    assert node.greeting["op"] == "hello"
    for name in ("version", "boot_id", "python", "host", "spool"):
        assert node.greeting[name] == hello[name]
    assert hello["version"] == wire.VERSION
    assert hello["attempts"] == []
    assert len(hello["devices"]) == 4
    assert set(hello["devices"][0]) == set(wire.DeviceInfo._fields)


@pytest.mark.parametrize(
    "line", [b"not json\n", b"[1, 2]\n", b"\xff\xfe\n", b'{"v": 1\n', b"null\n", b"[" * 5000 + b"\n"]
)
def test_a_broken_line_gets_an_error_and_the_agent_lives_on(node: NodeAgent, line: bytes) -> None:
    node.send_bytes(line)
    reply = node.reply(None)
    assert not reply["ok"]
    assert reply["error"]
    assert node.ask("ping")["ok"]


def test_a_line_without_end_is_refused_and_skipped(node: NodeAgent) -> None:
    for _ in range(50):
        node.send_bytes(b"x" * (1 << 20))
    assert "longer than 16 MiB" in node.reply(None)["error"]
    node.send_bytes(b"tail of it\n")
    assert node.ask("ping")["ok"]


def test_an_unknown_operation_and_another_version_are_refused(node: NodeAgent) -> None:
    assert "unknown operation 'dance'" in node.try_ask("dance")["error"]
    node.send_bytes(wire.encode({"v": 99, "id": 77, "op": "ping"}))
    reply = node.reply(77)
    assert not reply["ok"]
    assert "version 1, not 99" in reply["error"]


@pytest.mark.parametrize("key", ["../../etc", "1", "1.2.3", "", "a.b", "1.1/../../..", None, 5])
def test_an_attempt_is_named_by_two_numbers_and_never_by_a_path(node: NodeAgent, key: object) -> None:
    for op in ("stop", "tail", "forget", "control"):
        reply = node.try_ask(op, attempt=key, mode="kill", grace=0, control={})
        assert not reply["ok"]
    assert node.ask("ping")["ok"]


def test_requests_with_wrong_fields_are_refused(node: NodeAgent) -> None:
    for op, fields in (
        ("watch", {"offsets": [1]}),
        ("watch", {"offsets": {"x": 1}}),
        ("watch", {"wait": "long"}),
        ("tail", {}),
        ("drop", {"job": "all"}),
        ("control", {"attempt": "1.1"}),
        ("start", {"order": 5}),
    ):
        assert not node.try_ask(op, **fields)["ok"], (op, fields)
    assert node.ask("ping")["ok"]


def test_random_bytes_never_end_the_agent(node: NodeAgent) -> None:
    generator = random.Random(3)
    for _ in range(300):
        node.send_bytes(generator.randbytes(generator.randrange(1, 200)).replace(b"\n", b"") + b"\n")
    assert node.ask("ping")["ok"]


def test_a_pending_watch_does_not_keep_other_requests_waiting(node: NodeAgent) -> None:
    digest = node.ask("watch", offsets={}, wait=0.0, seen="")["digest"]
    pending = [node.send("watch", offsets={}, wait=600.0, seen=digest) for _ in range(3)]
    assert node.ask("ping")["ok"]
    key = node.start(1, ["true"])
    for number in pending:
        assert node.reply(number)["attempts"]
    node.ended(key)


def test_a_watch_answers_after_its_time_when_nothing_happens(node: NodeAgent) -> None:
    first = node.ask("watch", offsets={}, wait=0.0, seen="")
    again = node.ask("watch", offsets={}, wait=0.05, seen=first["digest"])
    assert again["digest"] == first["digest"]
    assert again["time"] >= first["time"]


def test_reports_come_as_complete_lines_and_only_once(node: NodeAgent, tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "f = open(os.environ['GPQ_RUN_DIR'] + '/report.jsonl', 'ab', buffering=0)\n"
        "for i in range(200):\n"
        "    line = b'{\"n\": %d}\\n' % i\n"
        "    f.write(line[:4]); time.sleep(0.001); f.write(line[4:])\n"
        "f.write(b'half a li')\n"
    )
    key = node.start(1, [sys.executable, "-c", code])
    seen, offset, text = "", 0, ""
    ended = False
    while not ended:
        news = node.ask("watch", offsets={key: offset}, wait=5.0, seen=seen)
        seen, info = news["digest"], news["attempts"][0]
        assert info["report"] == "" or info["report"].endswith("\n")
        text, offset = text + info["report"], info["report_offset"]
        ended = info["state"] == "exited" and not info["report"]
    assert [json.loads(line)["n"] for line in text.splitlines()] == list(range(200))


def test_an_attempt_that_nobody_asked_about_sends_no_report(node: NodeAgent) -> None:
    key = node.start(1, ["sh", "-c", "echo '{}' > $GPQ_RUN_DIR/report.jsonl"])
    node.ended(key)
    info = node.ask("watch", offsets={}, wait=0.0, seen="")["attempts"][0]
    assert (info["report"], info["report_offset"]) == ("", 0)


def test_a_long_report_comes_in_parts_and_delays_no_other(node: NodeAgent) -> None:
    many = (
        'i=0; while [ $i -lt 20000 ]; do echo \'{"n": "0123456789012345678901234567890123456789"}\'; i=$((i+1)); done'
    )
    long = node.start(1, ["sh", "-c", f"({many}) > $GPQ_RUN_DIR/report.jsonl"])
    short = node.start(2, ["sh", "-c", "echo '{}' > $GPQ_RUN_DIR/report.jsonl"], devices=["slot-1"])
    node.ended(long)
    node.ended(short)
    news = node.ask("watch", offsets={long: 0, short: 0}, wait=0.0, seen="")
    reports = {one["job"]: one["report"] for one in news["attempts"]}
    assert reports[2] == "{}\n"
    assert 0 < len(reports[1]) <= 256 << 10
    offset, lines = 0, 0
    while True:
        info = next(
            a for a in node.ask("watch", offsets={long: offset}, wait=0.0, seen="")["attempts"] if a["job"] == 1
        )
        if not info["report"]:
            break
        offset, lines = info["report_offset"], lines + info["report"].count("\n")
    assert lines == 20000


def test_a_log_is_byte_exact_whatever_its_bytes_and_however_it_is_cut(node: NodeAgent, tmp_path: Path) -> None:
    generator = random.Random(4)
    content = generator.randbytes(300_000) + b"\r50%\r100%" + bytes(range(256)) * 4
    source = tmp_path / "content"
    source.write_bytes(content)
    key = node.start(1, ["cat", str(source)])
    node.ended(key)
    read, offset = b"", 0
    while offset < len(content):
        reply = node.ask("tail", attempt=key, offset=offset, limit=generator.randrange(1, 40_000))
        assert reply["size"] == len(content)
        read, offset = read + base64.b64decode(reply["data"]), reply["offset"]
        assert offset == len(read)
    assert read == content
    last = node.ask("tail", attempt=key, offset=-10, limit=100)
    assert base64.b64decode(last["data"]) == content[-10:]


def test_forgotten_attempts_are_not_reported_and_their_log_stays(node: NodeAgent) -> None:
    key = node.start(1, ["echo", "hello"])
    node.ended(key)
    node.ask("forget", attempt=key)
    node.ask("forget", attempt=key)
    assert node.attempts() == {}
    assert node.log(key) == b"hello\n"


def test_no_look_lists_what_was_forgotten_and_its_number_stays_used(agent: Callable[..., NodeAgent]) -> None:
    node = agent("--slots", "2")
    keys = ["999.1", "12042.1"]
    for job in (999, 12042):
        key = node.start(job, ["echo", str(job)])
        node.ended(key)
        node.ask("forget", attempt=key)
        assert node.attempts() == {}
    assert list((node.spool / "attempts").iterdir()) == []
    assert [node.folder(key).relative_to(node.spool).as_posix() for key in keys] == [
        "ended/0/999.1",
        "ended/12/12042.1",
    ]
    for other in (node, agent("--slots", "2")):
        assert other.attempts() == {}
        assert other.log("12042.1") == b"12042\n"
        assert other.try_ask("start", order=other.order(12042, ["true"]))["kind"] == "used"


def test_ended_attempts_of_removed_jobs_go_and_the_last_stays(node: NodeAgent) -> None:
    keys = {}
    for job in (7, 8, 1001, 1002):
        keys[job] = node.start(job, ["echo", str(job)])
        node.ended(keys[job])
        node.ask("forget", attempt=keys[job])
    assert node.attempts() == {}
    assert node.ask("kept")["forgotten"] == ["0", "1"]
    assert node.ask("drop", forgotten="0", jobs=[8, 9])["left"] == 0
    assert (node.log(keys[7]), node.folder(keys[8]).exists()) == (b"7\n", False)
    assert node.ask("drop", forgotten="0", jobs=[7])["left"] == 0
    assert node.ask("drop", forgotten="1", jobs=[1001, 1002])["left"] == 0
    assert node.ask("drop", forgotten="../attempts", jobs=[1002])["left"] == 0
    assert node.ask("kept")["forgotten"] == ["1"]
    assert node.log(keys[1002]) == b"1002\n", "it shows which numbers were used"


def test_attempts_go_in_parts_and_what_is_no_attempt_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = spool.Spool(str(tmp_path / "spool"))
    ended = tmp_path / "spool" / "ended"
    for name in ("0/7.1", "0/7.2", "0/8.1", "0/notes", "1/1001.1", "2/junk", "three/3.1"):
        (ended / name).mkdir(parents=True)
    (ended / "0" / "9.1").write_text("no folder: it cannot be removed as one")
    (ended / "9").write_text("no folder of attempts")
    (ended / "10").symlink_to(ended / "1")
    monkeypatch.setattr(spool, "SWEEP_SECONDS", 0.0)
    assert place.ended_folders() == ["0", "1", "2"]
    assert [place.sweep("0", range(9)) for _ in range(4)] == [2, 1, 0, 0]
    assert place.sweep("0", [9]) == 1
    assert place.sweep("1", [1001]) == 0, "the last of all stays"
    assert sorted(str(path.relative_to(ended)) for path in ended.glob("*/*")) == [
        "0/9.1", "0/notes", "1/1001.1", "10/1001.1", "2/junk", "three/3.1",
    ]  # fmt: skip


def test_what_an_agent_forgot_and_left_among_the_others_moves_at_the_next_start(
    agent: Callable[..., NodeAgent],
) -> None:
    """An earlier version, or one that was killed in between."""
    node = agent("--slots", "2")
    left, taken = "1.1", "2.1"
    for job in (1, 2):
        key = node.start(job, ["echo", str(job)])
        node.ended(key)
        (node.folder(key) / spool.FORGOTTEN).touch()
    elsewhere = node.spool / "ended" / "0" / taken / "something"
    elsewhere.mkdir(parents=True)
    lives = node.start(3, ["sleep", "600"])
    later = agent("--slots", "2")
    assert list(later.attempts()) == [lives]
    assert [path.name for path in sorted((node.spool / "attempts").iterdir())] == [taken, lives]
    assert [later.log(key) for key in (left, taken)] == [b"1\n", b"2\n"]
    assert elsewhere.exists()
    assert node.log(left) == b"1\n"
    assert node.attempts().keys() == {lives}


def test_a_forgotten_attempt_gives_back_the_blocks_set_aside_for_its_end(node: NodeAgent) -> None:
    key = node.start(1, ["true"])
    node.ended(key)
    before = {path.name for path in node.folder(key).iterdir()}
    reserves = {name for name in before if spool.RESERVE in name}
    assert reserves
    node.ask("forget", attempt=key)
    after = {path.name for path in node.folder(key).iterdir()}
    assert after == before - reserves | {spool.FORGOTTEN}


def test_a_forgotten_attempt_is_reported_again_to_a_daemon_that_waits_for_its_end(node: NodeAgent) -> None:
    """Its database was restored from a copy."""
    key = node.start(1, ["sh", "-c", "exit 7"])
    node.ended(key)
    node.ask("forget", attempt=key)
    for wait in (0.0, 0.3):
        [told] = node.ask("watch", offsets={key: 0, "9.9": 0}, seen=None, wait=wait)["attempts"]
        assert (told["job"], told["attempt"], told["state"], told["exit"]["code"]) == (1, 1, "exited", 7)
    node.ask("forget", attempt=key)
    assert node.attempts() == {}


def test_nothing_in_the_spool_can_be_read_by_others(node: NodeAgent) -> None:
    node.ended(node.start(1, ["true"]))
    for folder, _, files in os.walk(node.spool):
        for path in [Path(folder), *(Path(folder) / name for name in files)]:
            assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("python", interpreters())
def test_every_interpreter_from_3_8_up_starts_reports_and_stops(agent: Callable[..., NodeAgent], python: str) -> None:
    node = agent("--slots", "2", python=python)
    first = node.start(1, ["sh", "-c", "echo out; echo err >&2; exit 3"])
    second = node.start(
        2, ["sh", "-c", "trap '' TERM; setsid sleep 600 & while :; do sleep 1; done"], devices=["slot-1"]
    )
    assert node.ended(first)["code"] == 3
    assert node.log(first) == b"out\nerr\n"
    node.wait_for(second, "running")
    wait_until(lambda: node.attempts()[second]["processes"] >= 2, "a tree")
    node.ask("stop", attempt=second, mode="kill", grace=0.1)
    assert node.ended(second)["signal"] == 9
    assert node.close() == 0


@settings(max_examples=examples(60), deadline=None)
@given(
    lines=st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")), max_size=30),
    rest=st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")),
    budget=st.integers(1, 100),
)
def test_lines_after_gives_every_complete_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], rest: bytes, budget: int
) -> None:
    path = tmp_path_factory.mktemp("report") / "report.jsonl"
    whole = b"".join(line + b"\n" for line in lines)
    path.write_bytes(whole + rest)
    text, offset = "", 0
    while True:
        assert (logs.lines_after(str(path), offset, 4096)[1] > offset) == (offset < len(whole))
        part, after = logs.lines_after(str(path), offset, budget)
        if after == offset:
            break
        text, offset = text + part, after
    assert offset == len(whole)
    assert text == "".join(line.decode("utf-8", "replace") + "\n" for line in lines)


def test_a_line_too_long_to_be_a_report_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.write_bytes(b"x" * (logs.LONGEST_LINE + 5))
    assert logs.lines_after(str(path), 0, 100) == ("", logs.LONGEST_LINE)
    with path.open("ab") as stream:
        stream.write(b"\n{}\n")
    assert logs.lines_after(str(path), logs.LONGEST_LINE, 100) == ("xxxxx\n{}\n", logs.LONGEST_LINE + 9), "no report"
    assert logs.lines_after(str(path), logs.LONGEST_LINE, 100, logs.LONGEST_LINE + 8)[0] == "xxxxx\n", "after the end"
