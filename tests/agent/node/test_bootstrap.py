"""The first program on a server, as a separate process: it installs nothing but the right agent."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from gpq.connectors.bundle import bundle


def block(content: bytes) -> bytes:
    return b"%08x" % len(content) + content


def run(home: Path, request: dict[str, Any], *contents: bytes) -> list[dict[str, Any]]:
    """Its answers."""
    data = block(json.dumps({"word": "w", **request}).encode()) + b"".join(map(block, contents))
    command = [sys.executable, "-c", bundle().bootstrap]
    ran = subprocess.run(
        command, input=data, capture_output=True, env={**os.environ, "HOME": str(home)}, check=False, timeout=60
    )
    lines = [line.partition(" ") for line in ran.stdout.decode().splitlines() if line.startswith("w ")]
    return [json.loads(rest) for _, _, rest in lines]


def packed(files: dict[str, str]) -> tuple[str, bytes]:
    content = json.dumps(files, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest(), zlib.compress(content)


def ask(digest: str) -> dict[str, Any]:
    return {"sha256": digest, "arguments": ["--help"]}


def left(home: Path) -> list[str]:
    return sorted(entry.name for entry in (home / ".gpq" / "agent").iterdir())


def test_two_bundles_live_side_by_side_and_each_is_sent_once(tmp_path: Path) -> None:
    other, archive = packed({"gpq_agent/__init__.py": "", "gpq_agent/node/__main__.py": "# " + "x" * 10})
    for digest, content in ((bundle().digest, bundle().archive), (other, archive)):
        assert run(tmp_path, ask(digest), content) == [{"ok": True, "have": False}, {"ok": True}]
        assert run(tmp_path, ask(digest)) == [{"ok": True, "have": True}]
    assert left(tmp_path) == sorted([bundle().digest, other])


@pytest.mark.parametrize(
    "path",
    ["../evil.py", "gpq_agent/../../evil.py", "/tmp/evil.py", "gpq_agent/.py", "sitecustomize.py", "gpq_agent/a.so"],
)
def test_files_that_are_not_the_agents_are_refused(tmp_path: Path, path: str) -> None:
    digest, archive = packed({"gpq_agent/__init__.py": "", path: "evil"})
    _, refused = run(tmp_path, ask(digest), archive)
    assert not refused["ok"]
    assert left(tmp_path) == []
    assert not list(tmp_path.rglob("*evil*"))


def test_a_bundle_that_arrives_damaged_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    _, archive = packed({"gpq_agent/__init__.py": "another"})
    for damaged in (archive, b"", bundle().archive[:-100], bundle().archive[:99] + b"?" + bundle().archive[100:]):
        _, refused = run(tmp_path, ask(bundle().digest), damaged)
        assert "damaged" in refused["error"]
    [named] = run(tmp_path, ask("../" + bundle().digest[3:]), archive)
    assert "no bundle" in named["error"]
    assert left(tmp_path) == []


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    _, refused = run(tmp_path, ask(bundle().digest), zlib.compress(b"0" * (40 << 20)))
    assert "damaged" in refused["error"]


def test_half_a_bundle_installs_nothing(tmp_path: Path) -> None:
    data = block(json.dumps({"word": "w", **ask(bundle().digest)}).encode()) + block(bundle().archive)[:-100]
    command = [sys.executable, "-c", bundle().bootstrap]
    subprocess.run(command, input=data, capture_output=True, env={**os.environ, "HOME": str(tmp_path)}, check=True)
    assert left(tmp_path) == []
