"""Small workloads under both policies: how long jobs take and how often they restart. No policy may get worse
unnoticed.

A figure that gets better by more than the tolerance fails as well. Then write the better one down here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpq.core.goodput.goodput import ThroughputParams
from gpq.core.model.jobs import JobSpec, Level
from gpq.core.model.nodes import Node
from gpq.policies.registry import policy
from tests.core.rounds.test_rounds import simulate
from tests.support.builders import DECLARED, PARAMS, command, node, program, spec
from tests.support.programs import Program
from tests.support.sim_world import SimWorld

SYNC_BOUND = ThroughputParams(0.02, 0.001, 2.0, 0.5, 0.5, 0.2, 1.0)  # slower on two GPUs than on one
# gains a little within a server, nothing across servers
MIDDLING = ThroughputParams(0.02, 0.001, 0.1, 0.02, 0.03, 0.01, 1.2)

TOLERANCE = 0.02  # of the mean completion time, because another numpy rounds differently


def train(at: float, work: float, params: ThroughputParams = PARAMS, **more: object) -> Program:
    """A job that declares as many examples as it really needs, and takes ten seconds to start."""
    declared = replace(DECLARED, dataset_size=int(work * DECLARED.batch_size / DECLARED.epochs))
    script = {id(PARAMS): "scales.py", id(MIDDLING): "middling.py"}.get(
        id(params), "bound.py"
    )  # otherwise they share priors
    what = more.pop("spec", spec())
    assert isinstance(what, JobSpec)
    more["spec"] = what.having(argv=(f"{more.get('noise', 0)}-{script}",))
    fields: dict[str, object] = {"start_seconds": 10.0, "checkpoint_seconds": 2.0, "declared": declared, **more}
    return program(at, work=work, params=params, **fields)


def alone_and_does_not_scale() -> tuple[list[Program], list[Node]]:
    return [train(0.0, 10_000, SYNC_BOUND, noise=1.0)], [node("a", 4)]


def alone_on_two_servers() -> tuple[list[Program], list[Node]]:
    return [train(0.0, 10_000, MIDDLING, noise=50.0)], [node("a", 2), node("b", 2)]


def two_that_end_almost_together() -> tuple[list[Program], list[Node]]:
    return [train(0.0, 10_000), train(10.0, 10_000)], [node("a", 2)]


def servers_of_unequal_size() -> tuple[list[Program], list[Node]]:
    """Jobs gain from changing places, and one of them takes longer to stop."""
    jobs = [
        train(100.0, 20_000, MIDDLING, noise=2000.0, checkpoint_seconds=1.8),
        train(420.0, 20_000, MIDDLING, noise=100.0, checkpoint_seconds=2.9),
        train(530.0, 5_000, noise=2000.0, checkpoint_seconds=2.5),
        train(820.0, 5_000, noise=2000.0, checkpoint_seconds=2.5),
    ]
    return jobs, [node("a", 2), node("b", 4), node("c", 2)]


def commands_among_training() -> tuple[list[Program], list[Node]]:
    """Black boxes need room that elastic jobs can make."""
    short = [command(100.0 + 150.0 * i, seconds=60.0, gpus=1 + i % 2) for i in range(6)]
    return [train(0.0, 20_000), *short, train(400.0, 5_000)], [node("a", 4)]


def a_busy_lab() -> tuple[list[Program], list[Node]]:
    """Ten jobs of two users, more than there are GPUs."""
    kinds = [PARAMS, MIDDLING, SYNC_BOUND]
    jobs = [
        train(
            60.0 * i, 2_000.0 * (1 + i % 4), kinds[i % 3], noise=float(10 ** (1 + i % 3)), spec=spec(user="ab"[i % 2])
        )
        for i in range(8)
    ]
    signal = Program(200.0, spec(level=Level.SIGNAL, gpus=1, up_to=1), seconds=400.0, start_seconds=3.0)
    return [*jobs, signal, command(500.0, seconds=100.0, gpus=2)], [node("a", 4), node("b", 2)]


Scenario = Callable[[], tuple[list[Program], list[Node]]]
GOLDEN: list[tuple[Scenario, str, float, float, int]] = [  # policy, interval, mean completion time in seconds, restarts
    (alone_and_does_not_scale, "goodput", 60.0, 881, 2),
    (alone_and_does_not_scale, "goodput", 5.0, 881, 2),
    (alone_and_does_not_scale, "fifo", 60.0, 850, 0),
    (alone_on_two_servers, "goodput", 60.0, 774, 2),
    (alone_on_two_servers, "goodput", 5.0, 774, 2),
    (alone_on_two_servers, "fifo", 60.0, 850, 0),
    (two_that_end_almost_together, "goodput", 60.0, 850, 0),
    (two_that_end_almost_together, "goodput", 5.0, 850, 0),
    (two_that_end_almost_together, "fifo", 60.0, 850, 0),
    (servers_of_unequal_size, "goodput", 60.0, 535, 11),
    (servers_of_unequal_size, "goodput", 5.0, 535, 11),
    (servers_of_unequal_size, "fifo", 60.0, 1003, 0),
    (commands_among_training, "goodput", 60.0, 205, 15),
    (commands_among_training, "goodput", 5.0, 208, 17),
    (commands_among_training, "fifo", 60.0, 314, 0),
    (a_busy_lab, "goodput", 60.0, 391, 21),
    (a_busy_lab, "goodput", 5.0, 391, 21),
    (a_busy_lab, "fifo", 60.0, 404, 0),
]


def measured(scenario: Scenario, name: str, interval: float) -> tuple[float, int]:
    programs, nodes = scenario()
    ended, _ = simulate(SimWorld(programs, nodes), policy(name), interval=interval)
    assert len(ended) == len(programs)
    taken = [each.ended_at - each.submitted_at for each in ended.values() if each.ended_at is not None]
    return sum(taken) / len(taken), sum(each.restarts for each in ended.values())


@pytest.mark.parametrize(("scenario", "name", "interval", "mean", "restarts"), GOLDEN)
def test_jobs_take_no_longer_and_restart_no_more_often_than_before(
    scenario: Scenario, name: str, interval: float, mean: float, restarts: int
) -> None:
    assert measured(scenario, name, interval) == (pytest.approx(mean, rel=TOLERANCE), restarts)


@pytest.mark.parametrize("scenario", sorted({row[0] for row in GOLDEN}, key=lambda one: one.__name__))
def test_goodput_is_not_slower_than_first_come_first_served(scenario: Scenario) -> None:
    assert measured(scenario, "goodput", 60.0)[0] <= 1.05 * measured(scenario, "fifo", 60.0)[0]
