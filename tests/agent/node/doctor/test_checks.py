"""Errands of `gpq doctor`: what a server reports about itself, tries towards others, and measures together with
another."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.node.harness import NodeAgent, wait_until


def errand(node: NodeAgent, name: str, limit: float = 60.0, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = node.ask("errand", errand=name, fields=fields, limit=limit)["answer"]
    return answer


def test_a_server_reports_what_it_is_and_has(node: NodeAgent) -> None:
    told = errand(node, "examine", python=sys.executable)
    assert told["host"] == socket.gethostname()
    assert [disk["what"] for disk in told["disks"]] == ["spool", "checkpoints"]
    assert all(disk["free_mib"] > 0 and disk["filesystem"] for disk in told["disks"])
    assert told["limits"]["nofile"][0] > 0
    assert {"name": "lo", "address": "127.0.0.1"}.items() <= told["interfaces"][0].items()
    assert told["torch"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "torch" in told["torch"] or "error" in told["torch"]


def test_an_invalid_interpreter_is_reported(node: NodeAgent) -> None:
    assert errand(node, "examine", python="/no/python")["torch"]["error"].startswith("cannot run /no/python")
    assert errand(node, "examine", python="/bin/false")["torch"]["error"] == "exit 1: no output"
    assert "torch" not in errand(node, "examine")


def test_a_listener_is_reached_on_both_ports_and_told_apart_from_others(node: NodeAgent) -> None:
    ports = errand(node, "listen", token="abc", seconds=30)["ports"]
    assert 20000 <= ports[1] < 32700
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        targets = [
            {"address": "127.0.0.1", "port": ports[0], "token": "abc"},
            {"address": "127.0.0.1", "port": ports[1], "token": "abc"},
            {"address": "127.0.0.1", "port": ports[0], "token": "xyz"},
            {"address": "127.0.0.1", "port": closed.getsockname()[1], "token": "abc"},
        ]
        problems = errand(node, "reach", targets=targets)["problems"]
    assert problems == ["", "", "another machine answers there", "connection refused"]


def test_an_errand_that_hangs_is_ended_while_others_continue(node: NodeAgent, tmp_path: Path) -> None:
    hanging, pid = tmp_path / "python", tmp_path / "pid"
    hanging.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 60\n")
    hanging.chmod(0o755)
    number = node.send("errand", errand="examine", fields={"python": str(hanging)}, limit=1.0)
    assert node.ask("ping")["time"] > 0
    assert errand(node, "seen", tokens=[])["seen"] == []
    assert node.reply(number)["answer"] == {"error": "no answer within 1 s"}
    started = int(pid.read_text())
    wait_until(lambda: not lives(started), "what it started is ended")


def lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except FileNotFoundError:
        return False


def test_a_mark_is_seen_and_removed(node: NodeAgent) -> None:
    assert errand(node, "mark", token="abc") == {**errand(node, "mark", token="abc")}
    assert errand(node, "seen", tokens=["abc", "abd"])["seen"] == ["abc"]
    errand(node, "unmark", token="abc")
    assert errand(node, "seen", tokens=["abc"])["seen"] == []
    assert "ValueError" in errand(node, "mark", token="../x")["error"]


@pytest.mark.parametrize(
    "fields", [{"errand": "rm"}, {"errand": "examine", "limit": 1e9}, {"errand": "reach", "fields": 3}]
)
def test_an_unknown_errand_is_refused(node: NodeAgent, fields: dict[str, Any]) -> None:
    assert node.try_ask("errand", **fields)["kind"] == "wrong"
