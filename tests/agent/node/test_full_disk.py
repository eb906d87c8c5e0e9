"""A full disk under the spool: no exit code is lost, a stop still works, and a refused start leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpq_agent import wire

from tests.agent.node.harness import NodeAgent, sweep, wait_until
from tests.support.figures import Figures

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")

# Writes to its log until the disk is full, byte by byte at the end, then waits for the word to end.
FILL = """
import os, sys, time
for size in (4096, 1):
    while True:
        try:
            os.write(1, b"x" * size)
        except OSError:
            break
open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
sys.exit(6)
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip(f"this root may not mount: {made.stderr.decode().strip()}")
    yield place
    sweep(place / "spool")
    wait_until(lambda: subprocess.run(["umount", str(place)], capture_output=True).returncode == 0, "umount")


@pytest.fixture
def node(small: Path) -> Iterator[NodeAgent]:
    one = NodeAgent(small / "spool", "--slots", "2")
    yield one
    one.close()


def fill(node: NodeAgent, tmp_path: Path) -> tuple[str, Path]:
    full, gate = tmp_path / "full", tmp_path / "gate"
    key = node.start(1, [sys.executable, "-c", FILL, str(full), str(gate)], cwd="/")
    wait_until(full.exists, "the disk to be full")
    return key, gate


@pytest.mark.row("7")
def test_exit_codes_survive_a_full_disk_even_if_the_agent_is_killed(
    node: NodeAgent, tmp_path: Path, figures: Figures
) -> None:
    waits = f"while [ ! -e {tmp_path}/gate ]; do sleep 0.05; done; exit 5"
    other = node.start(2, ["sh", "-c", waits], devices=["slot-1"], cwd="/")
    key, gate = fill(node, tmp_path)
    with pytest.raises(OSError, match="No space left"):
        (node.spool / "probe").write_bytes(b"x" * 8192)
    node.process.kill()
    node.process.wait()
    gate.touch()
    following = NodeAgent(node.spool, "--slots", "2")
    try:
        told = {one: following.ended(one)["code"] for one in (key, other)}
    finally:
        following.close()
    lost = [one for one, code in ((key, 6), (other, 5)) if told[one] != code]
    figures.exactly("exit codes lost on a full disk", len(lost), 0)


def test_a_job_can_be_stopped_on_a_full_disk(node: NodeAgent, tmp_path: Path) -> None:
    key, _ = fill(node, tmp_path)
    node.ask("stop", attempt=key, mode="checkpoint", grace=600)
    node.ask("stop", attempt=key, mode="kill", grace=0)
    record = node.ended(key)
    assert record["signal"] in (9, 15)  # both were sent at once
    assert record["asked"] == "kill"


def test_the_order_to_checkpoint_arrives_on_a_full_disk(node: NodeAgent, tmp_path: Path) -> None:
    key, gate = fill(node, tmp_path)
    node.ask("stop", attempt=key, mode="checkpoint", grace=600)
    path = node.folder(key) / wire.CONTROL
    wait_until(lambda: path.exists() and json.loads(path.read_text())["stop"], "the order")
    gate.touch()
    assert node.ended(key)["code"] == 6


def test_a_start_on_a_full_disk_is_refused_and_leaves_nothing(
    node: NodeAgent, tmp_path: Path, agent: Callable[..., NodeAgent]
) -> None:
    key, gate = fill(node, tmp_path)
    reply = node.try_ask("start", order=node.order(2, ["true"], devices=["slot-1"], cwd="/"))
    assert "cannot write to" in reply["error"]
    assert [path.name for path in (node.spool / "attempts").iterdir()] == [key]
    gate.touch()
    node.ended(key)
    shutil.rmtree(node.folder(key))  # its user makes room
    node.ended(node.start(2, ["true"], devices=["slot-1"], cwd="/"))
