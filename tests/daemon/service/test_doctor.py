"""`gpq doctor NODE...` against a real daemon with two servers: every line is there, and the measurements are kept."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpq.errors import NotFound, UsageError
from gpq.rpc.node_answers import ErrandResult, Kept
from gpq.rpc.requests import Errand, Measured
from tests.daemon.daemons import Daemon, daemon
from tests.support import commands

CONFIG = """\
policy = "fifo"
[nodes.one]
slots = 1
[nodes.two]
slots = 1
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("doctor") / "home", CONFIG) as running:
        running.wait_for_nodes()
        yield running


def doctor(served: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.run(["doctor", *arguments], served.environment, timeout=240)


def test_two_servers_and_the_link_between_them_are_checked(served: Daemon) -> None:
    said = doctor(served, "one", "two", "--python", sys.executable, "--json")
    checks = json.loads(said.stdout)["checks"]
    assert said.stderr == "", "nobody watches: no progress"
    for node in ("one", "two"):
        found = {check["name"]: check for check in checks if check["node"] == node}
        assert {
            "reach",
            "agent",
            "clock",
            "spool disk",
            "checkpoints disk",
            "nofile",
            "memlock",
            "shm",
            "network",
        } <= set(found)
        assert {"ports", "path", "gpus", "torch"} <= set(found)
        assert "ssh" not in found
        assert found["reach"]["verdict"] == "ok"
    between = [check for check in checks if not check["node"]]
    assert [check["message"] for check in between if check["name"] == "files"] == [
        "checkpoint folders: one and two share one"
    ]
    assert sorted(check["message"] for check in between if check["name"] == "tcp") == [
        "one -> two at 127.0.0.1", "two -> one at 127.0.0.1",
    ]  # fmt: skip
    [reduced] = [check for check in between if check["name"] == "all-reduce"]
    assert (said.returncode == 1) == any(check["verdict"] == "fail" for check in checks)
    if "torch" in next(check["message"] for check in between if check["name"] == "versions"):
        assert reduced["message"].startswith("one - two: ")
        [(first, second, link)] = json.loads(kept(served))
        assert (first, second, link["backend"]) == ("one", "two", "gloo")
        assert link["bandwidth"] > 1e6
    assert not list((served.home / "checkpoints").glob(".gpq-doctor-*")), "its marks are removed"


def kept(served: Daemon) -> str:
    with sqlite3.connect(f"file:{served.home}/gpq.db?mode=ro", uri=True) as database:
        [(text,)] = database.execute("SELECT value FROM meta WHERE key = 'links'").fetchall()
    return str(text)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="here it would try the GPUs")
def test_the_agent_of_each_server_makes_its_report_of_gpus(served: Daemon) -> None:
    said = doctor(served, "one", "two", "--gpu", "--python", sys.executable, "--json")
    assert (said.returncode, said.stderr) == (0, "")
    checks = json.loads(said.stdout)["checks"]
    names = {node: [check["name"] for check in checks if check["node"] == node] for node in ("one", "two")}
    assert names["one"] == names["two"]
    assert {check["verdict"] for check in checks} == {"SKIP"}
    assert checks[-1]["name"] == "trial"
    assert checks[-1]["figure"] == "no NVIDIA GPU here"


def test_an_unknown_server_is_refused(served: Daemon) -> None:
    said = doctor(served, "three")
    assert (said.returncode, said.stdout) == (4, "")
    assert said.stderr == "gpq: there is no server `three`\nhint: known servers: one, two\n"


@pytest.mark.parametrize(
    "request_",
    [
        Measured(["one"], 1e-3, 1e8), Measured(["one", "one"], 1e-3, 1e8), Measured(["one", "two"], float("nan"), 1e8),
        Measured(["one", "two"], 1e-3, 0.0), Measured(["one", "two"], 1e-3, 1e8, "smoke"),
    ],
)  # fmt: skip
def test_an_impossible_measurement_is_refused(served: Daemon, request_: Measured) -> None:
    with pytest.raises(UsageError):
        served.call(request_, Kept)


def test_errands_need_an_existing_server_and_report_failures(served: Daemon) -> None:
    assert "unknown errand" in str(served.call(Errand("one", "rm"), ErrandResult).answer["error"])
    with pytest.raises(NotFound):
        served.call(Errand("three", "examine"), ErrandResult)
    with pytest.raises(UsageError):
        served.call(Errand("one", "examine", {}, wait=500.0), ErrandResult)
