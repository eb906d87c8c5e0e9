"""`python -m tests.dst`: many seeds in several processes, or one seed with its trace, reduced to the faults that
matter."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from multiprocessing import get_context

from tests.dst.plan import Plan, drawn
from tests.dst.planted import PLANTED
from tests.dst.simulation import Build, Outcome, simulate

CHUNK = 25
BUILDS = {build.name: build for build in (Build(), *PLANTED)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dst", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3000, help="how many (default 3000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--seed", type=int, help="run only this seed, shrink it and print its trace")
    parser.add_argument("--plant", choices=sorted(BUILDS), default="gpq", help="add this planted bug")
    parser.add_argument("--planted", action="store_true", help="find every planted bug within --seeds")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.seed is not None:
        return show(options.seed, BUILDS[options.plant])
    if options.planted:
        return hunt_all(options.seeds)
    return sweep(range(options.first, options.first + options.seeds), options.plant, options.jobs)


def show(seed: int, build: Build) -> int:
    plan = shrunk(seed, build)
    outcome = simulate(seed, build, plan=plan, tracing=True)
    print(*outcome.trace, sep="\n")  # noqa: T201
    print(f"faults that matter: {len(plan.faults)}", *plan.faults, sep="\n  ")  # noqa: T201
    print(outcome.violation or "no violation")  # noqa: T201
    return 1 if outcome.violation else 0


def shrunk(seed: int, build: Build) -> Plan:
    """The plan without the faults and user actions that are not needed to break the same promise."""
    plan = drawn(seed)
    promise = simulate(seed, build, plan=plan).violation[:2]
    if not promise:
        return plan
    shorter = True
    while shorter:
        shorter = False
        for smaller in plan.smaller():
            if simulate(seed, build, plan=smaller).violation[:2] == promise:
                plan, shorter = smaller, True
                break
    return plan


def replay(outcome: Outcome, name: str) -> str:
    plant = "" if name == "gpq" else f" --plant '{name}'"
    again = f"PYTHONPATH=.:agent python -m tests.dst --seed {outcome.seed}{plant}"
    return f"seed {outcome.seed}: {outcome.violation}\n  replay: {again}"


def _chunk(work: tuple[range, str]) -> list[Outcome]:
    logging.disable(logging.CRITICAL)
    seeds, name = work
    return [simulate(seed, BUILDS[name]) for seed in seeds]


def outcomes(seeds: range, name: str, jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order of the seeds."""
    work = [(seeds[at : at + CHUNK], name) for at in range(0, len(seeds), CHUNK)]
    if jobs <= 1:
        yield from chain.from_iterable(map(_chunk, work))
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from chain.from_iterable(pool.imap(_chunk, work))


def sweep(seeds: range, name: str, jobs: int) -> int:
    began = time.monotonic()
    found = list(outcomes(seeds, name, jobs))
    took = time.monotonic() - began
    broken = [outcome for outcome in found if outcome.violation]
    for outcome in broken:
        print(replay(outcome, name))  # noqa: T201
    print(summary(found, took))  # noqa: T201
    return 1 if broken else 0


def summary(found: Iterable[Outcome], took: float) -> str:
    found = list(found)
    events, simulated = sum(each.events for each in found), sum(each.seconds for each in found)
    broken = sum(bool(each.violation) for each in found)
    return (
        f"{len(found)} seeds, {events:,} events, {sum(each.jobs for each in found):,} jobs, {simulated / 3600:,.0f} h simulated"
        f" in {took:.0f} s: {len(found) / took:.1f} seeds/s, {events / took:,.0f} events/s; violations: {broken}"
    )


def hunt(build: Build, most: int) -> Outcome | None:
    """The first seed that finds the bug, or None."""
    return next((outcome for seed in range(most) if (outcome := simulate(seed, build)).violation), None)


def hunt_all(most: int) -> int:
    missed = 0
    for build in PLANTED:
        outcome = hunt(build, most)
        missed += outcome is None
        told = f"seed {outcome.seed}: {outcome.violation:.110}" if outcome else f"NOT FOUND in {most} seeds"
        print(f"{build.name}: {told}", flush=True)  # noqa: T201
    return 1 if missed else 0
