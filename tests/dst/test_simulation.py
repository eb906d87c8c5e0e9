"""The loop, the conversations and the healing under faults, in simulated time; and the bugs that this must find."""

from __future__ import annotations

import pytest

from tests.dst.__main__ import hunt, replay, shrunk
from tests.dst.planted import PLANTED
from tests.dst.simulation import Build, simulate

SEEDS = 300  # in CI; `make dst` runs ten times as many
WITHIN = 500  # seeds in which a planted bug must show
PARTS = 4  # so that several processes share the work


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_under_any_faults(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        outcome = simulate(seed)
        assert not outcome.violation, replay(outcome, "gpq")


@pytest.mark.parametrize("build", PLANTED, ids=lambda build: build.name)
def test_a_planted_bug_is_found(build: Build) -> None:
    assert hunt(build, WITHIN) is not None, f"{build.name}: {WITHIN} seeds see nothing of it"


def test_a_seed_is_the_same_run_every_time() -> None:
    first, second = simulate(7, tracing=True), simulate(7, tracing=True)
    assert first == second
    assert len(first.trace) > 20


def test_a_failing_seed_is_shrunk_to_what_it_takes() -> None:
    build = next(build for build in PLANTED if build.name == "requeue on silence")
    outcome = hunt(build, WITHIN)
    assert outcome is not None
    plan = shrunk(outcome.seed, build)
    again = simulate(outcome.seed, build, plan=plan)
    assert again.violation[:2] == outcome.violation[:2]
    assert 1 <= len(plan.faults) <= 3
