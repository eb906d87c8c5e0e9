"""How long a person at `gpq shell` waits: for the prompt, for a key, and after a break.

    PYTHONPATH=.:agent python benchmarks/sessions.py [--times 20]

On a free slot, of this machine and behind sshd on loopback, where ssh has no connection yet. A key
is measured until its echo, next to a plain `ssh host` to the same sshd that takes turns with it.
A break kills the process that leads to the server, and ends with the echo of a key that was typed
at once. All figures are medians. Exits with 1 above a bar.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.cli.terminals import Terminal
from tests.e2e.harness import Daemon
from tests.support.sshd import Sshd

PROMPT = "here> "
SHELL = ("shell", "--env", "SHELL=/bin/sh", "--env", f"PS1={PROMPT}")
LOCAL, FAR, KEY, AGAIN = 1.0, 2.5, 0.005, 3.0  # bars, seconds
KEYS = "@^%&*+=|" * 10  # that are in no note of gpq


def until(window: Terminal, text: str, begin: int) -> float:
    """The moment when it has written `text` after its byte `begin`."""
    deadline = time.monotonic() + 60
    while text.encode() not in window.written[begin:]:
        if not window.pump(1.0) or time.monotonic() > deadline:
            raise SystemExit(f"never seen: {text!r} in {window.written!r}")
    return time.monotonic()


def until_echo(window: Terminal, key: str) -> float:
    """Seconds from a key to its echo."""
    begin, start = len(window.written), time.monotonic()
    window.press(key)
    return until(window, key, begin) - start


def leave(window: Terminal) -> None:
    window.press("\x15exit\r")  # ^U: without the keys
    window.end()


@contextmanager
def shell(daemon: Daemon) -> Iterator[tuple[Terminal, float]]:
    """The window of `gpq shell`, and the seconds to its prompt."""
    start = time.monotonic()
    with Terminal(daemon.environment(), *SHELL) as window:
        seconds = until(window, PROMPT, 0) - start
        yield window, seconds
        leave(window)


def prompts(daemon: Daemon, times: int) -> float:
    seconds = []
    for _ in range(times):
        with shell(daemon) as (_, taken):
            seconds.append(taken)
    return statistics.median(seconds)


def keys(daemon: Daemon, server: Sshd) -> tuple[float, float]:
    """Seconds to the echo of a key in `gpq shell`, and in a plain ssh."""
    ours, plain = [], []
    ssh = [*server.command, "-t", server.name, f"env 'PS1={PROMPT}' sh"]
    with (
        shell(daemon) as (window, _),
        Terminal(daemon.environment(), shell=["/usr/bin/env", *ssh]) as peer,
    ):
        until(peer, PROMPT, 0)
        for key in KEYS * 2:
            ours.append(until_echo(window, key))
            plain.append(until_echo(peer, key))
        leave(peer)
    return statistics.median(ours), statistics.median(plain)


def breaks(daemon: Daemon, times: int) -> float:
    """Seconds from a break to the echo of the next key."""
    seconds = []
    with shell(daemon) as (window, _):
        for key in KEYS[:times]:
            for way in psutil.Process(window.pid).children():
                way.kill()
            seconds.append(until_echo(window, key))
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--times", type=int, default=20, help="sessions and breaks of each kind, at most 80"
    )
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as folder, Sshd(Path(folder) / "sshd") as server:
        near, far = Daemon(), Daemon()
        far.config.write_text(f'policy = "fifo"\n[nodes.far]\n{server.toml()}')
        with near, far:
            ours, plain = keys(far, server)
            rows = [
                (
                    "a free slot of this machine: from the command to the prompt",
                    prompts(near, times),
                    LOCAL,
                ),
                ("the same over ssh", prompts(far, times), FAR),
                (
                    f"a key until its echo, more than the {1000 * plain:.1f} ms of plain ssh",
                    ours - plain,
                    KEY,
                ),
                (
                    "after a break of this machine's way: the echo of a key",
                    breaks(near, times),
                    AGAIN,
                ),
                ("the same over ssh", breaks(far, times), AGAIN),
            ]
    for what, seconds, bar in rows:
        print(f"{what}: {1000 * seconds:.1f} ms (asked: at most {1000 * bar:.0f})")
    sys.exit(any(seconds > bar for _, seconds, bar in rows))


if __name__ == "__main__":
    main()
