"""The ssh connector against a real sshd: what login shells and servers do to it, and what it sends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpq_agent import wire

from gpq.config import parse
from gpq.connectors.bundle import bundle
from gpq.connectors.ssh import REMOTE, SshConnector, Target
from gpq.errors import GpqError, Refused, UsageError
from tests.support.figures import Figures
from tests.support.sshd import Sshd, clients
from tests.support.waiting import wait_until

SHELLS = ("sh", "bash", "csh", "fish", "zsh")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def to(server: Sshd, folder: Path, **more: str) -> SshConnector:
    target = Target(server.name, identity=more.pop("identity", ""), command=tuple(server.command))
    return SshConnector(target, bundle(), errors=folder / "errors", **more)


def forced(folder: Path, script: str) -> Sshd:
    """A server with `script` as its login shell. The script finds the requested command in $1."""
    login = folder / "login"
    folder.mkdir(exist_ok=True)
    login.write_text(f"#!/bin/sh\n{script}\n")
    login.chmod(0o755)
    return Sshd(folder / "sshd", directives=[f'ForceCommand exec {login} "$SSH_ORIGINAL_COMMAND"'])


def greet(connector: SshConnector, spool: Path) -> wire.Dict[str, object]:
    """The agent's first words. The agent is then released."""
    channel = connector.agent(["--spool", str(spool), "--slots", "1"])
    try:
        return wire.decode(channel.reader.readline())
    finally:
        channel.close()


def refusal(connector: SshConnector) -> str:
    with pytest.raises(GpqError) as caught:
        connector.agent(["--spool", "/nonexistent", "--slots", "1"])
    assert "\n" not in caught.value.message
    return caught.value.message


# -- what is shipped ---------------------------------------------------------------------------------------------------


def installed(server: Sshd) -> Path:
    return server.home / ".gpq" / "agent" / bundle().digest


def test_the_agent_is_sent_once_and_later_connections_find_it(server: Sshd, tmp_path: Path) -> None:
    first, second = to(server, tmp_path), to(server, tmp_path)
    greeting = greet(first, tmp_path / "spool")
    assert greeting["library"] == str(installed(server))
    assert greeting["address"] == "127.0.0.1"
    folder = installed(server).stat().st_ino
    greet(first, tmp_path / "spool")
    greet(second, tmp_path / "spool")
    assert installed(server).stat().st_ino == folder
    for private in (server.home / ".gpq", server.home / ".gpq" / "agent", installed(server)):
        assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["changed", "one more", "one less", "a link", "compiled"])
def test_an_agent_with_a_wrong_digest_is_never_run_and_is_sent_again(server: Sshd, tmp_path: Path, damage: str) -> None:
    connector = to(server, tmp_path)
    greet(connector, tmp_path / "spool")
    folder = installed(server).stat().st_ino
    canary = tmp_path / "canary"
    evil = f"open({str(canary)!r}, 'w')\n"
    package = installed(server) / "gpq_agent"
    if damage == "changed":
        with open(package / "wire.py", "a") as stream:
            stream.write(evil)
    elif damage == "one more":
        (package / "json.py").write_text(evil)
    elif damage == "one less":
        (package / "node" / "shim" / "shim.py").unlink()
    elif damage == "a link":
        (package / "wire.py").rename(tmp_path / "wire.py")
        (package / "wire.py").symlink_to(tmp_path / "wire.py")
    else:
        (package / "__pycache__").mkdir(exist_ok=True)
        (package / "__pycache__" / "wire.cpython-311.pyc").write_bytes(b"not compiled by anybody")
    greet(connector, tmp_path / "spool")
    assert not canary.exists()
    assert (installed(server).stat().st_ino == folder) == (damage == "compiled"), "sent again, or not"
    assert not list((package / "__pycache__").glob("wire.*")) or damage != "compiled"


def test_a_folder_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    with Sshd(tmp_path / "sshd") as server:
        (tmp_path / "elsewhere").mkdir()
        (server.home / ".gpq").symlink_to(tmp_path / "elsewhere")
        assert "is not a folder of your own" in refusal(to(server, tmp_path))
        assert not list((tmp_path / "elsewhere").iterdir())


# -- login shells ------------------------------------------------------------------------------------------------------


def test_the_remote_command_is_for_every_shell() -> None:
    """One line, one pair of single quotes, and nothing inside that is special to a shell."""
    assert REMOTE.count("'") == 2
    assert not set("\\!\n") & set(REMOTE)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_works(tmp_path: Path, shell: str) -> None:
    with forced(tmp_path, f'exec {shell} -c "$1"') as server:
        assert greet(to(server, tmp_path), tmp_path / "spool")["version"] == wire.VERSION


def test_what_login_scripts_print_is_skipped_with_or_without_an_end_of_line(tmp_path: Path) -> None:
    noise = "echo Welcome; head -c 60000 /dev/zero | tr '\\0' x; printf 'no end of line'; echo complaint >&2"
    with forced(tmp_path, f'{noise}; exec sh -c "$1"') as server:
        assert greet(to(server, tmp_path), tmp_path / "spool")["version"] == wire.VERSION


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('head -c 100000 /dev/zero; exec sh -c "$1"', "the login scripts print more than 64 KiB"),
        ("exit 0", "the login shell ended before it ran anything \\(exit code 0\\)"),
        (
            "echo Could not chdir to /nonexistent >&2; echo This account is currently not available.; exit 1",
            "the account on .* may not log in",
        ),
        ("echo This account is for printing only >&2; exit 1", "This account is for printing only"),
        ('PATH=/nonexistent; export PATH; exec /bin/sh -c "$1"', "no Python 3.8 or newer was found"),
    ],
)
def test_unusable_login_shells_are_named_in_one_sentence(tmp_path: Path, script: str, said: str) -> None:
    with forced(tmp_path, script) as server, pytest.raises(GpqError, match=said):
        to(server, tmp_path).agent(["--help"])


def test_a_configured_python_is_used_or_refused(server: Sshd, tmp_path: Path) -> None:
    old = tmp_path / "old python"
    old.write_text("#!/bin/sh\ntest $1 = -V && echo Python 3.6.8 >&2\nexit 1\n")
    old.chmod(0o755)
    assert refusal(to(server, tmp_path, python=str(old))).endswith(
        f"{old} is Python 3.6.8, but gpq needs Python 3.8 or newer"
    )
    assert "there is no /no/python" in refusal(to(server, tmp_path, python="/no/python"))
    mine = server.home / "python"
    mine.symlink_to("/usr/bin/python3")
    assert greet(to(server, tmp_path, python="~/python"), tmp_path / "spool")["version"] == wire.VERSION


def test_no_configured_value_reaches_a_shell(server: Sshd, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for evil in (f"$(touch {canary})", f"`touch {canary}`", f"; touch {canary} #", f"' touch {canary} '", "-c"):
        refusal(to(server, tmp_path, python=evil))
        channel = to(server, tmp_path).agent(["--spool", evil, "--no-such-option"])
        assert channel.reader.read() == b""
        channel.close()
    assert not canary.exists()


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=x", "a b", "a;b", "x@-y", "", "$(id)", "a\nb", "ssh://a", "a@b@c", "~x"]
)
def test_an_invalid_host_is_refused_before_anything_starts(host: str) -> None:
    with pytest.raises(UsageError):
        Target(host)
    with pytest.raises(UsageError):
        parse(f'[nodes.a]\nconnector = "ssh"\nhost = {host!r}\n'.replace("'", '"'))


def test_each_refusal_of_ssh_is_one_sentence(tmp_path: Path) -> None:
    with Sshd(tmp_path / "sshd") as server:
        other = tmp_path / "other"
        os.rename(server.key, other)
        with pytest.raises(Refused, match="server accepts none of your keys"):  # not asked for again every second
            to(server, tmp_path).agent(["--help"])
        os.rename(other, server.key)
        to(server, tmp_path).agent(["--help"]).close()
        known = server.known_hosts.read_text()
        server.known_hosts.write_text("")
        assert refusal(to(server, tmp_path)) == "the host key of server is not known, so gpq did not connect"
        server.known_hosts.write_text(known)
        server.stop()
        server.change_host_key()
        server.start()
        assert "the host key of server has changed" in refusal(to(server, tmp_path))
        assert server.known_hosts.read_text() == known
        server.stop()
        assert refusal(to(server, tmp_path)) == "server refuses connections"
    strange = SshConnector(Target("no-such-host.invalid"), bundle(), errors=tmp_path / "errors")
    assert refusal(strange) == "the name of no-such-host.invalid cannot be resolved"


def test_a_hanging_server_does_not_block_other_work(tmp_path: Path, figures: Figures) -> None:
    class Enough(Exception):
        pass

    def enough() -> None:
        if time.monotonic() > until:
            raise Enough

    with Sshd(tmp_path / "sshd") as server:
        server.signal(signal.SIGSTOP)
        until = time.monotonic() + 1.0
        with pytest.raises(Enough):
            to(server, tmp_path).agent(["--help"], enough)
        figures.at_most("from another request to the end of an attempt to connect", time.monotonic() - until, 3.0)
        wait_until(lambda: not clients(server.config), "ssh is gone")
        server.signal(signal.SIGCONT)
