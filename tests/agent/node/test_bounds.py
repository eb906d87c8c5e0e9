"""Whatever jobs and other users write, the agent's answers stay within what the daemon accepts."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node import watches
from gpq_agent.node.doctor import checks
from gpq_agent.node.spool import checkpoint_folder
from gpq_agent.node.spool.spool import MOST_RECORD, NAME, Spool

from tests.agent.node.harness import NodeAgent, wait_until
from tests.support.figures import Figures

LINE = 900_000  # bytes of a report line


def lines_of(node: NodeAgent, offsets: dict[str, int]) -> tuple[dict[str, str], bool]:
    """New report lines by attempt, and whether some did not fit. Moves the offsets on."""
    answer = node.ask("watch", offsets=offsets, wait=0.0)
    assert len(json.dumps(answer)) < 4 << 20
    news = {}
    for info in answer["attempts"]:
        key = wire.attempt_key(info["job"], info["attempt"])
        news[key], offsets[key] = info["report"], info["report_offset"]
    return news, any(info["unread"] for info in answer["attempts"])


def test_long_report_lines_take_turns_and_none_is_lost(agent: Callable[..., NodeAgent]) -> None:
    node = agent("--slots", "6")
    keys = [node.start(job, ["sleep", "600"], devices=[f"slot-{job}"]) for job in range(6)]
    for key in keys:
        text = json.dumps({"kind": "notice", "message": key + "x" * LINE}) + "\n"
        node.folder(key).joinpath(wire.REPORT).write_text(text)
    offsets, parts = dict.fromkeys(keys, 0), []
    is_more = True
    while is_more:
        news, is_more = lines_of(node, offsets)
        parts.append({key for key, text in news.items() if text})
    assert sorted(key for part in parts for key in part) == keys
    assert max(map(len, parts)) == 1, "an answer has one long line"


def test_a_line_that_json_makes_six_times_as_long_is_left_out_and_the_next_one_counts(node: NodeAgent) -> None:
    key = node.start(1, ["sleep", "600"])
    report = node.folder(key) / wire.REPORT
    report.write_bytes(b"\x01" * LINE + b'\n{"kind":"notice","message":"last"}\n')
    offsets = {key: 0}
    news, _ = lines_of(node, offsets)
    assert (news[key], offsets[key]) == ("", LINE + 1)
    news, _ = lines_of(node, offsets)
    assert "last" in news[key]
    assert node.attempts()[key]["damage"] == [watches.LEFT_OUT]


def test_a_long_refusal_is_cut(node: NodeAgent) -> None:
    refusal = node.try_ask("start", order=node.order(1, ["true"], level="x" * 100_000))
    assert not refusal["ok"]
    assert len(refusal["error"]) == 4096


def test_other_spools_are_found_beside_files_of_any_size(tmp_path: Path) -> None:
    """Anybody may write next to the spool, and the agent has one thread."""
    ours, other = Spool(str(tmp_path / "a")), Spool(str(tmp_path / "b"))
    for number in range(100):
        folder = tmp_path / f"evil{number}"
        folder.mkdir()
        folder.joinpath(NAME).write_bytes(other_record(other) + b" " * (1 << 20))
    assert ours.beside() == ["b"]


def other_record(place: Spool) -> bytes:
    content = Path(place.path, NAME).read_bytes()
    assert len(content) < MOST_RECORD
    return content


def test_the_list_of_files_holds_as_much_as_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in range(10):
        tmp_path.joinpath(str(job)).mkdir()
        tmp_path.joinpath(f"{job}.before-2").mkdir()
    for name, most in (("jobs", 3), ("early", 2)):
        monkeypatch.setitem(wire.LENGTHS, name, most)
    assert checkpoint_folder.jobs(str(tmp_path)) == {
        "jobs": [0, 1, 2],
        "early": [0, 1],
        "code": [],
        "coming": [],
    }


def test_an_errand_with_a_long_answer_has_failed(node: NodeAgent, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nprintf 'gpq:{\"x\":\"'; head -c 2000000 /dev/zero | tr '\\0' x; echo '\"}'\n")
    python.chmod(0o755)
    answer = node.ask("errand", errand="examine", fields={"python": str(python)}, limit=60.0)["answer"]
    assert answer == {"error": f"its answer has more than {checks.MOST_ANSWER >> 20} MiB"}


@pytest.mark.long
def test_an_agent_answers_at_once_beside_300_000_files_in_the_folder_of_locks(
    agent: Callable[..., NodeAgent], tmp_path: Path, figures: Figures
) -> None:
    locks = tmp_path / "locks"
    locks.mkdir(mode=0o1777)
    first = locks
    for number in range(300_000):
        path = locks / f"gpq-{number}.holder"
        if number % 50_000:  # a file has at most about 65,000 names
            os.link(first, path)
        else:
            path.touch()
            first = path
    node = agent("--locks", str(locks), "--slots", "2", "--lock-slots")
    for op, fields in (("hello", {}), ("probe", {}), ("watch", {"offsets": {}, "wait": 0.0})):
        began = time.monotonic()
        node.ask(op, **fields)
        figures.at_most(f"{op} beside 300,000 files", time.monotonic() - began, 1.0)
    began = time.monotonic()
    key = node.start(1, ["true"])
    figures.at_most("a start beside 300,000 files", time.monotonic() - began, 1.0)
    wait_until(lambda: node.attempts()[key]["state"] == "exited", "the job ends")


def test_files_of_replicas_that_cannot_be_are_left_out(node: NodeAgent) -> None:
    key = node.start(1, ["sleep", "600"])
    for rank in range(1000):
        pulse = struct.pack(wire.PULSE, 1, rank, 1, 0.0)
        node.folder(key).joinpath(f"{wire.RANK}{rank}").write_bytes(pulse)
    [info] = node.ask("watch", offsets={key: 0}, wait=0.0)["attempts"]
    assert [pulse["rank"] for pulse in info["ranks"]] == list(range(watches.MOST_RANKS))
