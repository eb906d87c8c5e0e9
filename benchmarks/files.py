"""Sends a checkpoint between two servers behind ssh on this machine, as the daemon does.

    python benchmarks/files.py [--files 10000] [--megabytes 400] [--times 3] [--cuts 20]

The scale is `ssh A tar c | ssh B tar x` over the same sshds in the same run, in turns, with the
same `sync` of the disk at the end. Figures are medians. Exits with 1 above a bar. ext4 makes files
slowly for some minutes after many were deleted, so wait six minutes between two runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]

from gpq.connectors.bundle import bundle  # noqa: E402
from gpq.connectors.local import Channel  # noqa: E402
from gpq.connectors.ssh import SshConnector, Target  # noqa: E402
from gpq.daemon.files.transfer import Gauge, Transfer  # noqa: E402
from gpq.daemon.nodes.link import Link, LinkLost  # noqa: E402
from gpq.errors import GpqError, NodeSilent  # noqa: E402
from tests.contract.trees import JOB, seen  # noqa: E402
from tests.support.sshd import Sshd  # noqa: E402

LARGE_RATIO, SMALL_RATIO = 1.3, 1.5  # of the time that tar takes
PING_SECONDS = 0.05
DAEMON_MIB = 20.0
LARGE = 100_000_000  # bytes of a file


class Server:
    """A server behind its own sshd, with a checkpoint folder."""

    def __init__(self, home: Path, name: str) -> None:
        self.sshd = Sshd(home / name, name=name).start()
        self.folder = home / name / "checkpoints"
        self.job = self.folder / str(JOB)
        self.folder.mkdir(mode=0o700)
        target = Target(name, command=tuple(self.sshd.command))
        self._ssh = SshConnector(target, bundle(), errors=home / f"{name}.log")
        spool = str(home / name / "spool")
        self._arguments = ["--spool", spool, "--checkpoints", str(self.folder), "--slots", "1"]

    def open(self, *words: str) -> Channel:
        """As NodeClient does."""
        try:
            return self._ssh.agent([*self._arguments, *words])
        except GpqError as error:
            raise NodeSilent(error.message) from None

    def shell(self, command: str) -> str:
        """The command line that runs it there."""
        return f"{shlex.join(self.sshd.command)} {self.sshd.name} {shlex.quote(command)}"


def transfer(source: Server, target: Server) -> Gauge:
    gauge = Gauge()
    Transfer(
        lambda _: source.open("--send", str(JOB)),
        lambda _: target.open("--receive", str(JOB)),
        contextlib.nullcontext,
        lambda: False,
        lambda: True,
        gauge,
    ).run()
    return gauge


def tar(source: Server, target: Server) -> None:
    there = shlex.quote(str(target.job))
    reader = source.shell(f"tar c -C {shlex.quote(str(source.job))} .")
    writer = target.shell(f"mkdir {there} && tar x -C {there} && sync -f {there}")
    subprocess.run(["bash", "-c", f"set -o pipefail; {reader} | {writer}"], check=True)


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


@contextlib.contextmanager
def pings(server: Server) -> Iterator[list[float]]:
    """Seconds that an agent took to answer, ten times a second."""
    link = Link(server.open(), "pings")
    serving = threading.Thread(target=_serve, args=(link,), daemon=True)
    serving.start()
    answers: list[float] = []
    ending = threading.Event()

    def ask() -> None:
        answer = threading.Event()
        while not ending.wait(0.1):
            began = time.monotonic()
            link.send("ping", {}, lambda _: answer.set())
            answer.wait()
            answer.clear()
            answers.append(time.monotonic() - began)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    time.sleep(1.0)
    yield answers
    ending.set()
    asking.join()
    link.end("the benchmark is over")
    serving.join()


def _serve(link: Link) -> None:
    try:
        link.serve(60.0)
    except LinkLost as error:
        link.close(str(error))


def make_large(folder: Path, size: int) -> None:
    for number in range(-(-size // LARGE)):
        (folder / f"weights-{number}.pt").write_bytes(os.urandom(min(LARGE, size - number * LARGE)))


def make_small(folder: Path, count: int) -> None:
    """So many files of 1 KB, a thousand per folder."""
    for number in range(count):
        place = folder / f"shard-{number // 1000}"
        place.mkdir(exist_ok=True)
        (place / f"{number}.json").write_bytes(os.urandom(1000))


class Bench:
    """`times` is how often each is measured. `is_good`: nothing has missed its bar so far."""

    def __init__(self, source: Server, target: Server, trash: Path, times: int) -> None:
        self.source = source
        self.target = target
        self.is_good = True
        self._trash = trash
        self._times = times

    def compare(self, what: str, bar: float) -> None:
        """Transfers to an empty folder, in turns with tar."""
        transfers, tars, waits = [], [], []
        memory = psutil.Process().memory_info().rss
        with pings(self.target) as answers:
            for _ in range(self._times):
                before = len(answers)
                transfers.append(timed(lambda: transfer(self.source, self.target)))
                waits += answers[before:]
                assert seen(self.target.job) == seen(self.source.job)
                self.clear()
                tars.append(timed(lambda: tar(self.source, self.target)))
                self.clear()
        used = (psutil.Process().memory_info().rss - memory) / (1 << 20)
        ratio = statistics.median(transfers) / statistics.median(tars)
        seconds = ", ".join(f"{each:.2f}" for each in transfers)
        self.tell(f"{what}: {ratio:.2f} x ssh and tar ({seconds} s)", ratio <= bar)
        median = statistics.median(waits)
        self.tell(
            f"  a ping of the receiving agent meanwhile: median {median * 1e3:.0f} ms, worst"
            f" {max(waits) * 1e3:.0f} ms of {len(waits)}",
            median <= PING_SECONDS,
        )
        self.tell(f"  the daemon's memory: {used:+.1f} MiB", used <= DAEMON_MIB)

    def cut(self, cuts: int) -> None:
        """Kill one of the two ssh children at random instants until it has come."""
        usual = timed(lambda: transfer(self.source, self.target))
        self.clear()
        size = sum(path.stat().st_size for path in self.source.job.iterdir())
        draw, sent = random.Random(1), []
        for _ in range(cuts):
            killer = threading.Timer(draw.uniform(0.2, usual), self._kill, [draw])
            killer.start()
            gauge = transfer(self.source, self.target)
            killer.join()
            assert seen(self.target.job) == seen(self.source.job)
            sent.append(gauge.moved / size)
            self.clear()
        self.tell(
            f"{cuts} cuts: all whole and right, {statistics.median(sent):.2f} times the bytes"
            f" (at most {max(sent):.2f})",
            True,
        )

    def _kill(self, draw: random.Random) -> None:
        children = [child for child in psutil.Process().children() if child.name() == "ssh"]
        if children:
            draw.choice(children).kill()

    def clear(self) -> None:
        """Away, but not deleted: ext4 is slow to make files right after that."""
        self.target.job.rename(self._trash / str(time.monotonic_ns()))

    def tell(self, text: str, is_good: bool) -> None:
        self.is_good = self.is_good and is_good
        print(f"{text}{'' if is_good else '  MISSED'}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000, help="number of small files")
    parser.add_argument("--megabytes", type=int, default=400, help="size of the large files")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--cuts", type=int, default=20)
    options = parser.parse_args()
    if min(options.files, options.megabytes, options.times) < 1:
        parser.error("--files, --megabytes and --times must be at least 1")
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpq-files-")))
        source, target = (Server(home, name) for name in ("here", "there"))
        for server in (source, target):
            stack.callback(server.sshd.stop)
        trash = home / "trash"
        trash.mkdir()
        bench = Bench(source, target, trash, options.times)
        source.job.mkdir(mode=0o700)
        make_large(source.job, options.megabytes * 1_000_000)
        bench.compare(f"{options.megabytes} MB in large files", LARGE_RATIO)
        if options.cuts:
            bench.cut(options.cuts)
        source.job.rename(trash / "large")
        source.job.mkdir(mode=0o700)
        make_small(source.job, options.files)
        bench.compare(f"{options.files} files of 1 KB", SMALL_RATIO)
    return 0 if bench.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
