"""CPU slots as a thing that several servers may share: how their cores are written, which machine they are, and whom
their locks exclude."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from gpq_agent.node.devices import gpu_locks, slots
from gpq_agent.node.devices.gpu_locks import Locks
from gpq_agent.node.host.errors import SpoolError
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.node.harness import AGENT_HOME, NodeAgent, sweep


@given(st.lists(st.integers(0, 40), min_size=1, unique=True))
def test_cores_are_written_the_same_however_they_were_given(cores: list[int]) -> None:
    with patch("os.sched_getaffinity", return_value=set(cores)):
        parsed = slots.parse_cores(",".join(map(str, cores)))
        text = slots.core_list(parsed)
        assert slots.parse_cores(text) == parsed == sorted(cores)
    assert slots.core_list(cores) == text


def test_a_short_list_of_cores_is_short() -> None:
    assert [slots.core_list(cores) for cores in ([0, 1], [2, 0], [4, 0, 2, 3])] == ["0-1", "0,2", "0,2-4"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_network_namespace_is_a_machine_of_its_own() -> None:
    say = "from gpq_agent.node.devices import slots; print(slots.machine('boot', 2, '0-1'))"

    def machine(*prefix: str) -> str:
        argv = [*prefix, sys.executable, "-c", say]
        return subprocess.run(
            argv, env={"PYTHONPATH": str(AGENT_HOME)}, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert machine() == slots.machine("boot", 2, "0-1")
    assert machine("unshare", "--net") != machine()


MACHINES = [("boot", 2, "0-1"), ("boot", 4, "0-1"), ("boot", 2, "0,2"), ("boot", 2, "0"), ("later", 2, "0-1")]


@pytest.mark.parametrize("other", MACHINES)
def test_slots_have_the_same_lock_if_machine_number_and_cores_are_the_same(
    tmp_path: Path, other: tuple[str, int, str]
) -> None:
    first, second = (
        Locks(str(tmp_path), spool, slots.machine(*key)) for spool, key in [("a", MACHINES[0]), ("b", other)]
    )
    descriptors = first.take(["slot-0"], 1, 1)
    gpu_locks.close(second.take(["slot-1"], 1, 1))
    expected = (
        pytest.raises(SpoolError, match="slot-0 is held by") if other == MACHINES[0] else contextlib.nullcontext()
    )
    with expected:
        gpu_locks.close(second.take(["slot-0"], 1, 1))
    gpu_locks.close(descriptors)


def test_servers_of_one_daemon_offer_the_same_slots_without_a_lock_as_different_ones(tmp_path: Path) -> None:
    options = ("--slots", "2", "--cores", "0", "--locks", str(tmp_path))
    with contextlib.ExitStack() as stack:
        nodes = [NodeAgent(tmp_path / name, *options) for name in ("a", "b")]
        for node in nodes:
            stack.callback(sweep, node.spool)
            stack.callback(node.close)
        keys = [node.start(1, ["sleep", "600"], devices=["slot-0"]) for node in nodes]
        for node, key in zip(nodes, keys, strict=True):
            node.wait_for(key, "running")
        first, second = (node.ask("hello") for node in nodes)
        assert [device["state"] for device in first["devices"] + second["devices"]] == ["ok"] * 4
        assert first["machine"] != second["machine"]
