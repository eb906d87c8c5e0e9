"""The way to an arbiter by ssh: what the other machine may print."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpq import pace
from gpq.connectors.arbiter import ArbiterClient
from gpq.connectors.arbiter_link import READY, ArbiterLink
from gpq.errors import GpqError, UsageError
from gpq.rpc.team_messages import Hello, Welcome
from tests.support.sshd import Sshd, clients
from tests.support.waiting import wait_until

ANSWER = '{"v":1,"program":"x","ok":true,"result":{"team":"lab","epoch":7,"member":"bob","admin":false,"shares":{},"digest":""}}'
BYE = "exec cat >/dev/null"


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Sshd]:
    """A machine that runs this program instead of what it is asked to run."""
    server = Sshd(tmp_path / "sshd", name="head", directives=[f"ForceCommand sh {tmp_path}/program"])
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPATH=/usr/bin:/bin\nexec ssh -F {server.config} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(pace, "LOGIN_PATIENCE", 3.0)

    def runs(text: str) -> Sshd:
        (tmp_path / "program").write_text(text)
        return server

    return runs


def ask() -> Welcome:
    client = ArbiterClient("lab", 1001, "head")
    try:
        return client.call(Hello(team="lab"), Welcome, 10.0)
    finally:
        client.close()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("yes rubbish", "the login scripts print more than 64 KiB"),
        (f"head -c 30000 /dev/urandom; {BYE}", "heard nothing for 3 s"),
        (BYE, "heard nothing for 3 s"),
        ("exit 0", "the login shell ended before it ran anything"),
        ("echo gpq: a reason >&2; exit 5", "head: a reason"),
        (f"echo {READY}; {BYE}", "head does not say who decides"),
        (f"echo -1 eve; echo {READY}; {BYE}", "head does not say who decides"),
        (f"echo 1002 eve; echo {READY}; {BYE}", "user 1002 decides for team lab on head, not 1001"),
        (f"echo 1001 ana; echo {READY}; read x; echo rubbish; {BYE}", "the arbiter's answer is no JSON"),
        (f"echo 1001 ana; echo {READY}; read x; exit 1", "it hung up"),
    ],
)
def test_what_is_no_link_is_an_error_in_one_line_and_ssh_ends(
    head: Callable[[str], Sshd], program: str, message: str
) -> None:
    with head(program) as server:
        with pytest.raises(GpqError, match=message) as caught:
            ask()
        assert caught.value.message.isprintable()
        wait_until(lambda: not clients(server.config), "ssh has ended")


def test_a_banner_is_passed_over_and_the_flood_on_stderr_too(head: Callable[[str], Sshd]) -> None:
    flood = "head -c 300000 /dev/zero | tr '\\0' x >&2"
    program = f"{flood}; echo Welcome; echo 1 x; echo 1001 ana; echo {READY}; read x; {flood}; echo '{ANSWER}'; {BYE}"
    with head(program) as server:
        assert ask().member == "bob"
        link = ArbiterLink("head", "lab")
        assert (link.uid, link.user) == (1001, "ana")
        link.close()
        wait_until(lambda: not clients(server.config), "ssh has ended")


def test_a_link_is_only_to_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socketpair", None)  # nothing is begun
    for host in ("-oProxyCommand=x", "a b", "head;id", ""):
        with pytest.raises(UsageError):
            ArbiterLink(host, "lab")
