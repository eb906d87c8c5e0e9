"""The limit of a log: head and end stay exact to the byte, every offset stays, the job notices nothing, and readers
learn of the gap."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpq_agent.node.host import logs

from tests.agent.node.harness import NodeAgent, wait_until

LIMIT = 2 << 20
TOTAL = 24 << 20
# The content of byte n is known: 8-byte counters, binary, with every byte value and no lines.
WRITER = f"""
import os, struct, sys, time
for first in range(0, {TOTAL} // 8, 8192):
    os.write(1, struct.pack("<8192Q", *range(first, first + 8192)))
    time.sleep(0.002)
sys.exit(8)
"""


def expected(offset: int, size: int) -> bytes:
    first, last = offset // 8, (offset + size) // 8 + 1
    return b"".join(number.to_bytes(8, "little") for number in range(first, last))[offset % 8 :][:size]


def pieces(node: NodeAgent, key: str, limit: int = 1 << 18) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) as a daemon reads them."""
    offset = 0
    while True:
        reply = node.ask("tail", attempt=key, offset=offset, limit=limit, skip=True)
        data = base64.b64decode(reply["data"])
        assert reply["offset"] == offset + reply["skipped"] + len(data)
        if data:
            yield offset + reply["skipped"], data
        elif reply["offset"] >= reply["size"]:
            return
        offset = reply["offset"]


def test_head_and_end_of_a_log_over_its_limit_are_kept_to_the_byte(node: NodeAgent) -> None:
    key = node.start(1, [sys.executable, "-c", WRITER], log_limit=LIMIT)
    assert node.ended(key)["code"] == 8
    path = node.folder(key) / "log"
    assert path.stat().st_size == TOTAL
    assert path.stat().st_blocks * 512 <= LIMIT
    found = list(pieces(node, key))
    assert all(data == expected(offset, len(data)) for offset, data in found)
    assert found[0][0] == 0
    assert found[-1][0] + len(found[-1][1]) == TOTAL
    kept = sum(len(data) for _, data in found)
    assert LIMIT / 2 <= kept <= LIMIT
    whole = node.ask("tail", attempt=key, offset=TOTAL // 2, limit=4096)  # a daemon that knows no limit
    assert base64.b64decode(whole["data"]) == bytes(4096)


def test_a_reader_gets_only_true_bytes_while_the_middle_is_cut_out(node: NodeAgent) -> None:
    key = node.start(1, [sys.executable, "-c", WRITER], log_limit=LIMIT)
    path = node.folder(key) / "log"
    wait_until(lambda: path.exists() and path.stat().st_size > LIMIT, "it is over its limit")
    for _ in range(3):
        assert all(data == expected(offset, len(data)) for offset, data in pieces(node, key, 1 << 16))
    node.ended(key)


def test_without_a_limit_everything_stays(node: NodeAgent) -> None:
    key = node.start(1, [sys.executable, "-c", WRITER])
    node.ended(key)
    path = node.folder(key) / "log"
    assert path.stat().st_blocks * 512 >= TOTAL
    assert base64.b64decode(node.ask("tail", attempt=key, offset=TOTAL - 8, limit=99, skip=True)["data"]) == expected(
        TOTAL - 8, 8
    )


def test_a_limit_that_cannot_be_kept_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (2 * LIMIT))
    cap = logs.Cap(str(log), LIMIT)

    def refuses(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(logs, "punch", refuses)
    assert cap.look() == "its log is over its limit and cannot be shortened here: Operation not supported"
    assert cap.look(at_once=True) == ""
    assert cap.patience() == float("inf")


def test_a_log_that_grows_during_a_look_at_its_end_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old")
    seek = os.lseek

    def grow(descriptor: int, offset: int, direction: int) -> int:
        """The kernel says that there is no more, and then there is."""
        try:
            return seek(descriptor, offset, direction)
        finally:
            log.write_bytes(b"old and new")

    monkeypatch.setattr(os, "lseek", grow)
    data, skipped, offset, _ = logs.kept_tail(str(log), 3, 100)
    assert (b"old" + data)[:offset] == b"old and new"[:offset]
    assert skipped == 0
