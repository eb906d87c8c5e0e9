"""`gpq run` while its client, the way to the server, the agent and the daemon break: no byte of a stream is lost or
comes twice, and nothing is left behind."""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from gpq_agent import wire

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

CLIENTS = 4  # at once, and one that is killed itself
WEIGHTS = {"way": 8, "relay": 4, "agent": 2, "daemon": 1, "client": 1, "pause": 3}
BREAKS = tuple(kind for kind in WEIGHTS if kind != "pause")
ROUNDS = 5  # more than asked, at most, until each kind has hit

LINES, WIDTH = 1 << 14, 8
# `gpq attach` shows the last 64 KiB of both streams. So a job that is never further ahead of its clients loses nothing
LEAD = 24 << 10  # bytes of a stream
COUNTED = b"".join(b"%07d\n" % number for number in range(LINES))
COUNT = (
    sys.executable,
    "-c",
    "import os, sys, time\n"
    f"for first in range(0, {LINES}, 16):\n"
    f"    while first * {WIDTH} > os.stat(sys.argv[1]).st_size + {LEAD}:\n"
    "        time.sleep(0.01)\n"
    "    block = b''.join(b'%07d\\n' % number for number in range(first, first + 16))\n"
    "    for stream in (1, 2):\n"
    "        os.write(stream, block)\n"
    "    time.sleep(0.005)\n",
)


def own(err: bytes) -> bytes:
    """What the program printed on stderr, without the notes of gpq."""
    return re.sub(rb"note: [^\n]*\n", b"", err)


def covered(pieces: Iterable[bytes]) -> int:
    """Bytes of COUNTED that pieces of it show together, from the first on. A gap, or a byte that is not from there, ends
    the count."""
    end = 0
    for piece in pieces:
        begin = COUNTED.rfind(piece, 0, end + len(piece))
        if begin < 0:
            break
        end = max(end, begin + len(piece))
    return end


def reached(piece: bytes) -> int:
    """Where in COUNTED the last whole line of a piece ends."""
    line = piece.rpartition(b"\n")[0][1 - WIDTH :]
    return (int(line) + 1) * WIDTH if line.isdigit() else 0


class CountingJob:
    """A job that counts on both streams, and its clients: `gpq run`, then one `gpq attach` for each that was killed."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._seen = daemon.work / "seen"  # its size says how many bytes of each stream the clients have shown
        self._seen.write_bytes(b"")
        self._clients = [Client(daemon, *COUNT, str(self._seen))]
        self._clients[0].until_printed(b"\n")
        self._job = max(row.id for row in daemon.rows().jobs)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._say_what_is_seen)
        self._thread.start()

    def _say_what_is_seen(self) -> None:
        while not self._stop.wait(0.02):
            shown = [(bytes(one.out), own(bytes(one.err))) for one in list(self._clients)]
            os.truncate(self._seen, min(max(map(reached, pieces)) for pieces in zip(*shown, strict=True)))

    def break_client(self) -> int:
        """Kill -9 its client, and attach another. Returns how many there were."""
        self._clients[-1].send(signal.SIGKILL)
        if self._clients[-1].process.wait(PATIENCE) != -signal.SIGKILL:  # the job has ended
            return 0
        self._clients.append(Client(self._daemon, str(self._job), command="attach"))
        self._clients[-1].until_printed(b"\n")
        return 1

    def wrong(self) -> list[str]:
        """Once the job has ended: what its clients do not show."""
        results = [client.result() for client in self._clients]
        self._stop.set()
        self._thread.join()
        ends = covered(out for out, *_ in results), covered(own(err) for _, err, _ in results)
        *_, (_, err, code) = results
        if code == 0 and ends == (len(COUNTED), len(COUNTED)):
            return []
        return [f"code {code} of client {len(results)}, no gap up to {ends} of {len(COUNTED)} bytes: {err[-300:]!r}"]


class Breaker:
    """Breaks something of `clients` or of `counting` at random moments until it is stopped. `hits`: how often, by
    kind."""

    def __init__(
        self,
        daemon: Daemon,
        home: Path,
        clients: Sequence[Client],
        counting: CountingJob,
        hits: Counter[str],
        dice: random.Random,
    ) -> None:
        self._home = str(home)
        self._daemon, self._clients, self._counting, self._dice = daemon, clients, counting, dice
        self._hits = hits
        self.problem = ""  # of this breaker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._dice.uniform(0.1, 1.2)):
                kind = self._next()
                self._hits[kind] += self._break(kind)
        except Exception as error:
            self.problem = f"the breaker ended: {error!r:.600}"

    def _next(self) -> str:
        """Half of the time a kind that has not hit yet."""
        missing = [kind for kind in WEIGHTS if not self._hits[kind]]
        if missing and self._dice.random() < 0.5:
            return self._dice.choice(missing)
        return self._dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]

    def _break(self, kind: str) -> int:
        """How many it hit."""
        if kind == "way":
            return self._dice.choice(self._clients).break_way()
        if kind == "client":
            return self._counting.break_client()
        if kind != "daemon":
            return self._hit(kind)
        with open(self._daemon.home / "start.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # so that no client starts the next one
            self._daemon.kill()
            self._daemon.start()
        return 1

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


@dataclass(slots=True)
class Outcome:
    """`hits`: how often it broke something, by kind. `wrong`: streams, in words. `left`: processes that outlived their
    clients."""

    hits: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def breaks(self) -> int:
        return sum(self.hits[kind] for kind in BREAKS)

    @property
    def missing(self) -> list[str]:
        return [kind for kind in WEIGHTS if not self.hits[kind]]


def behind_ssh(times: int, seed: int) -> Outcome:
    """`breaks` with a server behind an sshd."""
    with tempfile.TemporaryDirectory() as folder, Sshd(Path(folder) / "sshd") as server:
        daemon = Daemon()
        daemon.config.write_text(f'policy = "fifo"\n[nodes.far]\n{server.toml(slots=CLIENTS + 1)}')
        with daemon:
            return breaks(daemon, server.home, times, seed)


def breaks(daemon: Daemon, home: Path, times: int, seed: int) -> Outcome:
    """Rounds with clients under breaks, until there were so many. `home`: a folder whose path the agents of the server
    name."""
    dice, outcome = random.Random(seed), Outcome()
    for number in range(times + ROUNDS):
        if outcome.breaks >= times and (number >= ROUNDS or not outcome.missing):
            break
        _round(daemon, home, dice, outcome)
        outcome.left += until_none_is_left(daemon, home)
    return outcome


def _round(daemon: Daemon, home: Path, dice: random.Random, outcome: Outcome) -> None:
    size = dice.randrange(500, 4000)
    counting = CountingJob(daemon)
    clients = [Client(daemon, *ECHO, stdin=None) for _ in range(CLIENTS)]
    texts = [b"".join(b"%d of %d\n" % (line, dice.randrange(10**9)) for line in range(size)) for _ in clients]
    for client, text in zip(clients, texts, strict=True):
        client.start_slowly(text)
        client.until_printed(b"\n")
    breaker = Breaker(daemon, home, clients, counting, outcome.hits, dice)
    results = [client.result() for client in clients]
    breaker.stop()
    outcome.wrong += [*filter(None, [breaker.problem]), *counting.wrong()]
    for (out, err, code), text in zip(results, texts, strict=True):
        if (out, own(err), code) != (text, text, 0):
            outcome.wrong.append(f"code {code}, {len(out)} and {len(own(err))} of {len(text)} bytes: {err[-300:]!r}")


def until_none_is_left(daemon: Daemon, home: Path) -> list[str]:
    """The processes of ended clients and jobs that are still there after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while (left := list(processes_of_sessions(daemon, home))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def processes_of_sessions(daemon: Daemon, home: Path) -> Iterator[str]:
    """The processes of jobs, the relays, and each ssh but that of the daemon, in words."""
    assert daemon.process is not None
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words, variables = " ".join(process.cmdline()), process.environ()
            texts = " ".join([words, *variables.values()])
            is_ours = str(daemon.home) in texts or str(home) in texts
            is_job = wire.ENV_MARK in variables or process.name() == "gpq-shim"
            is_way = process.name() == "ssh" and process.ppid() != daemon.process.pid
            if is_ours and (is_job or is_way or "--attach" in words):
                yield f"{process.pid} {process.name()}: {words[-200:]}"
