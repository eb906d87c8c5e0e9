"""The first process of an attempt with several replicas on this server: starts them, waits for
them, and ends all others as soon as one fails.

    python -I -S replicas.py NOTE RANK,RANK... COMMAND...

It stands for torchrun and needs no torch, so a start saves the seconds that another import takes.
The script's own interpreter runs it, and it imports nothing of gpq. A replica has its own session,
because the scheduler shares cores between sessions. NOTE is the file that says which replicas
failed, see wire.FAILURES.
"""

import functools
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

LONGEST_LINE = 1 << 16  # bytes. A longer line is passed on in pieces
QUIET = 1.0  # seconds without output after which unfinished lines are passed on
# Seconds between TERM and KILL of the other replicas. One that waits in a collective for the one
# that failed handles no signal, and would hold its GPU for as long as torch waits.
TERM_GRACE = 8.0
# gpq sends these to every process of an attempt. This one waits for the others to obey.
LEFT_TO_REPLICAS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WAKE = (signal.SIGCHLD, *LEFT_TO_REPLICAS)


class Replicas:
    """The replicas with these ranks, as child processes. `failures`: (rank, exit code, negative for
    a signal) in the order in which they ended. Of those that one look finds, a killed one comes
    first, because its end may have failed the others. `start`: makes a process of (rank, rank on
    this server) and returns its pid."""

    def __init__(self, ranks: Sequence[int], start: Callable[[int, int], int]) -> None:
        self.failures: List[Tuple[int, int]] = []
        self._living: Dict[int, int] = {}  # rank by pid
        self._deadline = float("inf")
        for local_rank, rank in enumerate(ranks):
            self._living[start(rank, local_rank)] = rank

    def wait(self) -> None:
        """Returns when all have ended."""
        while self._living:
            patience = max(self._deadline - time.monotonic(), 0.0)
            signal.sigtimedwait(WAKE, min(patience, 3600.0))
            failures = []
            for pid in list(self._living):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    rank = self._living.pop(pid)
                    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                    if code:
                        failures.append((rank, code))
            failures.sort(key=lambda failure: failure[1] >= 0)
            if failures and not self.failures:
                self._deadline = time.monotonic() + TERM_GRACE
                self._signal(signal.SIGTERM)
            self.failures += failures
            if time.monotonic() >= self._deadline:
                self._deadline = float("inf")
                self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in self._living:
            os.kill(pid, number)


class Output:
    """Passes on what the replicas print, whole lines at a time. They share one log, and a program
    may write a line in several pieces."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._lines: Dict[int, bytes] = {}  # unfinished ones, by the pipe of a replica
        self._interrupted: Optional[int] = None  # whose unfinished line was the last to be written
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def of(self, start: Callable[[int, int], int]) -> Callable[[int, int], int]:
        """`start`, with replicas that print to a pipe."""

        def piped(rank: int, local_rank: int) -> int:
            originals = (os.dup(1), os.dup(2))
            source, end = os.pipe()
            self._lines[source] = b""
            self._poll.register(source, select.POLLIN)
            os.dup2(end, 1)
            os.dup2(end, 2)
            os.close(end)
            pid = start(rank, local_rank)
            for number, original in enumerate(originals, 1):
                os.dup2(original, number)
                os.close(original)
            return pid

        return piped

    def begin(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Returns when what the replicas printed is passed on. Their own children may print on."""
        self._thread.join(2 * QUIET)

    def _pass_on(self) -> None:
        while self._lines:
            ready = self._poll.poll(QUIET * 1000)
            for source, _ in ready:
                data = os.read(source, LONGEST_LINE)
                line = self._lines[source] + data
                end = max(line.rfind(b"\n"), line.rfind(b"\r")) + 1
                if not data or len(line) - end > LONGEST_LINE:
                    end = len(line)
                self._write(source, line[:end], line[end:])
                if not data:
                    self._poll.unregister(source)
                    os.close(source)
                    del self._lines[source]
            for source in self._lines if not ready else ():
                self._write(source, self._lines[source], b"")

    def _write(self, source: int, data: bytes, rest: bytes) -> None:
        """Write `data` and keep the rest."""
        self._lines[source] = rest
        if data and self._interrupted not in (None, source):
            data = b"\n" + data
        if data:
            self._interrupted = None if data.endswith((b"\n", b"\r")) else source
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:  # a full disk loses lines, but stops no training
            pass


def execute(command: Sequence[str], rank: int, local_rank: int) -> int:
    """Start the command as one replica. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        become(rank, local_rank)
        # opened anew, so that each replica reads all of it
        os.dup2(os.open("/dev/stdin", os.O_RDONLY | os.O_CLOEXEC), 0)
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.stderr.write("gpq: cannot run {}: {}\n".format(command[0], error.strerror))
    os._exit(127)


def become(rank: int, local_rank: int) -> None:
    """Make a new process that of a replica."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    names = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": local_rank}
    os.environ.update({name: str(number) for name, number in names.items()})


def note(path: str, failures: Sequence[Tuple[int, int]]) -> None:
    """Write down who failed. The end of the attempt does not depend on it."""
    try:
        with open(path + ".new", "w") as stream:
            json.dump({"failures": failures}, stream)
        os.replace(path + ".new", path)
    except OSError as error:
        sys.stderr.write("gpq: cannot write {}: {}\n".format(path, error.strerror))


def main(path: str, ranks: str, *command: str) -> int:
    """The exit code of the replica that failed first, as a shell gives it. 0 if none failed."""
    numbers = [int(rank) for rank in ranks.split(",")]
    return supervise(path, numbers, functools.partial(execute, command))


def supervise(path: str, ranks: Sequence[int], start: Callable[[int, int], int]) -> int:
    """As `main`, with replicas that `start` makes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKE)
    output = Output()
    replicas = Replicas(ranks, output.of(start))
    output.begin()
    replicas.wait()
    output.finish()
    if not replicas.failures:
        return 0
    note(path, replicas.failures)
    _, code = replicas.failures[0]
    return code if code > 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
