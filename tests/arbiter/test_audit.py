"""The chain of decisions: it survives a kill and a full disk at any byte, and a change of the past shows."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.arbiter import audit as module
from gpq.arbiter.audit import Audit
from gpq.errors import Refused
from tests.contract.test_sqlite_store import fill, mounted, needs_root


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "audit.jsonl")


def appended(path: str, count: int) -> Audit:
    audit = Audit(path)
    for number in range(count):
        audit.append("recall", job=number)
    return audit


def append_many(audit: Audit, text: str) -> None:
    """More than a page of a file has room for."""
    for _ in range(100):
        audit.append("long", text=text)


def test_a_line_says_when_and_what_and_has_no_control_characters(path: str) -> None:
    appended(path, 1).append("pause", by="a\x1b\x7f\x85\u2028\ud800\n", member="bob")
    first, line = Audit(path).read(2)[0]
    assert line.isascii()
    assert line.isprintable()
    fields = json.loads(line)
    assert datetime.fromisoformat(fields.pop("at")).utcoffset() == timedelta(0)
    assert len(fields.pop("before")) == 64
    assert fields == {"what": "pause", "by": "a\x1b\x7f\x85\u2028\ud800\n", "member": "bob"}
    assert json.loads(first)["before"] == hashlib.sha256().hexdigest()
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_kill_at_any_byte_of_a_line_rewrites_nothing_and_the_chain_goes_on(path: str) -> None:
    appended(path, 3)
    content = Path(path).read_bytes()
    size = len(content) - content[:-1].rindex(b"\n") - 1
    for lost in range(1, size + 1):
        Path(path).write_bytes(content[:-lost])
        for _ in range(2):  # the second one dies as well, in its first line
            Audit(path).append("again")
            os.truncate(path, os.path.getsize(path) - 9)
        audit = Audit(path)
        assert Audit(path).read(0)[1] == 0
        audit.append("end")
        assert Audit(path).read(0)[1] == 0
        assert Path(path).read_bytes().startswith(content[:-lost])
        assert audit.digest == Audit(path).digest
        assert json.loads(audit.read(1)[0][0])["what"] == "end"


@given(st.data())
def test_a_change_of_any_line_shows(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Also behind a torn line. The newest digest shows a change of the last line."""
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    appended(str(path), 2)
    os.truncate(path, path.stat().st_size - data.draw(st.integers(0, 60)))
    digest = appended(str(path), 2).digest
    lines = path.read_bytes().splitlines(keepends=True)
    number = data.draw(st.integers(0, len(lines) - 1))
    size = len(lines[number])
    byte = data.draw(st.integers(0, size - 1))
    other = data.draw(st.sampled_from([b"", b"0", b"{}\n", lines[0], b"x\n"]))
    lines[number] = lines[number][:byte] + other + lines[number][byte + 1 :]
    content, changed = path.read_bytes(), b"".join(lines)
    if changed not in (content, content[:-1]):
        path.write_bytes(changed)
        number_named = Audit(str(path)).read(0)[1]
        assert number_named or Audit(str(path)).digest != digest
        is_end = byte == size - 1  # then the next line changes, too
        assert number_named or number + is_end >= len(lines) - 1


def test_the_line_after_a_changed_one_is_named(path: str) -> None:
    appended(path, 5)
    lines = Path(path).read_bytes().splitlines(keepends=True)
    Path(path).write_bytes(b"".join([*lines[:2], lines[2].replace(b'"job":2', b'"job":7'), *lines[3:]]))
    assert Audit(path).read(0)[1] == 4
    Path(path).write_bytes(b"".join([*lines[:2], *lines[3:]]))
    assert Audit(path).read(0)[1] == 3
    Path(path).write_bytes(b"".join(lines[1:]))
    assert Audit(path).read(0)[1] == 1


def test_the_newest_lines_of_many(path: str) -> None:
    line = b'{"before":1}\n'
    Path(path).write_bytes(line * 200_000)
    audit = appended(path, 3)
    lines = audit.read(10_000)[0]
    assert [json.loads(line)["job"] for line in lines[-3:]] == [0, 1, 2]
    assert lines[:-3] == ['{"before":1}'] * 9_997
    assert set(audit.read(1 << 30)[0][:-3]) == {'{"before":1}'}
    assert audit.read(0)[0] == audit.read(-1)[0] == []


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n", b"x", b"\0" * 70_000, b'{"before":1}', b"[]\n{}\n"])
def test_whatever_was_there_the_tail_has_every_line_and_the_chain_begins(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)
    audit = appended(path, 1)
    assert Audit(path).read(0)[1] == 0
    assert audit.read(9)[0] == Path(path).read_text().splitlines()


@needs_root
def test_a_full_disk_refuses_a_line_and_the_next_one_ends_what_it_left(tmp_path: Path) -> None:
    """Lines of drawn lengths, so that the disk is full at many places of a line."""
    with mounted(tmp_path / "small", "256k") as folder:
        path, torn = str(folder / "audit.jsonl"), 0
        for number in range(40):
            audit = appended(path, 1)
            fill(folder)
            with pytest.raises(Refused, match="No space left"):
                append_many(audit, "x" * (97 * number))
            torn += not Path(path).read_bytes().endswith(b"\n")
            assert Audit(path).read(0)[1] == 0
            (folder / "filler").unlink()
            audit.append("after")
            assert Audit(path).read(0)[1] == 0
            assert audit.digest == Audit(path).digest
            if number % 8 == 7:
                os.unlink(path)
        assert torn > 9


def test_a_file_that_is_none_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    for make in (os.mkfifo, os.mkdir, lambda place: os.symlink("other", place)):
        make(path)
        with pytest.raises(Refused, match=r"cannot write .*audit\.jsonl"):
            Audit(path)
        os.rename(path, tmp_path / f"away-{len(os.listdir(tmp_path))}")


def test_a_large_file_is_renamed_and_the_chain_goes_on_from_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3_000)
    audit = appended(path, 100)
    older, newer = Path(f"{path}.1"), Path(path)
    assert sorted(os.listdir(newer.parent)) == ["audit.jsonl", "audit.jsonl.1"]
    assert older.stat().st_size < 3_300
    lines, broken = audit.read(20)
    assert broken == 0
    assert [json.loads(line)["job"] for line in lines] == list(range(80, 100))
    while newer.exists():
        audit.append("more")
    content = older.read_bytes()
    assert Audit(path).digest == audit.digest == hashlib.sha256(content).hexdigest(), "also after a kill just then"
    audit.append("first")
    assert audit.read(0)[1] == 0
    head, _, end = content.rpartition(b'"more"')
    older.write_bytes(head + b'"less"' + end)
    assert audit.read(0)[1] == content.count(b"\n") + 1
    older.unlink()
    assert audit.read(0)[1] == 1
