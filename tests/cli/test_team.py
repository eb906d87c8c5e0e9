"""`gpq team`, `gpq join` and `gpq leave` with a real arbiter and real daemons."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpq import config as configuration
from gpq import paths
from gpq.cli import output
from gpq.cli.team import COMMON
from gpq.connectors.arbiter import ArbiterClient
from gpq.errors import GpqError
from gpq.rpc.team_messages import TeamServer
from gpq.servers import offered
from tests.cli.conftest import FIFO, ROOT, Gpq, started, state_directory, submitted
from tests.cli.terminals import Terminal
from tests.support.sshd import Sshd, clients
from tests.support.users import command_of, without_acls
from tests.support.waiting import wait_until

USER = pwd.getpwnam("bin")  # a second user, who has a group of the same name
COMMENTED = f"# mine\n{FIFO}# the end\n"


def arbiter_pid(name: str, uid: int = os.getuid()) -> int:
    with contextlib.closing(ArbiterClient(name, uid)) as client:
        return client.pid


def end(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the arbiter is gone")


@pytest.fixture
def name() -> Iterator[str]:
    """That of a team, which no other test has. No arbiter of it remains."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    for uid in (os.getuid(), USER.pw_uid, 3):
        with contextlib.suppress(GpqError):
            end(arbiter_pid(name, uid))
        shutil.rmtree(paths.team_folders(name, uid)[-1], ignore_errors=True)


def ok(gpq: Gpq, *argv: str) -> str:
    done = gpq(*argv)
    assert done.returncode == 0, done
    return done.stdout


def refusal(gpq: Gpq, *argv: str) -> tuple[int, str]:
    """The exit status, and the line without its hint."""
    done = gpq(*argv)
    first, hint, *more = done.stderr.splitlines()
    assert hint.startswith("hint: "), done
    assert not more
    return done.returncode, first


def member_names(gpq: Gpq) -> set[str]:
    return {row["name"] for row in json.loads(ok(gpq, "team", "--json"))["rows"]}


def test_a_user_makes_a_team_runs_jobs_in_it_and_ends_it(gpq: Gpq, name: str) -> None:
    config = gpq.home / "config.toml"
    config.write_text(COMMENTED)
    job = submitted(gpq, "--", "true")
    try:
        made = ok(gpq, "team", "init", name)
        assert f"uid {os.getuid()}), decides, and others may join after `gpq team add LOGIN`\n" in made
        assert f"gpq join {name}\n" in made
        assert config.read_text().startswith(COMMENTED)
        ok(gpq, "wait", job, submitted(gpq, "--", "true"))
        ok(gpq, "team", "add", "54321")
        ok(gpq, "team", "share", "54321", "2.5")
        assert ok(gpq, "team").splitlines()[1].split()[:2] == ["54321", "2.5"]
        trail = ok(gpq, "team", "audit", "-n", "3").splitlines()
        assert [line.split("  ")[1].partition(" ")[2] for line in trail[1:]] == [
            "added uid 54321 as 54321",
            "set the share of 54321 to 2.5",
        ]
        assert trail[0].endswith(" may start on 1 x local")
        checks = ok(gpq, "team", "check").splitlines()
        assert {line[:4] for line in checks} == {"ok  "}

        assert refusal(gpq, "team", "share", "54321", "0") == (2, "gpq: invalid share `0`")
        assert refusal(gpq, "team", "pause", "dora") == (4, f"gpq: team {name} has no member dora")
        assert refusal(gpq, "team", "add", "no-such-user")[0] == 4
        assert refusal(gpq, "team", "init", "another") == (5, f"gpq: you are in team {name} already")
        assert refusal(gpq, "leave") == (5, f"gpq: you are the last admin of team {name}")
        assert refusal(gpq, "leave", "--end") == (5, "gpq: there are other members: 54321")
        ok(gpq, "team", "remove", "54321")
        ok(gpq, "leave", "--end")
        assert config.read_text() == COMMENTED
        assert (gpq.home / "teams" / name / "audit.jsonl").exists()
        assert refusal(gpq, "join", name)[0] == 4
        ok(gpq, "wait", submitted(gpq, "--", "true"))
    finally:
        gpq("daemon", "stop")


def test_an_arbiter_that_ended_comes_back_with_the_daemon_and_nobody_needs_it_to_leave(gpq: Gpq, name: str) -> None:
    try:
        ok(gpq, "team", "init", name)
        end(arbiter_pid(name))
        assert refusal(gpq, "team")[0] == 3
        ok(gpq, "daemon", "stop")
        ok(gpq, "status")
        wait_until(lambda: gpq("team", "check").returncode == 0, "the daemon hears the arbiter")
        trail = gpq.home / "teams" / name / "audit.jsonl"
        trail.write_text(trail.read_text().replace('"start"', '"Start"', 1))
        done = gpq("team", "check")
        assert (done.returncode, done.stdout.splitlines()[0]) == (
            1,
            "not   the audit is broken: line 2 does not follow from those before it",
        )
        assert "line 2 does not follow" in gpq("team", "audit").stderr

        end(arbiter_pid(name), signal.SIGTERM)
        done = gpq("leave")
        assert (done.returncode, done.stdout) == (0, f"left team {name}\n")
        assert "does not know that you left" in done.stderr
        again = gpq("team", "init", name)
        assert f"team {name} is yours already: the arbiter runs" in again.stdout
        assert f"you are not in it: `gpq join {name}`" in again.stderr
    finally:
        gpq("daemon", "stop")


def test_a_check_says_that_others_can_delay_who_has_no_socket_of_their_own(gpq: Gpq, name: str) -> None:
    with without_acls(Path(paths.team_folders(name, os.getuid())[-1])):
        try:
            ok(gpq, "team", "init", name)
            ok(gpq, "wait", submitted(gpq, "--", "true"))
            done = gpq("team", "check")
            assert (done.returncode, done.stdout.splitlines()[-1]) == (1, f"not   {COMMON}")
            log = (gpq.home / "teams" / name / "arbiter.log").read_text()
            assert f"/sock.{os.getuid()}: " in log
            ok(gpq, "leave", "--end")
        finally:
            gpq("daemon", "stop")


class Second(Gpq):
    """The command line of another user."""

    def __call__(
        self, *argv: str, timeout: float = 120, cwd: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command_of(USER), sys.executable, "-m", "gpq", *argv],
            env={**self.environment, **environ}, cwd=cwd or self.home, timeout=timeout, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip


@pytest.fixture
def second() -> Iterator[Second]:
    with state_directory() as home:
        for path in (home, *home.rglob("*")):
            os.chown(path, USER.pw_uid, USER.pw_gid)
        second = Second(home)
        yield second
        second("cancel", "all")
        second("daemon", "stop")


def folder(name: str, uid: int) -> None:
    """A folder of the second user, where the arbiter of `uid` would have its socket."""
    place = paths.team_folders(name, uid)[-1]
    os.mkdir(place)
    os.chown(place, USER.pw_uid, USER.pw_gid)


def test_a_user_of_the_group_joins_and_one_who_was_removed_stays_out(home: Path, second: Second, name: str) -> None:
    with started(home) as first:
        ok(first, "team", "init", name, "--group", USER.pw_name)
        folder(name, 3)
        assert refusal(second, "team", "init", name)[0] == 5
        folder(name, USER.pw_uid)
        several = f"gpq: several users decide for a team {name}: root (uid 0), bin (uid {USER.pw_uid})"
        assert refusal(second, "join", name) == (5, several)
        assert refusal(second, "join", name, "--uid", str(USER.pw_uid))[0] == 3
        joined = ok(second, "join", name, "--uid", "0")
        assert "Not commands, files, logs\njoined as bin\n2 members with their shares: bin 1, root 1\n" in joined
        assert joined.endswith("your floor is at least 1 of 2 GPUs while all want some\n")
        assert refusal(second, "team", "share", "bin", "9")[0] == 5
        ok(second, "wait", submitted(second, "--", "sh", "-c", 'test "$(id -un)" = bin'))
        job = submitted(second, "--gpus", "2", "--", "sleep", "600")
        wait_until(lambda: f"bin/{job}" in ok(first, "status", "--team"), "the arbiter knows it")
        assert ok(first, "why", f"bin/{job}")
        assert refusal(first, "why", "bin/99")[0] == 4
        assert refusal(first, "why", "bin/x") == (2, "gpq: invalid job `bin/x`")
        ok(second, "cancel", job)
        assert member_names(first) == {"root", "bin"}
        own = Path(paths.team_folders(name, 0)[-1], f"sock.{USER.pw_uid}")
        assert own.exists()
        checks = ok(second, "team", "check").splitlines()
        assert {line[:4] for line in checks} == {"ok  "}

        ok(first, "team", "pause", "bin")
        assert refusal(second, "team") == (5, "gpq: an admin has paused bin")
        ok(first, "team", "resume", "bin")
        ok(second, "leave")
        assert member_names(first) == {"root"}
        ok(second, "join", name, "--uid", "0")
        ok(first, "team", "remove", "bin")
        assert not own.exists()
        assert refusal(second, "team") == (5, f"gpq: you are no member of team {name}")
        ok(second, "leave")
        assert refusal(second, "join", name, "--uid", "0") == (5, f"gpq: you are no member of team {name}")
        assert ok(second, "daemon", "status").count("policy    fifo") == 1
        ok(first, "leave", "--end")


def completions(gpq: Gpq, *words: str) -> list[str]:
    return ok(gpq, "__complete", "bash", *words).splitlines()


def begins(gpq: Gpq, head: str) -> None:
    """`gpq status` does, at the latest after two refusals of a start (60 s) on a busy machine."""
    wait_until(lambda: ok(gpq, "status").startswith(head), f"status begins with {head}", 180.0)


def test_members_see_each_other_wherever_they_look(home: Path, second: Second, name: str) -> None:
    for place in (home, second.home):  # CPU slots of this number are of no other test
        (place / "config.toml").write_text(FIFO.replace("slots = 2", "slots = 6"))
    with started(home) as first:
        for words in (("top", "--team", "--once"), ("report", "--team")):
            assert refusal(first, *words) == (5, "gpq: you are in no team")
        ok(first, "team", "init", name, "--group", USER.pw_name)
        job = submitted(first, "--gpus", "3", "--", "sleep", "600")
        wait_until(lambda: " running " in ok(first, "status", "--team"), "the arbiter knows that it runs")
        assert not ok(first, "status").startswith("team"), "a team of one needs no line"
        assert json.loads(ok(first, "status", "--json"))["team"] is None

        ok(second, "join", name, "--uid", "0")
        submitted(second, "--gpus", "3", "--", "sleep", "600")
        other = submitted(second, "--gpus", "3", "--", "sleep", "600")
        head = f"team {name}: you hold 3 of 6 GPUs (floor 3), bin 3 (3)\n1 job of others waits\n"
        begins(first, head)
        head = f"team {name}: you hold 3 of 6 GPUs (floor 3), root 3 (3)\nID"
        begins(second, head)
        members = json.loads(ok(first, "top", "--json"))["team"]["members"]
        assert members[1] == {"member": "bin", "gpus": 3, "floor": 3, "waiting": 1}
        assert f"team {name}: you hold 3 of 6 GPUs" in ok(first, "top", "--once")
        assert json.loads(ok(first, "status", job, "--json"))["team"] is None

        page = ok(second, "top", "--team", "--once")
        assert page.index("MEMBER") < page.index(f"root/{job}") < page.index(f"bin/{other}")
        look = json.loads(ok(second, "top", "--team", "--json"))
        assert {row["member"] for row in look["queue"]["rows"]} == {"root", "bin"}
        assert refusal(first, "top", "--team", job) == (2, f"gpq: --team shows all jobs, not `{job}`")
        assert refusal(first, "top", "--team", "--interval", "0.5")[0] == 2
        assert ok(second, "report", "--team").count("%") == 2
        assert set(json.loads(ok(first, "report", "--team", "--since", "7d", "--json"))["gpu_hours"]) == {"root", "bin"}
        assert "no member had a GPU" in ok(first, "report", "--team", "--until", "yesterday")
        for words in (("--by", "day"), ("--csv",), ("--html", "x.html")):
            assert refusal(first, "report", "--team", *words) == (2, "gpq: --team has only a table")

        for command in ("remove", "share", "pause", "resume", "admin"):
            assert completions(first, "team", command, "b") == ["bin"]
        assert completions(first, "team", "pause", "bin", "") == []
        assert completions(first, "team", "recall", "") == ["bin/1", f"root/{job}"], "those that have GPUs"
        assert completions(first, "why", "bi") == ["bin/1", f"bin/{other}"]
        assert completions(first, "why", "") == [job]

        with Terminal(first.environment, "top", "--team") as terminal:
            terminal.shows(f"team {name}", "MEMBER", f"bin/{other}")
            ok(second, "cancel", other)
            terminal.until(lambda seen: f"bin/{other}" not in seen.text, "it follows the queue")
            pid = arbiter_pid(name)
            os.kill(pid, signal.SIGSTOP)
            try:
                assert completions(first, "team", "pause", "b") == []
            finally:
                os.kill(pid, signal.SIGCONT)
            end(pid)
            terminal.shows("ago: the arbiter of team")
            terminal.press("q")
            assert terminal.end() == 0
        wait_until(lambda: "does not answer" in first("status").stderr, "the daemon hears nothing")
        assert not ok(first, "status").startswith("team")
        assert completions(first, "why", "bi") == []


def ssh_of(gpq: Gpq, config: str) -> Path:
    """This user's ssh has `config` as its configuration, and everything that it is called with is in the file."""
    (gpq.home / "ssh_config").write_text(config)
    calls, program = gpq.home / "calls", gpq.home / "bin" / "ssh"
    calls.touch()
    calls.chmod(0o666)
    program.write_text(f'#!/bin/sh\necho "$@" >>{calls}\nPATH=/usr/bin:/bin\nexec ssh -F {gpq.home}/ssh_config "$@"\n')
    program.chmod(0o755)
    return calls


def servers(gpq: Gpq) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(ok(gpq, "nodes", "--team", "--json"))["rows"]}


def test_who_joins_gets_the_servers_that_they_reach_and_a_line_about_each_other(
    home: Path, second: Second, name: str, tmp_path: Path
) -> None:
    """One command, for servers of an admin: known, unknown, without an account, and with a name that is taken."""
    names = ("near", "strange", "closed", "taken")
    with contextlib.ExitStack() as stack:
        sshds = {host: stack.enter_context(Sshd(tmp_path / host, name=host)) for host in names}
        for slots, (host, server) in enumerate(sshds.items(), 3):
            with open(home / "config.toml", "a") as stream:
                stream.write(f"[nodes.{host}]\n{server.toml(slots=slots, host=f'root@{host}')}")
        first = stack.enter_context(started(home))
        ok(first, "team", "init", name, "--group", USER.pw_name)
        assert len(servers(first)) == 5, "who joins now gets them all"
        assert servers(first)["near"] == {
            "name": "near", "address": "near", "port": 0, "state": "up", "kind": "cpu", "types": ["cpu"],
            "devices": 3, "free": 3, "members": ["root"], "holders": {},
        }  # fmt: skip

        for host in ("strange", "closed"):
            sshds[host].know()
        config = "Host *\n  User root\n" + "".join(server.config.read_text() for server in sshds.values())
        own = tmp_path / "own"
        own.touch()
        own.chmod(0o666)
        config = config.replace(str(sshds["strange"].known_hosts), str(own))
        config = config.replace(str(sshds["closed"].key), "/dev/null")
        calls = ssh_of(second, config)
        with open(second.home / "config.toml", "a") as stream:
            stream.write('[nodes.taken]\nconnector = "ssh"\nhost = "elsewhere.invalid"\n')
        joined = ok(second, "join", name, "--uid", "0").splitlines()
        assert joined[1] == "servers of the team that you do not have, tried as you: closed near strange taken"
        assert joined[3] == "near  3 CPU slots"
        hints = {line.partition("  ")[0]: line.partition("  ")[2] for line in joined[2:6]}
        assert hints["closed"].startswith("left out: closed accepts none of your keys (`ssh closed true` must")
        assert hints["strange"].startswith("left out: the host key of strange is not known (compare the")
        assert hints["taken"].startswith("left out: you have a server of this name (`gpq nodes add taken --name")
        assert own.read_text() == ""
        added = configuration.load(str(second.home / "config.toml")).nodes["near"]
        assert (added.host, added.port, added.slots, added.ssh, added.identity) == ("near", 0, 3, [], "")
        assert "root@" not in calls.read_text()
        wait_until(lambda: servers(first)["near"]["members"] == ["bin", "root"], "both have it")
        job = submitted(second, "--gpus", "3", "--", "sleep", "600")
        wait_until(lambda: servers(first)["near"]["holders"] == {"bin": 3}, "it runs there")
        assert servers(first)["near"]["free"] == 0
        ok(second, "cancel", job)

        command = [*command_of(USER), sys.executable, "-m", "gpq", "join", name, "--uid", "0"]
        command[0] = shutil.which(command[0]) or ""
        with Terminal(second.environment, shell=command, columns=200) as terminal:
            terminal.shows("Are you sure")
            terminal.press("yes\r")
            terminal.shows("strange  4 CPU slots", "joined as bin")
            assert terminal.end() == 0
        assert own.read_text()
        ok(second, "leave")
        before = calls.read_text().count("closed")
        assert "left out" not in ok(second, "join", name, "--uid", "0", "--no-servers")
        assert calls.read_text().count("closed") == before
        ok(second, "leave")
        ok(first, "leave", "--end")


ADDRESSES = (
    "-oProxyCommand=touch canary", "-Fcanary", "gpu1;touch canary", "$(touch canary)", "`id`", "root@gpu1", "gpu 1", "",
    "gpu1\n", "gpu1\nHost x", "g\u00fc1", "gpu\u20281", "a" * 300, "[::1]", "gpu1/../x", "%h", "@gpu1", "gpu1\x1b[2J",
)  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_ssh_is_never_called_with_what_is_no_address(
    gpq: Gpq, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    calls = ssh_of(gpq, "Host *\n  HostName 127.0.0.1\n  Port 1\n")
    for key in ("PATH", "GPQ_HOME", "GPQ_CONFIG"):
        monkeypatch.setenv(key, gpq.environment[key])
    before = (gpq.home / "config.toml").read_text()

    def lines(address: str, port: int, name: str = "gpu1") -> list[str]:
        row = TeamServer(name, address, port, "up", "cuda", ["A100"], 4, 4, ["ana"], {})
        offered.add_each([row], output, here=False)
        return capsys.readouterr().out.splitlines()

    assert [line.partition(":")[0] for line in lines(address, 0)] == ["gpu1  left out"]
    assert lines("gpu1", 65536) == lines("gpu1", -1)
    assert "invalid server name" in lines("gpu1", 22, "a b")[-1]
    assert calls.read_text() == ""
    assert "refuses connections" in lines("gpu1", 1)[-1]
    assert "-- gpu1" in calls.read_text()
    assert (gpq.home / "config.toml").read_text() == before


def test_a_member_on_another_machine_joins_by_ssh_and_a_cut_link_stops_nothing(
    home: Path, second: Second, name: str, tmp_path: Path
) -> None:
    """The second user decides. The first one takes part through an sshd."""
    with contextlib.ExitStack() as stack:
        head = stack.enter_context(Sshd(tmp_path / "sshd", name="head"))
        launcher = head.home / ".local" / "bin" / "gpq"
        launcher.parent.mkdir(parents=True)
        gpq_there = f"PYTHONPATH={ROOT}:{ROOT}/agent exec {sys.executable} -m gpq"
        for gpq_home in (home, second.home):  # slots that no other test locks
            (gpq_home / "config.toml").write_text(FIFO.replace("slots = 2", "slots = 7"))
        ok(second, "team", "init", name)
        first = Gpq(home)
        ssh_of(first, f"Host *\n  User root\n{head.config.read_text()}")
        nothing = refusal(first, "join", f"head:{name}")
        assert nothing == (1, "gpq: there is no gpq on head")
        launcher.write_text(f'#!/bin/sh\nprintf "Welcome to head."\n{gpq_there} "$@"\n')
        launcher.chmod(0o755)
        assert refusal(first, "join", "head:nobody-has-this")[1] == (
            "gpq: head: there is no arbiter of a team nobody-has-this on this machine"
        )
        assert refusal(first, "join", f"head:{name}") == (5, f"gpq: you are no member of team {name}")
        ok(second, "team", "add", "root")

        stack.callback(first, "daemon", "stop")
        stack.callback(first, "cancel", "all")
        before = (home / "config.toml").read_text()
        joined = ok(first, "join", f"head:{name}").splitlines()
        assert joined[0].startswith(f"team {name} is decided by bin (uid {USER.pw_uid}) on head. It will know")
        assert joined[1:3] == [
            "local  left out: it is the own machine of bin (`gpq nodes add HOST` if you may log in)",
            "joined as root",
        ]
        team = configuration.load(str(home / "config.toml")).team
        assert (team.name, team.uid, team.arbiter) == (name, USER.pw_uid, "head")
        config = home / "ssh_config"
        job = submitted(first, "--", "sleep", "600")
        wait_until(lambda: f"root/{job}" in ok(second, "status", "--team"), "the arbiter knows it")
        wait_until(lambda: "running" in ok(first, "status", "--team"), "it was granted a slot")
        assert ok(first, "why", f"root/{job}")
        assert member_names(first) == {"root", "bin"}
        wait_until(lambda: first("team", "check").returncode == 0, "all is well")

        head.stop()
        links = clients(config)
        assert len(links) == 2
        for pid in links:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "head refuses connections" in first("status").stderr, "the silence is shown")
        assert json.loads(ok(first, "show", job, "--json"))["job"]["state"] == "running"
        head.start()
        late = submitted(first, "--", "true")
        ok(first, "wait", late)
        wait_until(lambda: first("team", "check").returncode == 0, "the daemon hears the arbiter again")
        assert json.loads(ok(first, "show", job, "--json"))["job"]["attempt"] == 1
        assert refusal(first, "leave", "--end")[1] == f"gpq: uid {USER.pw_uid} on head decides for team {name}, not you"
        ok(first, "cancel", job)
        ok(first, "leave")
        assert (home / "config.toml").read_text() == before
        assert member_names(second) == {"bin"}
        wait_until(lambda: not clients(config), "no ssh remains")
        ok(second, "leave", "--end")
