"""Files that come to a server and leave it: what is sent, what comes again after a lost connection, and what counts
once it has arrived."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pwd
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from gpq_agent import wire
from gpq_agent.node.files import staging
from gpq_agent.node.files.sending import Pace
from gpq_agent.node.files.transfer import run_receiver
from gpq_agent.node.spool.checkpoint_folder import ALONGSIDE
from gpq_agent.node.spool.spool import Spool

from gpq.connectors.local import Channel
from tests.agent.node.harness import AGENT_HOME, NodeAgent
from tests.contract.trees import Within, bring, opened
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


def said(channel: Channel) -> dict[str, Any]:
    """The next line of a process."""
    return wire.decode(channel.reader.readline())


def relay(
    source: NodeAgent, target: NodeAgent, change: Callable[[bytes], bytes] = lambda data: data, job: int = 7
) -> dict[str, Any]:
    """Bring the files of a job, changed on the way. Return the last line of the receiver."""
    with closing(opened(source, "--send", str(job))) as sender, closing(opened(target, "--receive", str(job))) as there:
        there.writer.write(sender.reader.readline())
        sender.writer.write(there.reader.readline())
        return said_at_last(there, change(sender.reader.read()))


def said_at_last(channel: Channel, content: bytes) -> dict[str, Any]:
    """The last line of a process that gets this content."""
    with suppress(BrokenPipeError):
        while content:
            content = content[channel.writer.write(content) :]
    channel.writer.close()
    return wire.decode(channel.reader.read().splitlines()[-1])


def give(target: NodeAgent, what: str, content: bytes) -> dict[str, Any]:
    """The last line of a process that receives this content as the files of a job, or as code."""
    with closing(opened(target, "--receive", what)) as there:
        return said_at_last(there, content)


def offer(target: NodeAgent, *files: list[Any]) -> dict[str, Any]:
    """What a server answers to a listing."""
    return give(target, "7", wire.encode({"files": list(files)}))


def test_servers_that_share_a_folder_report_the_same_storage(
    agent: Callable[..., NodeAgent], pair: tuple[NodeAgent, NodeAgent], tmp_path: Path
) -> None:
    here, there = (one.ask("hello")["storage"] for one in pair)
    assert here != there
    assert agent("--slots", "1", "--checkpoints", str(tmp_path / "here")).ask("hello")["storage"] == here


def test_the_newest_complete_checkpoint_follows_and_nothing_counts_before_all_of_it_is_there(
    agent: Callable[..., NodeAgent], pair: tuple[NodeAgent, NodeAgent], tmp_path: Path
) -> None:
    source, target = pair
    checkpoint(tmp_path / "here" / "7", 10, b"old")
    checkpoint(tmp_path / "here" / "7", 20, BIG)
    half = checkpoint(tmp_path / "here" / "7", 30, b"cut off")
    (half / "state.pt").write_bytes(b"cut")
    with closing(opened(source, "--send", "7")) as sender:
        files = said(sender)["files"]
    assert [path for path, *_ in files] == [f"gpq/step-{20:012d}/{name}" for name in ("manifest.json", "state.pt")]
    answer = relay_half(source, target)
    assert "missing" in answer
    assert target.ask("kept")["jobs"] == [7], "what is half here can be dropped as well"
    assert not (tmp_path / "there" / "7").exists()
    assert len(BIG) <= bring(source, target).moved < len(BIG) + 2000, "the small file does not come again"
    place = tmp_path / "there" / "7" / "gpq"
    assert [one.name for one in place.iterdir()] == [f"step-{20:012d}"]
    assert (place / f"step-{20:012d}" / "state.pt").read_bytes() == BIG
    assert not list((tmp_path / "there" / ".staging").iterdir())
    assert bring(source, target).moved == 0


def relay_half(source: NodeAgent, target: NodeAgent) -> dict[str, Any]:
    """Only the first half of the bytes comes, and then the connection is cut. The answer to the listing."""
    with closing(opened(source, "--send", "7")) as sender, closing(opened(target, "--receive", "7")) as there:
        there.writer.write(sender.reader.readline())
        line = there.reader.readline()
        sender.writer.write(line)
        content = sender.reader.read()[: len(BIG) // 2]
        while content:
            content = content[there.writer.write(content) :]
        there.writer.close()
        assert b"ok" not in there.reader.read()
        return wire.decode(line)


def test_what_the_library_knows_of_the_whole_job_follows_its_checkpoint(
    pair: tuple[NodeAgent, NodeAgent], tmp_path: Path
) -> None:
    folder = tmp_path / "here" / "7"
    checkpoint(folder, 20, b"state")
    for name in ALONGSIDE:
        (folder / name).write_text("{}")
    with closing(opened(pair[0], "--send", "7")) as sender:
        paths = [path for path, *_ in said(sender)["files"]]
    assert [path for path in paths if "step-" not in path] == list(ALONGSIDE)


def test_a_damaged_file_does_not_count_and_comes_again(pair: tuple[NodeAgent, NodeAgent], tmp_path: Path) -> None:
    source, target = pair
    checkpoint(tmp_path / "here" / "7", 20, BIG)
    end = BIG[-1000:]
    answer = relay(source, target, lambda data: data.replace(end, bytes(1000)))
    assert "did not arrive as it was sent" in answer["error"]
    assert not (tmp_path / "there" / "7").exists()
    assert relay(source, target) == {"ok": True}


def test_a_file_that_changes_while_it_is_read_is_refused(pair: tuple[NodeAgent, NodeAgent], tmp_path: Path) -> None:
    source, target = pair
    place = checkpoint(tmp_path / "here" / "7", 20, BIG)
    with closing(opened(source, "--send", "7")) as sender, closing(opened(target, "--receive", "7")) as there:
        there.writer.write(sender.reader.readline())
        (place / "state.pt").write_bytes(BIG[::-1])
        sender.writer.write(there.reader.readline())
        answer = said_at_last(there, sender.reader.read())
    assert "state.pt changed while it was read" in answer["error"]
    assert not (tmp_path / "there" / "7").exists()


def test_a_later_step_of_an_attempt_that_was_given_up_is_replaced(
    pair: tuple[NodeAgent, NodeAgent], tmp_path: Path
) -> None:
    source, target = pair
    checkpoint(tmp_path / "here" / "7", 20, b"goes on", attempt=2)
    checkpoint(tmp_path / "there" / "7", 10, b"common")
    checkpoint(tmp_path / "there" / "7", 90, b"given up")
    checkpoint(tmp_path / "there" / "7", 20, b"of another attempt")
    bring(source, target)
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
    bring(source, target)
    content = {str(one.relative_to(there)): one.read_bytes() for one in there.rglob("*") if one.is_file()}
    record = (here / "own" / "saved.json").read_bytes()
    assert content == {"own/save-2/a/w": BIG, "own/saved.json": record, "mine.ckpt": b"any"}
    assert bring(source, target).moved == 0


def test_a_server_answers_while_it_sends(pair: tuple[NodeAgent, NodeAgent], tmp_path: Path) -> None:
    source, _ = pair
    (tmp_path / "here" / "7").mkdir(parents=True)
    with open(tmp_path / "here" / "7" / "large", "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, 1 << 30)
    with closing(opened(source, "--send", "7")) as sender:
        assert len(said(sender)["files"]) == 1
        sender.writer.write(wire.encode({"missing": [0]}))
        assert len(sender.reader.read(1 << 20)) > 0
        assert source.ask("ping")["ok"]
        sender.reader.close()


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", ""])
def test_nothing_is_written_outside(pair: tuple[NodeAgent, NodeAgent], path: str) -> None:
    _, target = pair
    assert "error" in offer(target, [path, 1, "f", 0, 0, 1])
    assert "error" in offer(target, ["link", 0, "l/etc"], ["link/passwd", 1, "f"])
    assert "error" in offer(target, ["link", 0, "l../../x"])
    assert "error" in offer(target)
    for what in ({"job": "../7"}, {"code": "../../etc"}, {}):
        assert not target.try_ask("drop", **what)["ok"]
    assert "error" in give(target, "../7", b"")


@pytest.mark.parametrize("number", [1, -1, "0", "../x", None])
def test_only_listed_files_are_read(pair: tuple[NodeAgent, NodeAgent], tmp_path: Path, number: object) -> None:
    source, _ = pair
    checkpoint(tmp_path / "here" / "7", 20, b"state")
    (tmp_path / "here" / "7" / "gpq" / f"step-{20:012d}" / "state.pt").unlink()
    (tmp_path / "here" / "7" / "x").write_text("x")
    with closing(opened(source, "--send", "7")) as sender:
        assert said(sender)["files"]
        answer = said_at_last(sender, wire.encode({"missing": [number] if number != 1 else [99]}))
    assert "error" in answer


def test_a_file_that_a_link_of_the_target_leads_to_does_not_count(
    pair: tuple[NodeAgent, NodeAgent], tmp_path: Path
) -> None:
    source, target = pair
    here, there, outside = tmp_path / "here" / "7", tmp_path / "there" / "7", tmp_path / "outside"
    for folder, content in ((here / "sub", b"mine"), (outside, b"else")):
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(content)
        (folder / "x").chmod(0o644)
        os.utime(folder / "x", ns=(10**18, 10**18))
    there.mkdir(parents=True)
    (there / "sub").symlink_to(outside)
    bring(source, target)
    assert (there / "sub" / "x").read_bytes() == b"mine"
    assert (outside / "x").read_bytes() == b"else"


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


def test_a_job_runs_in_code_that_has_arrived_and_not_before(node: NodeAgent, spool: Path) -> None:
    content = archive(("sub/say.sh", b"#!/bin/sh\ncat ../word\n"), ("word", b"hello\n"), ("again", "word"))
    order = node.order(1, ["./say.sh"], cwd="sub", code=sha(content))
    assert "is not on this server" in node.try_ask("start", order=order)["error"]
    assert "did not arrive" in give(node, sha(b"other"), content)["error"]
    assert give(node, sha(content), content)["ok"]
    assert give(node, sha(content), content)["ok"], "once is enough, twice does no harm"
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
    assert "error" in give(node, sha(archive(*members)), archive(*members))
    assert list((spool / "checkpoints" / ".staging").iterdir()) == []
    assert not (spool / "checkpoints" / ".code").exists() or not list((spool / "checkpoints" / ".code").iterdir())
    assert not (spool / "checkpoints" / "out").exists()


def test_data_in_place_of_the_holes_that_a_listing_promised_leaves_the_reserve_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Spool(str(tmp_path / "spool"))
    receiver = Within(lambda pipes: run_receiver(pipes, place, "7", 0.0, "", 0))
    receiver.writer.write(wire.encode({"files": [["big", 1 << 30, "f"]]}))  # by its own words it needs no space
    assert said(receiver)["missing"] == [0]
    free = os.statvfs(tmp_path)
    monkeypatch.setattr(staging, "SPARE", free.f_blocks * free.f_frsize)  # more than the disk ever has
    piece = wire.encode({"at": 0, "size": 5}) + b"x" * 5
    assert "not enough space" in said_at_last(receiver, piece)["error"]
    assert not (tmp_path / "spool" / "checkpoints" / "7").exists()
    receiver.close()
    content = archive(("a", b"x"))
    receiver = Within(lambda pipes: run_receiver(pipes, place, sha(content), 0.0, "", 0))
    assert "not enough space" in said_at_last(receiver, content)["error"]
    receiver.close()


def test_a_receiver_of_a_daemon_that_was_replaced_changes_nothing(
    pair: tuple[NodeAgent, NodeAgent], tmp_path: Path
) -> None:
    source, target = pair
    checkpoint(tmp_path / "here" / "7", 20, BIG)
    of_older = ("--store", "s", "--epoch", "1")
    with (
        closing(opened(source, "--send", "7")) as sender,
        closing(opened(target, "--receive", "7", *of_older)) as there,
    ):
        there.writer.write(sender.reader.readline())
        sender.writer.write(there.reader.readline())
        target.ask("hello", store="s", epoch=2)
        answer = said_at_last(there, sender.reader.read())
    assert "a newer daemon has taken over" in answer["error"]
    assert not (tmp_path / "there" / "7").exists()


def test_a_transfer_keeps_to_its_limit() -> None:
    pace, began = Pace(1e6), time.monotonic()
    for _ in range(10):
        pace.spend(50_000)
    assert time.monotonic() - began >= 0.5


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
    assert give(node, sha(content), content)["ok"]
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
