"""Files that come to a server and leave it: what is sent, where it continues after a lost connection, and what counts
once it has arrived."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import pwd
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpq_agent.node.files import arriving, unpacking
from gpq_agent.node.files.staging import Staging
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool import trees
from gpq_agent.node.spool.checkpoint_folder import ALONGSIDE
from gpq_agent.node.spool.trees import Entry

from tests.agent.node.harness import AGENT_HOME, NodeAgent
from tests.support.users import BOB, acting_as, shared_place

BIG = os.urandom(3_000_000)


def checkpoint(folder: Path, step: int, content: bytes, attempt: int = 1) -> Path:
    """Write it like the library."""
    place = folder / "gpq" / f"step-{step:012d}"
    place.mkdir(parents=True)
    (place / "state.pt").write_bytes(content)
    manifest = {"format": 1, "step": step, "attempt": attempt, "bytes": len(content), "sha256": sha(content)}
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def pair(agent: Callable[..., NodeAgent], tmp_path: Path) -> tuple[NodeAgent, NodeAgent]:
    """Two servers on one spool, each with its own checkpoint folder."""
    made = [agent("--slots", "1", "--checkpoints", str(tmp_path / name)) for name in ("here", "there")]
    return made[0], made[1]


def send(source: NodeAgent, target: NodeAgent, files: list[Any], *, most: int = 1 << 40) -> int:
    """Bring the files of job 7, at most this many bytes. Return the number of bytes sent."""
    sent = 0
    for at, offset in target.ask("stage", job=7, files=files)["missing"]:
        path, size, *_ = files[at]
        while sent < most and offset < size:
            piece = source.ask("fetch", job=7, path=path, offset=offset, limit=1 << 20)
            fields = {"at": at, "offset": offset, "skip": piece["skip"], "data": piece["data"]}
            before, offset = offset, target.ask("put", job=7, **fields)["offset"]
            sent += offset - before
    return sent


def seal(source: NodeAgent, target: NodeAgent, files: list[Any]) -> dict[str, Any]:
    timed = [(at, path) for at, (path, _, mark, *_) in enumerate(files) if mark.startswith("t")]
    digests = {str(at): source.ask("digest", job=7, path=path)["digest"] for at, path in timed}
    return target.try_ask("seal", job=7, files=files, digests=digests)


def test_servers_that_share_a_folder_report_the_same_storage(
    agent: Callable[..., NodeAgent], pair: tuple[NodeAgent, NodeAgent], tmp_path: Path
) -> None:
    here, there = (one.ask("hello")["storage"] for one in pair)
    assert here != there
    assert agent("--slots", "1", "--checkpoints", str(tmp_path / "here")).ask("hello")["storage"] == here


def test_the_newest_complete_checkpoint_follows_and_resumes_where_the_transfer_was_cut(
    agent: Callable[..., NodeAgent], pair: tuple[NodeAgent, NodeAgent], tmp_path: Path
) -> None:
    source, target = pair
    checkpoint(tmp_path / "here" / "7", 10, b"old")
    checkpoint(tmp_path / "here" / "7", 20, BIG)
    half = checkpoint(tmp_path / "here" / "7", 30, b"cut off")
    (half / "state.pt").write_bytes(b"cut")
    files = source.ask("files", job=7)["files"]
    assert [path for path, *_ in files] == [f"gpq/step-{20:012d}/{name}" for name in ("manifest.json", "state.pt")]
    assert send(source, target, files, most=1_500_000) < len(BIG)
    assert target.ask("kept")["jobs"] == [7], "what is half here can be dropped as well"
    target.process.kill()
    again = agent("--slots", "1", "--checkpoints", str(tmp_path / "there"))
    offset = dict(again.ask("stage", job=7, files=files)["missing"])[1]
    assert 1_000_000 <= offset < len(BIG)
    assert send(source, again, files) == len(BIG) - offset
    assert not (tmp_path / "there" / "7").exists(), "nothing counts before it is proved"
    assert seal(source, again, files)["ok"]
    place = tmp_path / "there" / "7" / "gpq"
    assert [one.name for one in place.iterdir()] == [f"step-{20:012d}"]
    assert (place / f"step-{20:012d}" / "state.pt").read_bytes() == BIG
    assert not list((tmp_path / "there" / ".staging").iterdir())
    assert again.ask("stage", job=7, files=files)["missing"] == []


def test_what_the_library_knows_of_the_whole_job_follows_its_checkpoint(
    pair: tuple[NodeAgent, NodeAgent], tmp_path: Path
) -> None:
    folder = tmp_path / "here" / "7"
    checkpoint(folder, 20, b"state")
    for name in ALONGSIDE:
        (folder / name).write_text("{}")
    paths = [path for path, *_ in pair[0].ask("files", job=7)["files"]]
    assert [path for path in paths if "step-" not in path] == list(ALONGSIDE)


def test_a_damaged_file_does_not_count_and_comes_again(pair: tuple[NodeAgent, NodeAgent], tmp_path: Path) -> None:
    source, target = pair
    checkpoint(tmp_path / "here" / "7", 20, BIG)
    files = source.ask("files", job=7)["files"]
    send(source, target, files)
    part = tmp_path / "there" / ".staging" / "7" / "1"
    part.write_bytes(b"\0" + part.read_bytes()[1:])
    assert "did not arrive as it was sent" in seal(source, target, files)["error"]
    assert not (tmp_path / "there" / "7").exists()
    assert send(source, target, files) == sum(size for _, size, *_ in files)
    assert seal(source, target, files)["ok"]


def test_a_later_step_of_an_attempt_that_was_given_up_is_replaced(
    pair: tuple[NodeAgent, NodeAgent], tmp_path: Path
) -> None:
    source, target = pair
    checkpoint(tmp_path / "here" / "7", 20, b"goes on", attempt=2)
    checkpoint(tmp_path / "there" / "7", 10, b"common")
    checkpoint(tmp_path / "there" / "7", 90, b"given up")
    checkpoint(tmp_path / "there" / "7", 20, b"of another attempt")
    files = source.ask("files", job=7)["files"]
    send(source, target, files)
    assert seal(source, target, files)["ok"]
    place = tmp_path / "there" / "7" / "gpq"
    assert sorted(one.name for one in place.iterdir()) == [f"step-{step:012d}" for step in (10, 20)]
    assert (place / f"step-{20:012d}" / "state.pt").read_bytes() == b"goes on"


def test_the_last_complete_save_of_a_script_follows(pair: tuple[NodeAgent, NodeAgent], tmp_path: Path) -> None:
    source, target = pair
    here, there = tmp_path / "here" / "7", tmp_path / "there" / "7"
    for name, content in (("save-1/w", b"old"), ("save-2/a/w", BIG), ("save-3/w", b"half")):
        (here / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "own" / name).write_bytes(content)
    (here / "own" / "saved.json").write_text('{"step":5,"number":2,"complete":["save-2","save-1"]}')
    (here / "mine.ckpt").write_bytes(b"any")
    files = source.ask("files", job=7)["files"]
    send(source, target, files)
    assert seal(source, target, files)["ok"]
    content = {str(one.relative_to(there)): one.read_bytes() for one in there.rglob("*") if one.is_file()}
    record = (here / "own" / "saved.json").read_bytes()
    assert content == {"own/save-2/a/w": BIG, "own/saved.json": record, "mine.ckpt": b"any"}
    assert target.ask("stage", job=7, files=files)["missing"] == []


def test_long_work_keeps_nobody_waiting(pair: tuple[NodeAgent, NodeAgent], tmp_path: Path) -> None:
    source, _ = pair
    (tmp_path / "here" / "7").mkdir(parents=True)
    with open(tmp_path / "here" / "7" / "large", "wb") as stream:
        stream.write(BIG)
        os.posix_fallocate(stream.fileno(), 0, 1 << 30)
    first = source.send("digest", job=7, path="large")
    second = source.send("ping")
    assert source.reply(second)["ok"]
    assert first not in source._replies, "the answer to the ping came first"
    assert len(source.reply(first)["digest"]) == 64


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", "link/passwd"])
def test_nothing_is_read_or_written_outside(pair: tuple[NodeAgent, NodeAgent], tmp_path: Path, path: str) -> None:
    source, target = pair
    (tmp_path / "here" / "7").mkdir(parents=True)
    (tmp_path / "here" / "7" / "link").symlink_to("/etc")
    assert not source.try_ask("fetch", job=7, path=path, offset=0, limit=10)["ok"]
    if path != "link/passwd":
        assert not target.try_ask("stage", job=7, files=[[path, 1, "t0", 0, 0, 1]])["ok"]
    for what in ({"job": "../7"}, {"code": "../../etc"}, {}):
        assert not target.try_ask("drop", **what)["ok"]


def archive(*members: tuple[str, bytes | str]) -> bytes:
    """Bytes are a file, text is a link."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as made:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size, member.mode = len(content), 0o6755
                made.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = tarfile.SYMTYPE, content
                made.addfile(member)
    return sink.getvalue()


def bring(node: NodeAgent, content: bytes) -> dict[str, Any]:
    code = sha(content)
    files = [["code.tar", len(content), code, 0o600, 0, len(content)]]
    for at, offset in node.ask("stage", code=code, files=files)["missing"]:
        node.ask("put", code=code, at=at, offset=offset, skip=0, data=base64.b64encode(content[offset:]).decode())
    return node.try_ask("seal", code=code, files=files, digests={})


def test_a_job_runs_in_code_that_has_arrived_and_not_before(node: NodeAgent, spool: Path) -> None:
    content = archive(("sub/say.sh", b"#!/bin/sh\ncat ../word\n"), ("word", b"hello\n"), ("again", "word"))
    order = node.order(1, ["./say.sh"], cwd="sub", code=sha(content))
    assert "is not on this server" in node.try_ask("start", order=order)["error"]
    assert bring(node, content)["ok"]
    assert bring(node, content)["ok"], "once is enough, twice does no harm"
    assert node.ask("start", order=order)["state"] == "started"
    node.ended("1.1")
    assert node.log("1.1") == b"hello\n"
    [folder] = (spool / "checkpoints" / ".code").iterdir()
    assert (folder / "sub" / "say.sh").stat().st_mode & 0o7777 == 0o755
    assert not node.try_ask("start", order={**order, "job": 2, "cwd": "../.."})["ok"]
    assert node.ask("kept")["code"] == [sha(content)]
    node.ask("drop", code=sha(content))
    assert node.ask("kept")["code"] == []


@pytest.mark.parametrize(
    "members",
    [
        (("../out", b"x"),),
        (("/tmp/out", b"x"),),
        (("link", "../.."),),
        (("link", "/etc"),),
        (("a", "b"), ("a", b"twice")),
        (("d", "."), ("d/../../x", b"x")),
    ],
)
def test_an_archive_that_leads_out_is_refused_whole(
    node: NodeAgent, spool: Path, members: tuple[tuple[str, bytes | str], ...]
) -> None:
    assert not bring(node, archive(*members))["ok"]
    assert not (spool / "checkpoints" / ".code").exists() or not list((spool / "checkpoints" / ".code").iterdir())
    assert not (spool / "checkpoints" / "out").exists()


def test_data_in_place_of_the_holes_that_a_listing_promised_leaves_the_reserve_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(str(tmp_path))
    put, scatter = staging.operations["put"], staging.operations["scatter"]
    files = [Entry("own/big", 1 << 30, "t1"), Entry("own/small", 5, sha(b"small"))]
    work = staging._stage({"job": 7, "files": trees.as_json(files)})
    list(work)  # by its own words it needs no space
    data = base64.b64encode(b"x" * 5).decode()
    assert put({"job": 7, "at": 0, "offset": 0, "skip": 0, "data": data})["offset"] == 5
    free = os.statvfs(tmp_path)
    monkeypatch.setattr(arriving, "SPARE", free.f_blocks * free.f_frsize)  # more than the disk ever has
    sparse = tmp_path / "archive"
    sparse.write_bytes(archive(("a", b"x")))
    for refused in (
        lambda: put({"job": 7, "at": 0, "offset": 5, "skip": 0, "data": data}),
        lambda: scatter({"job": 7, "parts": [[1, data]]}),
        lambda: list(unpacking.unpack(str(sparse), str(tmp_path / "code"))),
    ):
        with pytest.raises(SpoolError, match="not enough space"):
            refused()
    assert (tmp_path / ".staging" / "7" / "0").stat().st_size == 5
    assert not (tmp_path / "code").exists()
    assert put({"job": 7, "at": 0, "offset": 5, "skip": 1 << 20, "data": ""})["offset"] == 5 + (1 << 20), "a hole"


def test_files_of_a_running_job_are_not_dropped(node: NodeAgent) -> None:
    key = node.start(3, ["sleep", "600"])
    assert "runs here" in node.try_ask("drop", job=3)["error"]
    node.ask("stop", attempt=key, mode="kill", grace=0)
    node.ended(key)
    node.ask("drop", job=3)
    assert node.ask("kept")["jobs"] == []


# -- folders that another user could change


def start_of(spool: Path, place: str) -> subprocess.CompletedProcess[str]:
    """An agent on this checkpoint folder that has nothing to do."""
    argv = [sys.executable, "-m", "gpq_agent.node", "--slots", "1", "--spool", str(spool), "--checkpoints", place]
    environment = {**os.environ, "PYTHONPATH": str(AGENT_HOME)}
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, env=environment, text=True, check=False, timeout=60
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder needs root")
def test_checkpoints_below_another_users_folder_are_refused_in_one_line(spool: Path) -> None:
    """As when a colleague made /scratch/gpq first, who could then swap code and checkpoints."""
    with shared_place() as scratch:
        with acting_as(BOB):
            (scratch / "gpq").mkdir()
            (scratch / "gpq").chmod(0o777)
        said = start_of(spool, str(scratch / "gpq" / "0a1b"))
        assert (said.returncode, said.stdout) == (2, "")
        [line] = said.stderr.splitlines()
        assert line.startswith(
            f"{scratch}/gpq belongs to nobody, who could replace {scratch}/gpq/0a1b: choose a folder"
        )
        assert list((scratch / "gpq").iterdir()) == []
        said = start_of(spool, str(scratch / "$USER" / "gpq"))
        assert said.returncode == 0, said.stderr
        me = pwd.getpwuid(os.geteuid()).pw_name
        assert {path.name for path in (scratch / me / "gpq").iterdir()} == {".storage.json"}


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder needs root")
def test_code_that_another_user_could_have_changed_does_not_start(
    agent: Callable[..., NodeAgent], tmp_path: Path
) -> None:
    place = tmp_path / "lab" / "gpq"
    node = agent("--slots", "1", "--checkpoints", str(place))
    content = archive(("say.sh", b"#!/bin/sh\necho hello\n"))
    assert bring(node, content)["ok"]
    order = node.order(1, ["./say.sh"], cwd=".", code=sha(content))
    [folder] = (place / ".code").iterdir()
    for path, owner, rights in ((folder, BOB.pw_uid, 0o700), (place.parent, 0, 0o777), (place, BOB.pw_uid, 0o700)):
        was = path.stat()
        os.chown(path, owner, was.st_gid)
        path.chmod(rights)
        reply = node.try_ask("start", order=order)
        assert not reply["ok"]
        assert str(path) in reply["error"]
        assert reply["kind"] == "busy"  # so it does not count as a failure of the job
        assert reply["hint"]
        os.chown(path, was.st_uid, was.st_gid)
        path.chmod(was.st_mode)
    assert node.ask("start", order=order)["state"] == "started"
    node.ended("1.1")
    assert node.log("1.1") == b"hello\n"
