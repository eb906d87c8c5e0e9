"""Only `gpq_agent.records` reads files that others may have written. It limits them and never waits."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

AGENT = Path(__file__).resolve().parents[2] / "agent" / "gpq_agent"
# Other files that gpq reads, and why nobody can have put anything there.
OURS = {
    "node/bootstrap.py": "the agent's own code, which is sent before there is a reader; its pipe from the daemon",
    "node/host/cgroups.py": "the kernel's",
    "node/host/network.py": "the kernel's",
    "node/devices/gpu_probe.py": "the kernel's",
    "node/host/attributes.py": "the kernel's",
    "node/devices/looking.py": "a pipe from our own child",
    "node/host/with_timeout.py": "a pipe from our own child",
    "node/standby/passing.py": "a socket to our own child",
    "node/standby/standbys.py": "the kernel's; the environment that our own child is given",
    "node/doctor/errand_process.py": "a pipe from our own child",
    "node/doctor/checks.py": "the kernel's; a pipe from our own parent",
    "node/host/login.py": "the environment that our own child is given",
    "train/prove/recorder.py": "the environment that our own child is given",
    "train/prove/fork_server.py": "a pipe of our own",
    "train/prove/redirect.py": "the environment that our own child is given",
    "train/process/process_group.py": "the kernel's",
    "train/process/agreement.py": "a bounded message of another replica. If it is invalid, only their job ends",
    "train/program.py": "modules that run here already",
    "train/habits/freedoms.py": "the environment that our own child is given",
    "train/frameworks/huggingface.py": "a part of a checkpoint that is whole by its SHA-256",
    "train/frameworks/lightning_trainer.py": "a log that the script itself writes",
}


def reads(path: Path) -> list[str]:
    """Places where a module itself opens a file by name to read it, or parses JSON."""
    places = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in ("json.load", "json.loads", "Path.read_text", "Path.read_bytes"):
            places.append(f"line {node.lineno}: {name}")
        elif name in ("open", "io.open") and not _is_exempt(node):
            places.append(f"line {node.lineno}: {ast.unparse(node)}")
    return places


def _is_exempt(call: ast.Call) -> bool:
    """It writes, gets a descriptor, or opens a name of the kernel's."""
    first = ast.unparse(call.args[0])
    mode = ast.unparse(call.args[1]) if len(call.args) > 1 else "'r'"
    return not mode.startswith(("'r", '"r')) or first.startswith(("os.open(", "'/proc/", "'/etc/machine-id"))


@pytest.mark.parametrize("module", sorted(str(path.relative_to(AGENT)) for path in AGENT.rglob("*.py")))
def test_every_module_reads_files_of_others_through_records(module: str) -> None:
    if module in ("records.py", *OURS):
        return
    assert reads(AGENT / module) == [], "read it by gpq_agent.records, or say in OURS why nobody can have changed it"


def test_every_exception_is_needed() -> None:
    assert [module for module in OURS if not reads(AGENT / module)] == []


def test_a_module_that_reads_on_its_own_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("import json\nwith open(name, 'rb') as stream:\n    json.load(stream)\nopen(name, 'w')\n")
    assert len(reads(path)) == 2
