"""`gpq nodes add` and `remove`: what they ask and write. Every other byte of config.toml stays the same."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpq import pace
from gpq.cli import output
from gpq.config import parse
from gpq.errors import GpqError, NotFound, Refused, UsageError
from gpq.servers import adding, config_file, first_contact
from gpq.servers.adding import Wanted, add, check, choice
from gpq.servers.first_contact import Findings
from tests.cli.conftest import Call, Gpq
from tests.cli.terminals import Terminal
from tests.support.sshd import Sshd
from tests.support.waiting import wait_until

MINE = """\
# mine
policy = "fifo"   # so

[nodes.a]  # the old one
slots = 2
gpus = [
  "0",  # left
]
# of b:
[nodes."b.c"]
slots = 1\t
"""
FAR = {"connector": "ssh", "host": "u@far", "gpus": ["0", "1"]}


def test_a_table_is_added_at_the_end_and_nothing_else_changes() -> None:
    after = config_file.with_node(MINE, "x.y", FAR)
    added = '\n[nodes."x.y"]\nconnector = "ssh"\nhost = "u@far"\ngpus = ["0", "1"]\n'
    assert after == MINE + added
    assert config_file.without_node(after, "x.y") == MINE
    assert config_file.with_node(MINE.rstrip("\n"), "x.y", FAR) == MINE.rstrip("\n") + added


def test_a_table_is_removed_and_comments_stay() -> None:
    assert config_file.without_node(MINE, "b.c") == MINE[: MINE.index('[nodes."b.c')]
    after = config_file.without_node(MINE, "a")
    assert after == '# mine\npolicy = "fifo"   # so\n\n# of b:\n[nodes."b.c"]\nslots = 1\t\n'


@pytest.mark.parametrize(
    "text",
    [
        "nodes = {a = {slots = 1}, b = {slots = 1}}  # ours\n",
        "[nodes]  # ours\na.slots = 1\nb.slots = 1\n",
        "[nodes.a]\nslots = 1\n[notify]  # ours\nlines = 3\n[nodes.b]\nslots = 1\n",
        "[nodes.a]\r\nslots = 1\r\n\r\n# ours\r\n[nodes.b]\r\nslots = 1\r\n",
    ],
)
def test_a_server_is_added_and_removed_however_the_file_writes_servers(text: str) -> None:
    after = config_file.without_node(config_file.with_node(text, "far", FAR), "a")
    assert list(parse(after).nodes) in (["b", "far"], ["far", "b"])
    assert after.count("# ours") == 1
    assert parse(config_file.without_node(after, "far")).nodes["b"].slots == 1


def test_the_default_server_stays_when_the_first_table_is_written() -> None:
    assert list(parse(config_file.with_node("", "far", FAR)).nodes) == ["local", "far"]
    with pytest.raises(Refused, match="there is already a server local"):
        config_file.with_node("", "local", FAR)


def test_a_change_that_tomlkit_gets_wrong_is_refused() -> None:
    with pytest.raises(Refused, match="safely"):
        config_file.with_node("nodes.a.slots = 1\nnodes.b.slots = 1\n", "far", FAR)


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        (MINE, "z", NotFound),
        ("", "local", NotFound),
        ("[nodes.a]\nslots = 1\n", "a", Refused),  # the only server
        ("[nodes.a]\nslots = \n[nodes.b]\n", "a", UsageError),
    ],
)
def test_a_removal_that_is_not_safe_is_refused(text: str, name: str, kind: type[GpqError]) -> None:
    with pytest.raises(kind):
        config_file.without_node(text, name)


def test_a_linked_file_keeps_its_mode_and_is_not_replaced_if_it_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "dotfiles.toml", tmp_path / "config.toml"
    real.write_text(MINE)
    real.chmod(0o640)
    link.symlink_to(real)
    monkeypatch.setenv("GPQ_CONFIG", str(link))
    config_file.write("policy = 'fifo'\r\n", MINE)
    assert link.is_symlink()
    assert real.read_bytes() == b"policy = 'fifo'\r\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    with pytest.raises(Refused, match="has changed in the meantime"):
        config_file.write(MINE, MINE)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.toml", "dotfiles.toml"]


def test_an_ssh_config_offers_its_concrete_hosts_including_those_in_included_files(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host gpu3\nInclude {}\n".format(tmp_path / "main"))  # a circular include ends
    (tmp_path / "main").write_text(
        f'# Host no\nHost gpu1 gpu2 *.lab\n  User me\nhost="gpu 4"\nHOST=gpu5\nHost !gpu6 gpu7\nMatch host gpu8\n'
        f"Host -oProxyCommand=x gpu?\nInclude {tmp_path}/mor*\nInclude /no/such\nHost gpu1\n"
    )
    assert adding.ssh_hosts(str(tmp_path / "main")) == ["gpu1", "gpu2", "gpu5", "gpu3"]
    assert adding.ssh_hosts(str(tmp_path / "none")) == []


def test_hosts_of_the_ssh_config_are_added_and_failed_ones_are_named(gpq: Gpq, home: Path, server: Sshd) -> None:
    before = (home / "config.toml").read_text()
    both = home / "ssh_config"
    both.write_text("Host dead\n  HostName 127.0.0.1\n  Port 1\n\n" + server.config.read_text())
    add = [sys.executable, "-m", "gpq", "nodes", "add", "--from-ssh-config", "-F", str(both), "--slots", "1"]
    asked = subprocess.run(
        [*add], env=gpq.environment, input="7\n", capture_output=True, text=True, timeout=60, check=False
    )
    listed = f"1  dead\n2  {server.name}\nWhich hosts? Numbers (1,3-4), or all: "
    assert (asked.returncode, asked.stderr.startswith(listed)) == (2, True), asked.stderr
    assert (home / "config.toml").read_text() == before
    some = subprocess.run(
        [*add, "--yes"], env=gpq.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert some.returncode == 1, "not every requested server was added"
    assert "note: dead was not added: dead refuses connections" in some.stderr
    assert some.stdout.splitlines()[-1] == f"added     {server.name}"
    assert f"[nodes.{server.name}]" in (home / "config.toml").read_text()


def test_numbers_select_from_a_list() -> None:
    hosts = ["a", "b", "c", "d"]
    assert choice("4, 1-2", hosts) == ["a", "b", "d"]
    assert choice("all", hosts) == hosts
    for wrong in ("5", "0", "x", "-1", "2-1"):
        with pytest.raises(UsageError):
            choice(wrong, hosts)
    with pytest.raises(Refused):
        choice("", hosts)


def test_missing_gpus_and_an_empty_server_are_refused() -> None:
    def look(gpus: list[str], slots: int | None, *ids: str) -> None:
        devices = [{"id": name, "index": index, "kind": "cuda"} for index, name in enumerate(ids)]
        cores = [] if ids or slots == 0 else [{"id": "slot-0", "index": 0, "kind": "cpu"}]
        wanted = Wanted("gpu1", "", gpus, slots, "", 0, "", "")
        check(wanted, Findings("gpu1", "3.11", 8, 1024, "", "", "", [*devices, *cores], ""))

    look(["0", "GPU-b"], None, "GPU-a", "GPU-b")
    look([], 0, "GPU-a")
    look([], None)
    with pytest.raises(Refused, match="gpu1 has no GPU 7"):
        look(["0", "7"], None, "GPU-a", "GPU-b")
    with pytest.raises(Refused, match="gpu1 has no GPU 0"):
        look(["0"], None)
    with pytest.raises(Refused, match="has no GPU, and --slots 0 makes no CPU slots"):
        look([], 0)


# -- the commands ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path / "sshd") as running:
        yield running


def test_a_server_is_added_to_the_running_daemon_and_removed(live: Gpq, home: Path, server: Sshd) -> None:
    before = (home / "config.toml").read_text()
    server.known_hosts.write_text("")
    add = ("nodes", "add", server.name, "-F", str(server.config), "--slots", "1", "--name", "far")
    said = live(*add)
    shown = subprocess.run(["ssh-keygen", "-lf", server.host_key], capture_output=True, text=True, check=True)
    fingerprint = shown.stdout.split()[1]
    assert (said.returncode, server.known_hosts.read_text()) == (5, "")
    assert f"{fingerprint} (new)" in said.stdout
    assert (home / "config.toml").read_text() == before
    wrong = live(*add[:5], "--gpus", "97", "--yes")
    assert (wrong.returncode, (home / "config.toml").read_text()) == (5, before)
    assert "has no GPU 97, so it was not added" in wrong.stderr
    server.known_hosts.write_text("")
    said = live(*add, "--yes", "--json")
    [added] = json.loads(said.stdout)["added"]
    assert (added["name"], added["host_key"], len(added["devices"])) == ("far", fingerprint, 1)
    assert json.loads(said.stdout)["live"]
    rows = json.loads(live("nodes", "list", "--json").stdout)["nodes"]
    assert [row["name"] for row in rows] == ["far", "local"]
    assert "far" in live("__complete", "bash", "nodes", "remove", "").stdout.split()
    assert live("nodes", "far").stdout.splitlines()[1].startswith("far")
    assert live("nodes", "remove", "far").stdout == "removed   far\n"
    assert (home / "config.toml").read_text() == before
    assert [row["name"] for row in json.loads(live("nodes", "--json").stdout)["nodes"]] == ["local"]


def test_a_login_that_hangs_is_tried_once_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPQ_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("GPQ_HOME", str(tmp_path / "gpq"))
    monkeypatch.setattr(first_contact, "PATIENCE", 30.0)
    monkeypatch.setattr(pace, "LOGIN_PATIENCE", 1.0)
    monkeypatch.setattr(first_contact, "REMARK_AFTER", 0.1)
    with Sshd(tmp_path / "sshd", directives=["ForceCommand sleep 60"]) as hung:
        wanted = Wanted(hung.name, "", [], 1, "", 0, "", str(hung.config))
        with pytest.raises(GpqError, match="heard nothing for 1 s"):
            add(wanted, output, yes=True, quiet=True)
    remark = f"note: the login on {hung.name} worked, but its login scripts or its Python are slow"
    assert capsys.readouterr().err.splitlines() == [remark]


def test_a_server_can_have_only_one_name(gpq: Gpq, home: Path, server: Sshd, tmp_path: Path) -> None:
    def add(to: Sshd, name: str) -> subprocess.CompletedProcess[str]:
        return gpq("nodes", "add", to.name, "-F", str(to.config), "--slots", "1", "--name", name, "--yes")

    first = (home / "config.toml").read_text()
    assert add(server, "far").returncode == 0
    before = (home / "config.toml").read_text()
    said = add(server, "twin")
    assert (said.returncode, (home / "config.toml").read_text()) == (5, before)
    assert f"gpq: {server.name} is already the server far" in said.stderr
    with Sshd(tmp_path / "other") as other:  # another home directory, such as a container on the same server has
        assert add(other, "twin").returncode == 0
    (home / "config.toml").write_text(first)
    assert add(server, "twin").returncode == 0  # leftovers of a removed server do not count as its name


def test_a_server_with_a_job_stays_in_the_file(live: Gpq, home: Path) -> None:
    (home / "config.toml").write_text((home / "config.toml").read_text() + "[nodes.other]\nslots = 1\n")
    before = (home / "config.toml").read_text()
    live("submit", "--", "sleep", "1000")
    live("wait", "1", "--timeout", "3s")
    said = live("nodes", "remove", "local")
    assert (said.returncode, (home / "config.toml").read_text()) == (5, before)
    assert "there are jobs on local: 1" in said.stderr


def test_old_jobs_go_with_their_files_and_others_stay(live: Gpq, home: Path) -> None:
    for _ in range(2):
        assert live("submit", "--wait", "--", "echo", "hello").returncode == 0
    live("submit", "--hold", "--after", "2:any", "--", "true")
    [ended] = [path / "ended" / "0" for path in home.glob("nodes/*") if path.is_dir()]
    wait_until(lambda: {path.name for path in ended.glob("*")} == {"1.1", "2.1"}, "the agent has put them away")
    said = live("nodes", "clean", "--older", "0.001s")
    assert said.stdout.startswith("would remove 1 job that ended before 20")
    assert live("nodes", "clean", "--older", "1d").stdout.startswith("would remove 0 jobs")
    assert live("show", "1").returncode == 0, "nothing is removed yet"
    assert live("nodes", "clean", "--older", "0.001s", "--yes").stdout.startswith("removed 1 job that ended before 20")
    assert live("show", "1").returncode == 4
    assert live("logs", "2").stdout == "hello\n", "job 3 comes after it"
    wait_until(lambda: [path.name for path in ended.iterdir()] == ["2.1"], "its files are gone")


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--", "-oProxyCommand=touch canary"], 2, "invalid host"),
        (["a b"], 2, "invalid host"),
        (["no-such-host.invalid"], 1, "cannot be resolved"),
        ([], 2, "either USER@HOST or --from-ssh-config"),
        (["x", "--from-ssh-config"], 2, "either USER@HOST or --from-ssh-config"),
        (["x", "--name", "-x"], 2, "invalid server name"),
        (["x", "--name", "local"], 5, "there is already a server local"),
        (["--from-ssh-config", "-F", "/dev/null"], 4, "names no new host"),
        (["--from-ssh-config", "-F", "/nonexistent"], 2, "-F /nonexistent: no such file"),
        (["x", "-F", "/nonexistent"], 2, "-F /nonexistent: no such file"),
    ],
)
def test_a_mistake_gets_one_line_and_writes_nothing(
    call: Call, home: Path, argv: list[str], code: int, said: str
) -> None:
    before = (home / "config.toml").read_text()
    answer = call("nodes", "add", *argv)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert said in answer.stderr.splitlines()[0]
    assert (home / "config.toml").read_text() == before
    assert not (home / "canary").exists()


def test_hints_use_the_same_ssh_command_as_gpq_and_work(gpq: Gpq, server: Sshd) -> None:
    add = ("nodes", "add", server.name, "-F", str(server.config))
    known = server.known_hosts.read_text()
    server.known_hosts.write_text("")
    assert f"or run `ssh -F {server.config} {server.name}`" in gpq(*add).stderr
    kind, _ = Path(f"{server.key}.pub").read_text().split()[:2]
    other = Path(f"{server.key}.pub").read_text().split()[1]  # a different key
    server.known_hosts.write_text(f"{known.split()[0]} {kind} {other}\n")
    changed = gpq(*add)
    assert (changed.returncode, "has changed, so gpq did not connect" in changed.stderr) == (5, True)
    [command] = re.findall("`(ssh-keygen .*)` forgets", changed.stderr)
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert server.known_hosts.read_text() == ""
    server.known_hosts.write_text(known)
    Path(server.key).rename(f"{server.key}.away")
    refused = gpq(*add)
    assert (refused.returncode, "accepts none of your keys" in refused.stderr) == (5, True)
    assert f"`ssh-copy-id -F {server.config} {server.name}`" in refused.stderr


def test_ssh_asks_about_a_new_key_on_the_terminal(gpq: Gpq, home: Path, server: Sshd) -> None:
    server.known_hosts.write_text("")
    argv = ("nodes", "add", "-F", str(server.config), "--slots", "1", server.name)
    for answer, code in (("no", 5), ("yes", 0)):
        with Terminal(gpq.environment, *argv) as terminal:
            terminal.shows("Are you sure")
            terminal.press(f"{answer}\r")
            assert terminal.end() == code, terminal.text
        assert (f"[nodes.{server.name}]" in (home / "config.toml").read_text()) is (code == 0)
        assert bool(server.known_hosts.read_text()) is (code == 0)
