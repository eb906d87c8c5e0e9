"""Hostile input in every field that reaches a server, a terminal or the database (threats T1, T2, T6, T10, T12, T15).
No canary appears, no control sequence reaches a terminal, the daemon survives, and its other nodes work."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpq import config
from gpq.cli import output
from gpq.connectors.ssh import Target
from gpq.errors import GpqError, UsageError
from gpq.rpc.daemon_answers import DaemonInfo
from gpq.rpc.job_answers import CancelResult, LogChunk
from gpq.rpc.requests import Cancel, Info, Logs
from gpq.servers import adding, config_file
from tests.agent.harm import FOLDERS, HARM, HEAVY, UNSAID, inside
from tests.cli.conftest import Gpq
from tests.e2e.harness import Daemon
from tests.support.figures import Figures
from tests.support.hostile import (
    HUGE,
    LARGE,
    LIES,
    NUL,
    SHELL,
    SURROGATE,
    TERMINAL,
    TEXTS,
    attempt,
    canaries,
    dangerous,
    device,
    hostile_agent,
    on_terminal,
    report_lines,
    thief,
)
from tests.support.sshd import Sshd
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for all tests. It has to survive every one of them."""
    with Daemon(slots=4, interval=2.0) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose only node is behind ssh."""
    with Sshd(tmp_path_factory.mktemp("sshd")) as server:
        node = {"connector": "ssh", "host": server.name, "ssh": server.command, "slots": 4}
        with Daemon(nodes={"far": node}, interval=2.0) as daemon:
            daemon.work = server.home / "work"
            daemon.work.mkdir()
            yield daemon


def lives(daemon: Daemon) -> None:
    """The original process still runs, and it accepts and runs a job."""
    assert daemon.process is not None
    assert daemon.process.poll() is None, daemon.output()
    assert daemon.call(Info(), DaemonInfo).pid == daemon.process.pid
    assert daemon.ended(job := daemon.submit("true", gpu_type="cpu")) == {job: ("completed", 0)}


def shown(daemon: Daemon, *jobs: int) -> str:
    """Everything that commands with output write to a terminal. None of it may be dangerous."""
    found = ""
    each = [[word, str(job)] for job in jobs for word in ("show", "why", "logs")]
    for argv in (["status", "--all"], ["nodes"], ["top", "--once"], ["daemon", "logs"], *each):
        _, said = on_terminal(Gpq(daemon.home).environment, *argv)
        assert dangerous(said) == [], (argv, said[:2000])
        assert argv[0] == "daemon" or "Traceback" not in said, (argv, said[-2000:])
        assert "the daemon failed" not in said, (argv, said[-2000:])
        found += said
    return found


@contextlib.contextmanager
def killed_at_the_end(daemon: Daemon) -> Iterator[Daemon]:
    """For a daemon whose nodes never release a job, so waiting for a cancel would never end."""
    try:
        daemon.start()
        yield daemon
    finally:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
        shutil.rmtree(daemon.home, ignore_errors=True)


def whole_log(daemon: Daemon, job: int) -> str:
    data, chunk = b"", daemon.call(Logs(str(job)), LogChunk)
    while chunk.data:
        data += base64.b64decode(chunk.data)
        chunk = daemon.call(Logs(str(job), chunk.attempt, offset=chunk.offset), LogChunk)
    return data.decode()


# -- T1, T2: the parts of a job ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["daemon", "far"])
def test_arguments_environment_and_folders_arrive_unchanged(where: str, request: pytest.FixtureRequest) -> None:
    daemon: Daemon = request.getfixturevalue(where)
    folders = [text for text in (*SHELL, *TERMINAL) if "/" not in text]
    for text in folders:
        (daemon.work / text).mkdir()
    said = daemon.submit("printf", "%s\\0", *TEXTS)
    names = {f"V{number}": text for number, text in enumerate(TEXTS)} | {
        text: "1" for text in folders if "=" not in text
    }
    got = daemon.submit("env", "-0", env=names)
    there = {daemon.submit("pwd", cwd=str(daemon.work / text)): text for text in folders}
    ended = daemon.ended(said, got, *there)
    assert set(ended.values()) == {("completed", 0)}, ended
    assert whole_log(daemon, said).split("\0") == [*TEXTS, ""]
    assert {f"{name}={value}" for name, value in names.items()} <= set(whole_log(daemon, got).split("\0"))
    for job, text in there.items():
        assert daemon.log(job) == f"{daemon.work / text}\n"
    assert canaries(daemon.home, daemon.work) == []


def test_invalid_commands_fail_without_a_shell(daemon: Daemon, far: Daemon) -> None:
    commands = [text for text in (*SHELL, *TERMINAL, LARGE) if text != "../../../../etc/passwd"]
    for place in (daemon, far):
        jobs = [place.submit(text) for text in commands]
        assert {state for state, _ in place.ended(*jobs).values()} == {"failed"}
        assert canaries(place.home, place.work) == []
        lives(place)
    shown(far, jobs[commands.index(TERMINAL[0])], jobs[-1])


def test_jobs_with_invalid_interpreters_wait_and_start_no_shell(daemon: Daemon, far: Daemon) -> None:
    """The agent checks what a job needs, and runs a process of its own after a setup. Both treat the interpreter only
    as a name."""
    for place in (daemon, far):
        jobs = [place.submit("x.py", level="script", python=text) for text in (*SHELL, *TERMINAL)]
        jobs += [place.submit("x.py", level="script", python=text, python_asked=True, setup=":") for text in SHELL]

        def explained(place: Daemon = place, jobs: list[int] = jobs) -> bool:
            return all("interpreter" in row.reason for row in place.rows(jobs).jobs)

        wait_until(explained, "gpq says what each job lacks")
        assert {(row.state, row.attempt) for row in place.rows(jobs).jobs} == {("pending", 0)}
        if place is daemon:
            shown(place, jobs[len(SHELL)], jobs[-1])
        place.call(Cancel([str(job) for job in jobs], wait=60.0), CancelResult)
        assert canaries(place.home, place.work) == []
        lives(place)


def test_invalid_names_are_refused(daemon: Daemon) -> None:
    count = daemon.rows().total
    for text in (*TEXTS, NUL):
        for field in ({"name": text}, {"tags": [text]}, {"signal": text}, {"level": text}, {"gpu_type": text}):
            if field == {"name": "--"}:
                continue
            with pytest.raises(GpqError) as refused:
                daemon.submit("true", **field)  # type: ignore[arg-type]
            assert refused.value.code in (2, 5), field
    for text in (NUL, SURROGATE):
        for field in ({"env": {text: "x"}}, {"env": {"X": text}}, {"cwd": "/" + text}, {"python": text}):
            with pytest.raises(UsageError):
                daemon.submit("true", **field)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            daemon.submit("true", text)
    assert daemon.rows().total == count


def test_invalid_hosts_and_node_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text("interval = 2.0\n")
    monkeypatch.setenv("GPQ_CONFIG", str(tmp_path / "config.toml"))
    for text in (*TEXTS, NUL, SURROGATE):
        for host, name in ((text, "n"), (f"u@{text}", "n"), (f"{text}@h", "n"), ("h", text)):
            with pytest.raises(UsageError):
                adding.add(adding.Wanted(host, name, [], 1, "", 0, "", ""), output, yes=True, quiet=True)
            with pytest.raises(GpqError):
                config.parse(config_file.with_node("", name, {"connector": "ssh", "host": host}))
        with pytest.raises(UsageError):
            Target(text)
        for field in ("identity", "spool", "address", "python"):
            with contextlib.suppress(GpqError):  # a path may look strange, and then it is kept as it is
                kept = config_file.with_node("", "n", {"connector": "ssh", "host": "h", field: text})
                assert getattr(config.parse(kept).nodes["n"], field) == text
                assert text.isprintable()
                assert not text.startswith("-")
    assert (tmp_path / "config.toml").read_text() == "interval = 2.0\n"
    environment = {**Gpq(tmp_path).environment}
    for text in (SHELL[0], SHELL[7], TERMINAL[2]):
        code, said = on_terminal(environment, "nodes", "add", "--yes", "--", text)
        assert (code, dangerous(said)) == (2, []), said
    assert canaries(tmp_path) == []


# -- T10: what a job prints and reports --------------------------------------------------------------------------------


def test_a_log_reaches_a_terminal_without_control_sequences_and_a_pipe_unchanged(daemon: Daemon) -> None:
    log = "\n".join(TERMINAL).encode() + b"\n\xff\xfe\x9b2J\x00 \x1b[31mred\x1b[0m end\n"
    (daemon.work / "log").write_bytes(log)
    job = daemon.shell("cat log")
    daemon.ended(job)
    said = shown(daemon, job)
    assert "red" in said
    assert "\\x1b]52;c;" in said
    piped = daemon.submit("printf", "%s", TERMINAL[2])
    daemon.ended(piped)
    assert daemon.log(piped) == TERMINAL[2]
    assert Gpq(daemon.home)("logs", str(piped)).stdout == TERMINAL[2]


def test_the_daemon_survives_false_reports_and_shows_them_safely(daemon: Daemon) -> None:
    (daemon.work / "lines").write_text("\n".join(report_lines()) + "\n")
    job = daemon.shell(
        'cat lines > "$GPQ_RUN_DIR/report.jsonl"; while ! test -e go; do sleep 0.1; done', name="reports"
    )
    wait_until(lambda: "honest" in daemon.detail(job).notices, "the honest line after all the others is shown")
    said = shown(daemon, job)
    assert "honest" in said
    (daemon.work / "go").touch()
    assert daemon.ended(job) == {job: ("completed", 0)}
    lives(daemon)


# -- what a job makes of the folder that it may write to --------------------------------------------------------------


REPORTS = {f"report: {name}": inside("report.jsonl", harm) for name, harm in {**HARM, **HEAVY}.items()}


@pytest.mark.parametrize(
    ("kind", "shim"), [(kind, "lives") for kind in (*FOLDERS, *REPORTS)] + [(kind, "is gone") for kind in FOLDERS]
)
def test_whatever_a_job_makes_of_its_folder_other_jobs_start_and_it_can_be_cancelled(
    daemon: Daemon, figures: Figures, kind: str, shim: str
) -> None:
    job = daemon.submit("sleep", "600")
    daemon.until(job, "running")
    folder = daemon.home / "nodes" / "local" / "attempts" / f"{job}.1"
    pid = json.loads((folder / "shim.json").read_text())["pid"]
    {**FOLDERS, **REPORTS}[kind](folder)
    if shim == "is gone":
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    lives(daemon)
    figures.at_most("a neighbour's job starts", time.monotonic() - began, 5.0)
    if kind in FOLDERS and kind not in UNSAID and "json" not in kind:
        wait_until(lambda: "local: " in "".join(daemon.detail(job).notices), "gpq says what was wrong")
    began = time.monotonic()
    daemon.call(Cancel([str(job)], wait=60.0), CancelResult)
    assert daemon.state(job) == "cancelled"
    figures.at_most("the job is cancelled", time.monotonic() - began, 10.0)


def test_lines_behind_a_long_line_count_and_gpq_says_what_it_left_out(daemon: Daemon) -> None:
    (daemon.work / "line").write_bytes(b"x" * (5 << 20) + b'\n{"kind":"notice","message":"last"}\n')
    job = daemon.shell('cat line > "$GPQ_RUN_DIR/report.jsonl"')
    assert daemon.ended(job) == {job: ("completed", 0)}
    [said, last] = daemon.detail(job).notices
    assert ("a part is left out" in said, last) == (True, "last")


def test_the_end_of_a_job_does_not_wait_for_somebody_else_who_writes_its_report_on(daemon: Daemon) -> None:
    job = daemon.shell('echo "$GPQ_RUN_DIR" > place; while ! test -e written; do sleep 0.1; done')
    place = wait_until(lambda: (daemon.work / "place").exists() and (daemon.work / "place").read_text(), "it runs")
    report = Path(place.strip(), "report.jsonl")
    writing = f"""while echo '{{"kind":"notice","message":"more"}}'; do :; done >> {report}"""
    with subprocess.Popen(["sh", "-c", writing]) as writer:
        try:
            wait_until(lambda: report.exists() and report.stat().st_size > 0, "somebody writes")
            (daemon.work / "written").touch()
            assert daemon.ended(job) == {job: ("completed", 0)}
        finally:
            writer.kill()


# -- T15: a node that lies ---------------------------------------------------------------------------------------------


def test_the_daemon_survives_anything_a_node_says_and_other_nodes_are_unaffected(tmp_path: Path) -> None:
    tail = {"data": "Gw==", "offset": 0, "size": 9}  # reading on from there never ends
    end = {"code": HUGE, "signal": SURROGATE, "note": TERMINAL[0] + SURROGATE, "ended_at": float("nan")}
    ok = {"state": "ok", "id": "slot-0"}
    noted = {**attempt()["exit"], "note": TERMINAL[0] + SURROGATE, "asked": TERMINAL[1]}
    lies = {
        **LIES,
        "thief": thief(1),
        "liar": {"devices": [device(type="liar", **ok)], "attempt": attempt(exit=noted), "tail": tail},
        "giant": {"devices": [device(type="giant", **ok)], "attempt": attempt(exit=end, pid=HUGE)},
        "reporter": {
            "devices": [device(type="reporter", **ok)],
            "attempt": attempt(state="running", report="\n".join(report_lines()) + "\n", report_offset=HUGE),
        },
        "refuser": {
            "devices": [device(type="refuser", **ok)],
            "start": {"ok": False, "error": TERMINAL[0] + SURROGATE, "hint": [], "kind": "wrong"},
        },
    }  # fmt: skip
    nodes: dict[str, dict[str, object]] = {
        name: {"python": hostile_agent(tmp_path / name, lie)} for name, lie in lies.items()
    }
    # The pace is slow because agents that end at once make this test expensive, and a few tries of each are enough.
    with killed_at_the_end(Daemon(nodes={"local": {"slots": 2}, **nodes}, interval=2.0, pace=3.0)) as daemon:
        mine = daemon.shell("while ! test -e go; do sleep 0.1; done", gpu_type="cpu", name="mine")
        assert mine == 1
        daemon.until(mine, "running")
        theirs = [daemon.submit("true", gpu_type=kind) for kind in ("liar", "giant", "reporter", "refuser")]

        def all_heard() -> bool:
            return all(not node.reason.startswith("not heard of yet") for node in daemon.nodes().nodes)

        wait_until(all_heard, "every node has answered, or sent nothing valid")
        daemon.until(theirs[0], "failed")
        daemon.until(theirs[3], "failed")
        lives(daemon)
        shown(daemon, theirs[0])  # each command gives the liars a few more seconds to do their worst
        for argv in (["show", str(theirs[1])], ["show", str(theirs[2])], ["why", str(theirs[3])]):
            done = Gpq(daemon.home)(*argv)
            assert (done.returncode, dangerous(done.stdout + done.stderr)) == (0, []), argv
        assert {node.name: node.state for node in daemon.nodes().nodes}["local"] == "up"
        detail = daemon.detail(mine)
        assert (detail.job.state, detail.job.attempt, detail.notices) == ("running", 1, [])
        (daemon.work / "go").touch()
        assert daemon.ended(mine) == {mine: ("completed", 0)}
        assert canaries(daemon.home, tmp_path) == []
        daemon.kill()  # everything that was stored can be read again
        daemon.start()
        lives(daemon)


# -- T12: the socket ---------------------------------------------------------------------------------------------------


def frames(count: int) -> Iterator[bytes]:
    """Lines from noise to almost valid."""
    rng = random.Random(12)
    submit = {"argv": ["true"], "cwd": "/", "level": "black-box"}
    good: list[dict[str, object]] = [{"op": op} for op in ("status", "nodes", "top", "info", "complete")]
    good += [{"op": op, "job": "1"} for op in ("show", "why", "logs")]
    good += [{"op": "submit", "dry_run": True, "spec": submit}, {"op": "hold", "jobs": ["1"]}]
    odd = [None, True, -1, HUGE, 1e308, [], {}, [[]], *TEXTS[:-1], NUL, "\ud800", {"a": {"b": 1}}]
    for _ in range(count):
        message: dict[str, object] = {"v": 1, **rng.choice(good)}
        kind = rng.randrange(6)
        if kind == 0:
            yield rng.randbytes(rng.randrange(200)).replace(b"\n", b"")
            continue
        if kind in (1, 2):
            key = rng.choice([*message, "v", "spec", "jobs", "job", "kind", "limit", "offset"])
            message[key] = rng.choice(odd)
        elif kind == 3:
            message["spec"] = {
                **submit,
                rng.choice(["argv", "env", "name", "min_gpus", "tags", "cwd"]): rng.choice(odd),
            }
        message.pop("wait", None)
        line = bytearray(json.dumps(message).encode())
        if kind == 4:
            line[rng.randrange(len(line))] = rng.randrange(256)
        if kind == 5:
            line = line[: rng.randrange(len(line))]
        yield bytes(line).replace(b"\n", b"")


def test_5000_random_frames_each_get_an_answer(daemon: Daemon) -> None:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(PATIENCE)
        stream.connect(str(daemon.home / "gpq.sock"))
        reader = stream.makefile("rb")
        for frame in frames(5000):
            stream.sendall(frame + b"\n")
            answer = json.loads(reader.readline())
            assert "a bug in gpq" not in str(answer.get("hint")), (frame, answer)
    lives(daemon)


def test_100_slow_connections_delay_nobody_for_long(daemon: Daemon, figures: Figures) -> None:
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        for number in range(100):
            stream = stack.enter_context(socket.socket(socket.AF_UNIX))
            stream.connect(str(daemon.home / "gpq.sock"))
            stream.sendall(b'{"v":1,"op":"' if number % 2 else b"\0")
        lives(daemon)
        figures.at_most("a job next to 100 slow connections", time.monotonic() - began, 20.0)
    lives(daemon)


# -- T6: planted links -------------------------------------------------------------------------------------------------

PLANTED = (  # groups in which no name hides another
    ("daemon.lock", "daemon.log", "gpq.sock", "gpq.db", "gpq.db.reserve", "nodes/local/lock"),
    ("nodes/local/spool.json",),
    ("nodes/local/attempts/1.1",),
)


@pytest.mark.parametrize("names", PLANTED, ids=lambda names: names[0])
def test_gpq_never_writes_through_a_planted_link(names: tuple[str, ...], tmp_path: Path) -> None:
    daemon = Daemon(slots=1)
    victims = {name: tmp_path / name.replace("/", "-") for name in names}
    for name, victim in victims.items():
        if name.endswith("1.1"):
            victim.mkdir()
        else:
            victim.write_text("precious\n")
        link = daemon.home / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(victim)
    try:
        refused = set[str]()
        while (name := refusal(daemon, names)) is not None:
            assert name not in refused, f"{name} is gone"
            refused.add(name)
            (daemon.home / name).unlink()
        job = daemon.submit("true")
        with contextlib.suppress(AssertionError):
            daemon.until(job, "completed", "failed", patience=1.0)
        daemon.stop()
    finally:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
        shutil.rmtree(daemon.home, ignore_errors=True)
    for victim in victims.values():
        assert list(victim.iterdir()) == [] if victim.is_dir() else victim.read_text() == "precious\n", victim


def refusal(daemon: Daemon, names: Sequence[str]) -> str | None:
    """Start it. Returns the link that it names as the reason for refusing to start, or None if it serves."""
    try:
        daemon.start()
    except AssertionError as error:
        text = str(error)
        assert "Traceback" not in text, text
        # The longest match, because gpq.db is a prefix of gpq.db.reserve.
        return max((name for name in names if name in text), key=len)
    return None
