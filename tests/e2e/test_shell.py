"""`gpq shell`, and `gpq run` with a terminal: it is that of the program, wherever that runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from gpq.rpc.job_answers import CancelResult
from gpq.rpc.requests import Cancel
from tests.chaos.sessions import Client
from tests.cli.terminals import Terminal
from tests.e2e.harness import Daemon
from tests.support.waiting import PATIENCE

KEYS = 1 << 20
# Reads keys in raw mode, and says how many there were of which sum
EDITOR = (
    "import os, sys, tty\n"
    "tty.setraw(0)\n"
    "os.write(1, b'ready\\r\\n')\n"
    "count = total = 0\n"
    f"while count < {KEYS}:\n"
    "    data = os.read(0, 65536)\n"
    "    count, total = count + len(data), total + sum(data)\n"
    "os.write(1, b'got %d of %d\\r\\n' % (count, total))\n"
)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(slots=2) as daemon:
        yield daemon


def terminal(daemon: Daemon, *argv: str) -> Terminal:
    return Terminal({**daemon.environment(), "TERM": "xterm"}, *argv)


def shell(daemon: Daemon) -> Terminal:
    return terminal(daemon, "shell", "--env", "SHELL=/bin/sh", "--env", "PS1=here> ")


def last_job(daemon: Daemon) -> int:
    return max(row.id for row in daemon.rows().jobs)


def break_ways(window: Terminal) -> None:
    """Kill -9 what connects it to the server."""
    for child in psutil.Process(window.pid).children():
        with suppress(psutil.Error):  # it has ended by itself
            if "--attach" in child.cmdline():
                child.kill()


def test_a_shell_has_this_terminal_and_gives_it_back(daemon: Daemon) -> None:
    with shell(daemon) as window:
        window.shows("here>")
        window.press("stty size; echo $TERM-$GPQ_JOB_ID\r")
        window.shows("24 80", f"xterm-{last_job(daemon)}")
        window.resize(100, 40)
        # the size and the keys travel apart, so the keys may come first
        window.press('until test "$(stty size)" = 40\\ 100; do sleep 0.01; done; stty size\r')
        window.shows("40 100")
        window.press("exit 5\r")
        assert window.end() == 5
        assert window.after == window.before


def test_ctrl_c_goes_to_the_program_in_front(daemon: Daemon) -> None:
    with shell(daemon) as window:
        window.shows("here>")
        window.press("trap 'echo caught' INT; sh -c 'echo up; sleep 600'\r")
        window.until(lambda one: "up" in one.rows, "the program runs")
        window.press("\x03")
        window.until(lambda one: "caught" in "".join(one.rows).replace("echo caught", ""), "the signal")
        window.press("exit\r")
        window.end()


@pytest.mark.parametrize("leave", ["key", "window", "signal"])
def test_it_runs_on_without_a_terminal_and_comes_back(daemon: Daemon, leave: str) -> None:
    with shell(daemon) as window:
        window.shows("here>")
        job = last_job(daemon)
        window.press("read line; echo got $line\r")
        window.shows("read line")
        if leave == "key":
            window.press("\x1d")
            assert window.end() == 0
            assert f"gpq attach {job}" in window.text
            assert window.after == window.before
        elif leave == "signal":
            os.kill(window.pid, signal.SIGTERM)
            assert window.end() == 0
    with terminal(daemon, "attach", str(job)) as window:
        window.shows("here>", "read line")
        window.press("words\r")
        window.shows("got words")
        window.press("exit 3\r")
        assert window.end() == 3


def test_keys_and_output_survive_breaks_of_the_way(daemon: Daemon) -> None:
    with terminal(daemon, "run", sys.executable, "-c", EDITOR) as window:
        window.shows("ready")
        breaks = 0
        keys = "0123456789abcdef" * 1024
        for _ in range(KEYS // len(keys)):
            if len(keys) * breaks < KEYS // 2:
                break_ways(window)
                breaks += 1
            window.press(keys)
            window.pump(0.0)
        window.shows(f"got {KEYS} of {sum(keys.encode()) * (KEYS // len(keys))}")
        assert window.end() == 0


def test_a_cancel_ends_a_shell_that_ignores_term(daemon: Daemon) -> None:
    with shell(daemon) as window:
        window.shows("here>")
        window.press("trap '' TERM; sleep 600\r")
        window.shows("sleep 600")
        job = last_job(daemon)
        daemon.call(Cancel([str(job)], wait=PATIENCE), CancelResult)
        assert window.end() == 129
        assert f"job {job} cancelled" in window.text


def test_a_pipe_gets_no_terminal(daemon: Daemon) -> None:
    out, err, code = Client(daemon, "--pty", "true").result()
    assert (out, code) == (b"", 2)
    assert b"--pty needs stdin, stdout and stderr to be a terminal" in err
    out, err, code = Client(daemon, command="shell").result()
    assert (out, code) == (b"", 2)
    assert b"gpq shell needs a terminal" in err
    with terminal(daemon, "run", "--no-pty", "sh", "-c", "test -t 1 || echo a pipe") as window:
        window.shows("a pipe")
        assert window.end() == 0


def test_a_job_with_a_terminal_wants_one_to_attach(daemon: Daemon) -> None:
    with shell(daemon) as window:
        window.shows("here>")
        job = last_job(daemon)
        out, err, code = Client(daemon, str(job), command="attach").result()
        assert (out, code) == (b"", 2)
        assert b"has a terminal" in err
        window.press("exit\r")
        window.end()
