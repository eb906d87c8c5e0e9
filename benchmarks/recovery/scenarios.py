"""The three tests of every job manager: its controller is killed while jobs wait, its controller is
killed while a job runs, and it is cut off from a server for longer than its patience."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import dataclass

from benchmarks.recovery.findings import Burst, Partition, Running
from benchmarks.recovery.ledger import Run, overlap, read, script
from benchmarks.recovery.system import Networked, System, Told, Variant
from tests.support.waiting import wait_until

CODE = 7  # exit code of running jobs
# seconds after which a job counts as running for long, because Slurm writes its state every 5 s
SETTLED = 8.0
# most seconds between two kills, so that they fall anywhere between two writes of the state
LONGEST_PAUSE = 6.0
DOWN = 3.0  # seconds that a controller is away while a job runs
WATCHED = 12.0  # seconds that a job is watched after the controller is back
HEALED = 60.0  # ... after the link is back
ALIVE = 2.0  # seconds: a run that wrote a beat since then is alive
# seconds that a controller has to learn how all jobs ended, because Slurm may ask its servers
# minutes later
TOLD = 600.0
DRAINED = 600.0  # seconds that the rest of the queue may take to run
FRESH, LONG, AWAY, JUST = MOMENTS = (
    "started less than 1 s before",
    "running for 8 s",
    "running for 8 s, ends while the controller is away",
    "running for 8 s, ended less than 1 s before",
)


def uptime() -> float:
    """Seconds since boot, as jobs read them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass
class Bench:
    """A job manager under test, and the judge of its jobs."""

    system: System
    count: int = 0

    def submit(
        self, kind: str, *, waits: bool, code: int = 0, **options: object
    ) -> tuple[str, str]:
        """Token and id."""
        self.count += 1
        token = f"{kind}-{self.count}"
        text = script(token, self.system.home, self.system.node, waits=waits, code=code)
        return token, self.system.submit(token, text, **options)

    def runs(self, token: str) -> list[Run]:
        return self.ledger().get(token, [])

    def ledger(self) -> dict[str, list[Run]]:
        paths = [home / "ledger" for home in self.system.homes()]
        return read(path.read_text() for path in paths if path.exists())

    def release(self, token: str) -> None:
        for home in self.system.homes():
            (home / f"go-{token}").touch()

    def finish(self, token: str) -> None:
        self.release(token)
        wait_until(lambda: self.runs(token)[0].ended, f"{token} ends")

    def started(self, token: str) -> None:
        wait_until(lambda: self.runs(token), f"{token} runs", 180.0)

    def told(self, token: str) -> Told:
        return self.system.jobs().get(token, Told("not known", over=True))

    def last_word(self, token: str, until: float) -> Told:
        """What the job manager says about the job, once that is final or at the given time."""
        while not (said := self.told(token)).over and time.monotonic() < until:
            time.sleep(0.2)
        return said


def burst(system: System, rounds: int, size: int, seed: int) -> Burst:
    """`size` submissions to a full cluster, and kill -9 of the controller at once, again and again.
    At last all jobs run."""
    bench, dice = Bench(system), random.Random(seed)
    ids: dict[str, str] = {}
    holders: list[str] = []
    oldest = 0.0
    for number in range(rounds):
        _fill(bench, holders)
        time.sleep(dice.uniform(0.0, LONGEST_PAUSE))
        began = 0.0
        for _ in range(size):
            token, job = bench.submit("burst", waits=False)
            began = began or time.monotonic()
            ids[token] = job
        system.kill()
        oldest = max(oldest, time.monotonic() - began)
        system.restart()
        known = system.jobs()
        progress(
            f"{system.name}: kill {number + 1}, {sum(token in known for token in ids)} of"
            f" {len(ids)} known"
        )
    for token in holders:
        bench.release(token)
    wait_until(
        lambda: all(told.over for told in system.jobs().values()), "the queue is empty", DRAINED
    )
    found = bench.ledger()
    ended = {token for token in ids if any(run.ended for run in found.get(token, []))}
    reused = sum(count - 1 for count in Counter(ids.values()).values())
    doubled = sum(len(found.get(token, [])) > 1 for token in ids)
    return Burst(rounds, len(ids), len(ids) - len(ended), reused, doubled, round(oldest, 2))


def _fill(bench: Bench, holders: list[str]) -> None:
    """Jobs that run until they are released, on every slot. None of them is newer than the state on
    the disk."""
    known = bench.system.jobs()
    missing = bench.system.slots - sum(
        token in known and not known[token].over for token in holders
    )
    fresh = [bench.submit("holder", waits=True)[0] for _ in range(missing)]
    for token in fresh:
        bench.started(token)
    holders += fresh
    if fresh:
        time.sleep(SETTLED)


def running(system: System, moment: str, tries: int, seed: int) -> Running:
    """kill -9 of the controller while a job runs: does the job live to its end, and is its exit
    code known?"""
    bench, dice = Bench(system), random.Random(seed)
    tokens = []
    for _ in range(tries):
        if moment == FRESH:
            _somebody_else(bench, dice)
        token, _ = bench.submit(f"m{MOMENTS.index(moment)}", waits=True, code=CODE)
        tokens.append(token)
        bench.started(token)
        if moment != FRESH:
            time.sleep(SETTLED)
        if moment == JUST:
            bench.finish(token)
        system.kill()
        if moment == AWAY:
            bench.finish(token)
        time.sleep(DOWN)
        system.restart()
        if moment in (FRESH, LONG):
            time.sleep(WATCHED)
            if bench.runs(token)[0].last > uptime() - ALIVE:
                bench.finish(token)
        ended = "has ended" if bench.runs(token)[0].ended else "was killed"
        progress(f"{system.name}: {moment}: {ended}; {bench.told(token).state}")
    for token in tokens:
        bench.release(token)  # second runs as well
    until = time.monotonic() + TOLD
    said = [bench.last_word(token, until) for token in tokens]
    runs = [bench.runs(token) for token in tokens]
    codes = ["" if one.exit_code is None else f", exit code {one.exit_code}" for one in said]
    return Running(
        moment=moment,
        tries=tries,
        lived_on=sum(one[0].ended for one in runs),
        code_known=sum(one.exit_code == CODE for one in said),
        code_wrong=sum(one.exit_code not in (None, CODE) for one in said),
        doubled=sum(len(one) > 1 for one in runs),
        said=tuple(dict.fromkeys(one.state + code for one, code in zip(said, codes, strict=True))),
    )


def _somebody_else(bench: Bench, dice: random.Random) -> None:
    """By then, earlier ends are on the disk. Then another user submits a job, so that the next one
    comes anywhere between two writes of the state, as on a busy cluster."""
    time.sleep(SETTLED)
    bench.submit("other", waits=False)
    time.sleep(dice.uniform(0.0, LONGEST_PAUSE))


def partition(system: Networked, longest: float, together: float) -> list[Partition]:
    """A job of each variant. Their servers are cut off until a second run was seen for `together`
    seconds, but at most for `longest`. The runs there go on, as far as their server knows."""
    bench = Bench(system)
    jobs: list[tuple[Variant, str]] = []
    for place, variant in enumerate(system.variants):
        token, _ = bench.submit(f"cut{place}", waits=True, code=CODE, **variant.options)
        jobs.append((variant, token))
        bench.started(token)
    time.sleep(SETTLED)
    nodes = sorted({bench.runs(token)[0].node for _, token in jobs})
    before: dict[str, dict[str, None]] = {token: {} for _, token in jobs}
    after: dict[str, dict[str, None]] = {token: {} for _, token in jobs}
    cut = uptime()
    progress(f"{system.name}: {' and '.join(nodes)} cut off")
    try:
        for node in nodes:
            system.cut(node)
        while uptime() < cut + longest:
            _listen(system, before)
            moving = [bench.runs(token) for variant, token in jobs if variant.moves]
            if all(len(runs) > 1 and uptime() > runs[1].first + together for runs in moving):
                break
            time.sleep(1.0)
    finally:
        for node in nodes:
            system.heal(node)
    healed = uptime()
    progress(f"{system.name}: healed after {healed - cut:.0f} s")
    while uptime() < healed + HEALED:
        _listen(system, after)
        time.sleep(0.5)
    for _, token in jobs:
        bench.release(token)
    until = time.monotonic() + DRAINED
    found = []
    for variant, token in jobs:
        said = bench.last_word(token, until)
        after[token].setdefault(said.state)
        runs = bench.runs(token)
        found.append(
            Partition(
                variant=variant.label,
                cut_seconds=round(healed - cut, 1),
                runs=len(runs),
                overlap_seconds=round(overlap(runs), 1),
                first_lived=round(runs[0].last - cut, 1),
                before=tuple(before[token]),
                after=tuple(after[token]),
                exit_code=said.exit_code,
                code_right=said.exit_code == CODE,
            )
        )
    return found


def _listen(system: System, heard: dict[str, dict[str, None]]) -> None:
    known = system.jobs()
    for token, words in heard.items():
        words.setdefault(known[token].state if token in known else "not known")
