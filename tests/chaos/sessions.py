"""`gpq run` while its client, the way to the server, the agent and the daemon break: no byte of a stream is lost or
comes twice, and nothing is left behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.e2e.harness import ROOT, Daemon
from tests.support.sshd import Sshd
from tests.support.waiting import PATIENCE

# Echoes each line of its input to both streams.
ECHO = (
    sys.executable,
    "-c",
    "import sys\n"
    "for line in sys.stdin:\n"
    "    print(line, end='', flush=True)\n"
    "    print(line, end='', file=sys.stderr, flush=True)\n",
)


class Client:
    """`gpq run`, or another command, in a process. `stdin` None: `feed` gives it."""

    def __init__(self, daemon: Daemon, *words: str, stdin: bytes | None = b"", command: str = "run") -> None:
        environment = {**daemon.environment(), "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpq", command, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=daemon.work,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )
        self.out, self.err = bytearray(), bytearray()
        self._news = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.out)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.err)),
        ]
        if stdin is not None:
            self._threads.append(threading.Thread(target=self.feed, args=(stdin,)))
        for thread in self._threads:
            thread.start()

    def _read(self, stream: object, target: bytearray) -> None:
        with suppress(OSError, ValueError):
            while data := os.read(stream.fileno(), 1 << 16):  # type: ignore[attr-defined]
                with self._news:
                    target += data
                    self._news.notify_all()

    def feed(self, data: bytes) -> None:
        """Give it all of its input."""
        assert self.process.stdin is not None
        with suppress(OSError):
            while data:
                data = data[self.process.stdin.write(data) or 0 :]
        with suppress(OSError):
            self.process.stdin.close()

    def start_slowly(self, data: bytes) -> None:
        """Give it its input over a few seconds, in a thread."""

        def give() -> None:
            assert self.process.stdin is not None
            with suppress(OSError):
                for place in range(0, len(data), 2000):
                    self.process.stdin.write(data[place : place + 2000])
                    time.sleep(0.1)
                self.process.stdin.close()

        self._threads.append(threading.Thread(target=give))
        self._threads[-1].start()

    def until_printed(self, text: bytes) -> None:
        self._until(self.out, text)

    def until_complained(self, text: bytes) -> None:
        self._until(self.err, text)

    def _until(self, stream: bytearray, text: bytes) -> None:
        with self._news:
            assert self._news.wait_for(lambda: text in stream, PATIENCE), (bytes(stream), bytes(self.err))

    def close_output(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def break_way(self) -> int:
        """Kill -9 the process that connects it to the server. Returns how many there were."""
        with suppress(psutil.Error):
            children = psutil.Process(self.process.pid).children()
            ways = [one for one in children if "--attach" in one.cmdline() or one.name() == "ssh"]
            for way in ways:
                way.kill()
            return len(ways)
        return 0

    def result(self) -> tuple[bytes, bytes, int]:
        """stdout, stderr and exit code, once it has ended."""
        code = self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return bytes(self.out), bytes(self.err), code


# -- breaks ------------------------------------------------------------------------------------------------------------

CLIENTS = 4  # at once


class Breaker:
    """Breaks something of `clients` at random moments until it is stopped."""

    def __init__(self, daemon: Daemon, home: Path, clients: Sequence[Client], dice: random.Random) -> None:
        self._home = str(home)
        self._daemon, self._clients, self._dice = daemon, clients, dice
        self.broken: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._dice.uniform(0.1, 1.2)):
            what = self._dice.choices(("way", "relay", "agent", "pause", "daemon"), (8, 4, 2, 3, 1))[0]
            if what == "way":
                self.broken[what] += self._dice.choice(self._clients).break_way()
            elif what == "daemon":
                self._daemon.kill()
                self._daemon.start()
                self.broken[what] += 1
            else:
                self.broken[what] += self._hit(what)

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return self._home in process.environ().get("PYTHONPATH", "") or self._home in " ".join(process.cmdline())
        return False

    def _is_agent(self, process: psutil.Process) -> bool:
        """And no shim, which looks the same."""
        with suppress(psutil.Error):
            assert self._daemon.process is not None
            return process.ppid() == self._daemon.process.pid or process.parent().name() == "sshd"
        return False

    def _hit(self, what: str) -> int:
        """A process of the agent on the server."""
        processes = [
            process
            for process in psutil.process_iter(["cmdline"])
            if "gpq_agent.node" in (words := process.info["cmdline"] or [])
            and self._is_ours(process)
            and ("--attach" in words) == (what != "agent")
            and (what != "agent" or self._is_agent(process))
        ]
        if not processes:
            return 0
        process = self._dice.choice(processes)
        with suppress(psutil.Error):
            if what != "pause":
                process.kill()
                return 1
            process.suspend()
            self._stop.wait(0.3)
            process.resume()
            return 1
        return 0


def behind_ssh(times: int, seed: int) -> tuple[Counter[str], list[str]]:
    """`breaks` with a server behind an sshd."""
    with tempfile.TemporaryDirectory() as folder, Sshd(Path(folder) / "sshd") as server:
        daemon = Daemon()
        daemon.config.write_text(f'policy = "fifo"\n[nodes.far]\n{server.toml(slots=CLIENTS)}')
        with daemon:
            return breaks(daemon, server.home, times, seed)


def breaks(daemon: Daemon, home: Path, times: int, seed: int) -> tuple[Counter[str], list[str]]:
    """What was broken, and what was wrong then. `home`: a folder whose path the agents of the server name."""
    dice, broken, wrong = random.Random(seed), Counter[str](), list[str]()
    while broken.total() < times:
        size = dice.randrange(500, 4000)
        clients = [Client(daemon, *ECHO, stdin=None) for _ in range(CLIENTS)]
        texts = [b"".join(b"%d of %d\n" % (line, dice.randrange(10**9)) for line in range(size)) for _ in clients]
        for client, text in zip(clients, texts, strict=True):
            client.start_slowly(text)
            client.until_printed(b"\n")
        breaker = Breaker(daemon, home, clients, dice)
        results = [client.result() for client in clients]
        breaker.stop()
        broken += breaker.broken
        for (out, err, code), text in zip(results, texts, strict=True):
            own = b"".join(line for line in err.splitlines(True) if not line.startswith(b"note: "))
            if (out, own, code) != (text, text, 0):
                wrong.append(f"code {code}, {len(out)} and {len(own)} of {len(text)} bytes: {err[-300:]!r}")
    return broken, wrong
