"""Shares of time: four objectives compared with results computed by hand, and the account of rounds."""

from __future__ import annotations

import numpy as np
import pytest

from gpq.core.model.placements import Shape
from gpq.core.model.units import JobId
from gpq.lab.policies.gavel import Demand, Ledger, Programme, Shares
from tests.support.builders import job, node, on, running, snapshot

# Two jobs with one GPU each, one GPU of each type. While both types are always in use, everything follows from the
# share x of job 1 on "a": R_1 = R_1b + (R_1a - R_1b) x, R_2 = R_2a + (R_2b - R_2a) x.


def demand(
    number: int, a: float, b: float, *, gpus: int = 1, steps: float = 40.0, total: float = 0.0, age: float = 0.0
) -> Demand:
    speeds = {name: speed for name, speed in (("a", a), ("b", b)) if speed}
    shapes = {name: Shape(gpus, 1, name) for name in speeds}
    return Demand(JobId(number), shapes, speeds, steps, total or steps, age)


def programme(*demands: Demand, a: int = 1, b: int = 1) -> Programme:
    return Programme(demands, {"a": a, "b": b})


def of(shares: Shares) -> dict[tuple[int, str], float]:
    return {(int(name), kind): value for name, kinds in shares.items() for kind, value in kinds.items()}


def test_most_throughput_gives_each_type_to_the_job_it_speeds_up_most() -> None:
    shares = of(programme(demand(1, 4.0, 1.0), demand(2, 3.0, 2.0)).most_throughput())
    assert shares == {(1, "a"): 1.0, (1, "b"): 0.0, (2, "a"): 0.0, (2, "b"): 1.0}


def test_a_gang_counts_with_all_its_gpus() -> None:
    shares = of(programme(demand(1, 4.0, 0.0, gpus=2), demand(2, 3.0, 0.0), a=2).most_throughput())
    assert shares == {(1, "a"): pytest.approx(0.5), (2, "a"): pytest.approx(1.0)}  # 2 + 3 is more than 4


def test_the_least_makespan_makes_both_end_together() -> None:
    # (1 + 3x) / 40 = (3 - x) / 30 at x = 9/13, so both take 13 seconds.
    here = programme(demand(1, 4.0, 1.0, steps=40.0), demand(2, 3.0, 2.0, steps=30.0))
    shares = of(here.least_makespan())
    assert shares[1, "a"] == pytest.approx(9 / 13, abs=1e-4)
    assert shares[2, "b"] == pytest.approx(9 / 13, abs=1e-4)
    level, found = here.max_min(np.array([1 / 40, 1 / 30]))
    assert 1 / level == pytest.approx(13.0)
    assert here.throughput(found) == pytest.approx([40 / 13, 30 / 13])


def test_max_min_serves_the_least_served_and_gives_away_the_rest() -> None:
    # Equal shares would give 2.5 and 2.5: (1 + 3x) = (3 - x) at x = 1/2.
    shares = of(programme(demand(1, 4.0, 1.0), demand(2, 3.0, 2.0)).max_min_fairness())
    assert shares[1, "a"] == pytest.approx(0.5, abs=1e-4)
    # Job 2 has 2 in any case, so the level is 2 / 2. The rest goes to job 1, which does best on a alone.
    shares = of(programme(demand(1, 4.0, 1.0), demand(2, 2.0, 2.0)).max_min_fairness())
    assert shares == {(1, "a"): pytest.approx(1.0), (1, "b"): 0.0, (2, "a"): 0.0, (2, "b"): pytest.approx(1.0)}


def test_finish_time_fairness_evens_out_the_worst() -> None:
    # Alone on half of each type, a job does 2.5 steps per second, so 60 steps take 24 s, and 30 take 12. With 40 and 30
    # steps to go: 40 / (1 + 3x) / 24 = 30 / (3 - x) / 12 at x = 3/11, where rho = 11/12.
    here = programme(demand(1, 4.0, 1.0, steps=40.0, total=60.0), demand(2, 3.0, 2.0, steps=30.0))
    shares = of(here.finish_time_fairness())
    assert shares[1, "a"] == pytest.approx(3 / 11, abs=5e-3)
    rates = {1: 4 * shares[1, "a"] + shares[1, "b"], 2: 3 * shares[2, "a"] + 2 * shares[2, "b"]}
    assert max(40 / rates[1] / 24, 30 / rates[2] / 12) == pytest.approx(11 / 12, rel=2e-3)
    # A job that has waited 20 s is behind by as much.
    late = of(programme(demand(1, 4.0, 1.0, age=20.0), demand(2, 3.0, 2.0, steps=30.0)).finish_time_fairness())
    assert late[1, "a"] > 0.7


def test_no_objective_gives_a_job_more_than_all_time_or_a_type_more_than_its_gpus() -> None:
    here = programme(*(demand(n, 1.0 + n, 7.0 - n, gpus=1 + n % 3, age=9.0 * n) for n in range(1, 6)), a=4, b=2)
    for shares in (
        here.most_throughput(),
        here.max_min_fairness(),
        here.least_makespan(),
        here.finish_time_fairness(),
    ):
        assert all(sum(kinds.values()) <= 1.0 + 1e-4 for kinds in shares.values())
        for kind, gpus in (("a", 4), ("b", 2)):
            assert sum(each.gpus * shares[each.job][kind] for each in here.demands) <= gpus + 1e-3


def test_priorities_follow_the_time_still_owed() -> None:
    ledger, shares = Ledger(), {JobId(1): {"": 0.75}, JobId(2): {"": 0.25}}
    turns = []
    for _ in range(40):
        priority = ledger.priority(shares, 360.0)
        turn = max(priority, key=lambda key: (priority[key], key))
        ledger.seconds[turn] = ledger.seconds.get(turn, 0.0) + 360.0
        turns.append(turn[0])
    assert turns.count(JobId(1)) == 30
    assert turns[:4].count(JobId(1)) == 3, "from the first rounds on"


def test_the_account_follows_the_snapshots_and_restarts_with_another_set_of_jobs() -> None:
    ledger = Ledger()
    here = node("n", 2)
    ledger.credit(snapshot(here, running(1, on("n", 0), since=0.0), job(2), now=100.0))
    assert ledger.seconds == {}
    ledger.credit(snapshot(here, running(1, on("n", 0), since=0.0), running(2, on("n", 1), since=130.0), now=160.0))
    assert ledger.seconds == {(JobId(1), ""): 60.0, (JobId(2), ""): 30.0}
    ledger.credit(snapshot(here, running(1, on("n", 0), since=0.0), now=220.0))
    assert ledger.seconds == {}


def test_steps_since_a_job_was_first_seen_count_towards_its_whole_length() -> None:
    ledger = Ledger()
    ledger.credit(snapshot(job(1), job(2)))
    assert [each.total for each in ledger.whole([demand(1, 1.0, 1.0, steps=90.0)])] == [90.0]
    assert [each.total for each in ledger.whole([demand(2, 1.0, 1.0, steps=5.0)])] == [5.0]
    after = ledger.whole([demand(1, 1.0, 1.0, steps=20.0), demand(2, 1.0, 1.0, steps=4.0, total=50.0)])
    assert [(each.steps, each.total) for each in after] == [(20.0, 90.0), (4.0, 50.0)]
    ledger.credit(snapshot(job(2)))
    ledger.whole([])
    assert ledger.totals == {JobId(2): 50.0}
