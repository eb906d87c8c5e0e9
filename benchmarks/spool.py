"""What a long past of a server costs its agent, before and after its jobs are removed.

    PYTHONPATH=.:agent python benchmarks/spool.py [--attempts 100000] [--jobs 100]

Each attempt of the past is a copy of a real one, forgotten and with its folder for checkpoints. The
daemon's own garbage collector removes them from a real agent. Bars: 1 MiB and 100 files of what is
left, and 1.1 times the agent's CPU time for a job with an empty spool. Two agents take turns, and
the ratio is that of medians. Exits with 1 above a bar.
"""

from __future__ import annotations

import argparse
import itertools
import os
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpq.core.model.events import JobsRemoved
from gpq.core.model.units import JobId
from gpq.daemon.files.garbage_collection import GarbageCollector
from gpq.errors import Refused
from gpq.store.sqlite import SqliteStore
from tests.agent.node.harness import NodeAgent
from tests.support import builders

MIB, FILES, RATIO = 1.0, 100, 1.1


def run(agent: NodeAgent, job: int) -> None:
    """From its start until the agent has forgotten its attempt."""
    key = agent.start(job, ["sh", "-c", "echo hello"])
    agent.ended(key)
    agent.ask("forget", attempt=key)
    agent.attempts()  # the look that moves it


def cpu_seconds(agent: NodeAgent) -> float:
    """CPU time of all threads of the agent, not of its children."""
    return time.clock_gettime((~agent.process.pid << 3) | 2)


def fill(spool: Path, attempts: int) -> None:
    """Copies of the attempt of job 1, of which only the number differs."""
    template = {path.name: path.read_bytes() for path in (spool / "ended/0/1.1").iterdir()}
    for job in range(2, attempts + 1):
        folder = spool / "ended" / str(job // 1000) / f"{job}.1"
        os.makedirs(folder, 0o700)
        os.mkdir(spool / "checkpoints" / str(job), 0o700)
        for name, content in template.items():
            (folder / name).write_bytes(content.replace(b'"job":1,', b'"job":%d,' % job))


def sizes(spool: Path) -> tuple[int, float, float]:
    """Files, MiB in them, and MiB on the disk with their folders."""
    entries = [path.lstat() for path in spool.rglob("*")]
    files = [entry for entry in entries if stat.S_ISREG(entry.st_mode)]
    content = sum(entry.st_size for entry in files) / 2**20
    return len(files), content, sum(entry.st_blocks for entry in entries) / 2048


def ratio(agent: NodeAgent, empty: NodeAgent, numbers: Iterator[int], jobs: int) -> float:
    """Of the CPU times for a job, which the two agents run in turns. Prints both."""
    seconds: dict[NodeAgent, list[float]] = {agent: [], empty: []}
    for _ in range(jobs):
        for member, samples in seconds.items():
            before = cpu_seconds(member)
            run(member, next(numbers))
            samples.append(cpu_seconds(member) - before)
    own, other = (1000 * statistics.median(samples) for samples in seconds.values())
    print(f"  CPU time of the agent for a job: {own:.2f} ms, with an empty spool {other:.2f} ms")
    return own / other


def clean(agent: NodeAgent, attempts: int, home: Path) -> None:
    """As the daemon does it after the rows of these jobs went."""
    answers: list[float] = []

    def ask(_: str, op: str, fields: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        began = time.perf_counter()
        reply = agent.try_ask(op, **fields)
        answers.append(time.perf_counter() - began)
        if not reply["ok"]:
            raise Refused(reply["error"])
        return reply

    node = replace(builders.node("a"), storage=agent.greeting["storage"])
    snapshot = replace(builders.snapshot(node), next_id=attempts + 1)
    jobs = tuple(map(JobId, range(1, attempts + 1)))
    looks, cpu, before, entries = list[float](), cpu_seconds(agent), 0, remains(agent)
    with closing(SqliteStore(str(home / "gpq.db"))) as store:
        store.commit([JobsRemoved(time.time(), jobs)], snapshot)
        collector = GarbageCollector(ask, lambda: snapshot, store, str(home))
        while entries != before:
            began = time.perf_counter()
            collector.look()
            looks.append(time.perf_counter() - began)
            before, entries = entries, remains(agent)
    spent = cpu_seconds(agent) - cpu
    print(f"  cleaned in {len(looks)} looks of {sum(looks):.0f} s, the longest {max(looks):.0f} s")
    print(
        f"  CPU time of the agent for that: {spent:.0f} s. Its longest answer: {max(answers):.1f} s"
    )


def remains(agent: NodeAgent) -> int:
    """Forgotten attempts and folders of checkpoints."""
    return sum(1 for pattern in ("ended/*/*", "checkpoints/*") for _ in agent.spool.glob(pattern))


def measure(home: Path, attempts: int, jobs: int) -> bool:
    """Prints the figures. False if one is beyond its bar."""
    holds, numbers = True, itertools.count(attempts + 1)

    def line(what: str, value: float, bar: float | None, unit: str) -> None:
        nonlocal holds
        holds &= bar is None or value <= bar
        print(f"{what}: {value:.2f}{unit}" + (f" (bar {bar:g})" if bar is not None else ""))

    def agent(name: str) -> closing[NodeAgent]:
        return closing(NodeAgent(home / name / "spool", "--slots", "1"))

    with agent("past") as past:
        run(past, 1)
    began = time.perf_counter()
    fill(past.spool, attempts)
    print(f"{attempts} attempts written in {time.perf_counter() - began:.0f} s")
    with agent("empty") as empty:
        run(empty, 1)
        with agent("past") as past:
            files, content, disk = sizes(past.spool)
            print(f"before: {files} files, {content:.1f} MiB in them, {disk:.0f} MiB on the disk")
            line("with the past", ratio(past, empty, numbers, jobs), None, " times")
            clean(past, next(numbers) - 1, home)
            files, content, disk = sizes(past.spool)
            line("files afterwards", files, FILES, "")
            line("MiB in them", content, MIB, "")
            line("MiB on the disk, with folders", disk, None, "")
            line("cleaned", ratio(past, empty, numbers, jobs), RATIO, " times")
        with agent("past") as past:
            line("cleaned, a new agent", ratio(past, empty, numbers, jobs), RATIO, " times")
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attempts", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=100, help="for each ratio, with each agent")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        return 0 if measure(Path(home), options.attempts, options.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
