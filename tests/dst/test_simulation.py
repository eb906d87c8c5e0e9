"""The loop, the sessions and the recovery under faults, in simulated time, and the bugs that this must find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.model.jobs import Level
from tests.dst.network import Weather
from tests.dst.plan import Deed, Fault, Plan, drawn
from tests.dst.planted import PLANTED
from tests.dst.programs import Program
from tests.dst.simulation import Build, simulate
from tests.dst.sweep import hunt, replay, shrunk
from tests.support.figures import Figures
from tests.support.promises import BrokenPromise

WORST = 40  # seeds on the worst network
SEEDS = 300  # in CI. `make dst` runs ten times as many.
WITHIN = 500  # seeds in which a planted bug must show
PARTS = 4  # so that several processes share the work


@pytest.mark.parametrize("part", range(PARTS))
def test_faults_never_break_a_promise(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        outcome = simulate(seed)
        if outcome.violation:
            raise BrokenPromise(replay(outcome, "gpq"))


@pytest.mark.row("20")
def test_late_repeated_and_reordered_starts_run_each_attempt_once(figures: Figures) -> None:
    """Every seed's own jobs and faults, on the worst network."""
    worst = Weather(most=2.0, drop=0.02, twice=0.3, ordered=False)
    outcomes = [simulate(seed, plan=replace(drawn(seed), weather=worst)) for seed in range(1000, 1000 + WORST)]
    broken = [outcome for outcome in outcomes if outcome.violation]
    jobs = sum(outcome.jobs for outcome in outcomes)
    figures.exactly(f"violations in {WORST} seeds, {jobs} jobs, on the worst network", broken, [])


@pytest.mark.parametrize("build", PLANTED, ids=lambda build: build.name)
def test_a_planted_bug_is_found(build: Build) -> None:
    assert hunt(build, WITHIN) is not None, f"{build.name}: not found within {WITHIN} seeds"


def test_a_lost_attempt_is_not_started_while_its_end_waits_for_the_disk() -> None:
    """Seed 97, as the simulation found it. A start with a lease is under way to a server when the server is cut off,
    and the head's disk is full. The lease expires, but its end cannot be written. The server came back and was told to
    start the job anyway. Then the disk had room for that end, and the next attempt ran at the same time."""
    job = Program("job0", Level.BLACK_BOX, gpus=2, most=2, work=400.0, lease=20.0)
    faults = (
        Fault(0.8, "cut", node=0, seconds=60.0),
        Fault(0.8, "cut", node=1, seconds=5.0),
        Fault(10.0, "full disk", seconds=90.0),
    )
    plan = quiet(97, job, *faults)
    assert simulate(97, plan=plan).violation == ""
    before = next(build for build in PLANTED if build.name.startswith("a lost attempt"))
    assert simulate(97, before, plan=plan).violation[:2] == "I8"


def test_a_refused_attempt_is_not_started_while_the_refusal_waits_for_the_disk() -> None:
    """Seed 2224, as the simulation found it. A server refuses a start until the daemon loses patience, while the head's
    disk is full. The daemon repeated the start until it worked. Then the refusal was written, and the next attempt ran
    at the same time."""
    job = Program("job0", Level.BLACK_BOX, gpus=2, most=2, work=400.0)
    faults = (Fault(0.1, "port busy", node=0, seconds=60.0), Fault(0.1, "port busy", node=1, seconds=60.0))
    plan = quiet(2224, job, *faults, Fault(5.0, "full disk", seconds=100.0))
    assert simulate(2224, plan=plan).violation == ""
    before = next(build for build in PLANTED if build.name.startswith("a refused attempt"))
    assert simulate(2224, before, plan=plan).violation[:2] == "I8"


def quiet(seed: int, job: Program, *faults: Fault) -> Plan:
    """Two servers, a good network, one job, and these faults."""
    return Plan(
        seed=seed,
        nodes=2,
        policy="backfill",
        interval=10.0,
        weather=Weather(most=0.02),
        programs=(job,),
        deeds=(Deed(0.9, "submit", 0),),
        faults=faults,
        wrong_clocks=(0.0, 0.0),
        release_after=(0.0, 0.0),
        rates=(1.0, 1.0),
    )


def test_a_seed_gives_the_same_run_every_time() -> None:
    first, second = simulate(7, tracing=True), simulate(7, tracing=True)
    assert first == second
    assert len(first.trace) > 20


def test_a_failing_seed_is_shrunk_to_the_necessary_faults() -> None:
    build = next(build for build in PLANTED if build.name == "no boot id")
    outcome = hunt(build, WITHIN)
    assert outcome is not None
    plan = shrunk(outcome.seed, build)
    again = simulate(outcome.seed, build, plan=plan)
    assert again.violation[:2] == outcome.violation[:2]
    assert any(fault.kind == "reboot" for fault in plan.faults)
    assert len(plan.faults) <= 3
