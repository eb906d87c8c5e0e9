"""Wrong answers of policies: what is wrong with each in words, and what a round makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpq.core.answers import fault
from gpq.core.model.actions import Stop
from gpq.core.model.jobs import Allotment, DesiredState, JobState, StopReason
from gpq.core.model.nodes import NodeState
from gpq.core.model.placements import Layout, Shape
from gpq.core.model.policy import Policy
from gpq.core.model.profile import RESIZE, Declared, Habit, Profile
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.rounds import decide
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot, spec

SCRIPT = spec(gpus=2, up_to=4)
UP, DOWN = node("a"), node("b", 5, state=NodeState.UNREACHABLE)
JOBS = (
    job(1, spec_=SCRIPT, profile=Profile(declared=DECLARED)),
    job(2, spec_=black_box(2)),
    job(3, spec_=black_box(), state=JobState.HELD, wish=DesiredState.HOLD),
    job(4, spec_=black_box(), not_before=100.0),
    running(5, on("b", 0, 1, 2, 3, 4), spec_=spec(gpus=1, up_to=2)),
    running(6, on("a", 0), wish=DesiredState.CANCEL),
    job(7, profile=Profile(declared=Declared(adaptive=False))),
    job(8, profile=Profile(declared=DECLARED, habits=(Habit("x", (RESIZE,)),)), last_replicas=4),
)
HERE = snapshot(UP, DOWN, *JOBS)
MIXED = snapshot(UP, node("t", type="T4"), job(1, spec_=spec(gpu_type="t4")))
deep: list[object] = []
for _ in range(100_000):
    deep = [deep]


def layout(*parts: tuple[object, object], gpu_type: Any = "") -> Any:
    return Layout(parts, gpu_type)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "here", "reason"),
    [
        (None, HERE, "a value of type NoneType is not a mapping from jobs to GPUs"),
        (deep, HERE, "a value of type list is not a mapping from jobs to GPUs"),
        ({9: Shape(1)}, HERE, "it named 9 as a job, but was not asked about such a job"),
        ({True: Shape(2)}, HERE, "it named a value of type bool as a job"),
        ({"1" * 99: Shape(2)}, HERE, "it named '" + "1" * 59 + " as a job"),
        ({10**5000: Shape(2)}, HERE, "it named a value of type int as a job"),
        ({1: deep}, HERE, "for job 1 it named a value of type list, which is neither a Shape nor a Layout"),
        ({1: 2}, HERE, "for job 1 it named 2, which is neither"),
        ({1: Shape(2), 2: None}, HERE, "for job 2 it named a value of type NoneType, which is neither"),
        *(
            ({1: wrong}, HERE, "for job 1 it named counts other than whole numbers from 1 to 1073741824")
            for count in (True, 0, -2, 2.0, float("nan"), "2", None, 10**5000)
            for wrong in (Shape(count, 1), Shape(2, count))  # type: ignore[arg-type]
        ),
        *(
            ({1: layout(("a", count))}, HERE, "for job 1 it named counts other than whole numbers")
            for count in (True, 2.0, float("nan"), 10**5000)
        ),
        ({1: Shape(2, 1, None)}, HERE, "for job 1 it named a value of type NoneType as the GPU type"),  # type: ignore[arg-type]
        ({1: Shape(2, 3)}, HERE, "for job 1 it named 2 GPUs on 3 servers"),
        ({1: layout()}, HERE, "for job 1 it named 0 GPUs on 0 servers"),
        ({3: Shape(1)}, HERE, "for job 3 it named 1 GPU, but the job may get none now"),
        ({4: Shape(1)}, HERE, "for job 4 it named 1 GPU, but the job may get none now"),
        ({6: Shape(2)}, HERE, "for job 6 it named 2 GPUs, but the job may get none now"),
        ({2: Shape(2, 2)}, HERE, "for job 2 it named 2 servers, but the job needs all of its GPUs on one"),
        ({1: Shape(1)}, HERE, "for job 1 it named 1 GPU, but the job needs 2"),
        ({1: Shape(5)}, HERE, "for job 1 it named 5 GPUs, but the job may have at most 4"),
        ({2: Shape(1)}, HERE, "for job 2 it named 1 GPU, but the job needs 2"),
        ({8: Shape(2)}, HERE, "for job 8 it named 2 GPUs, but the job needs 4"),
        ({1: Shape(2, 1, "H\x1b100")}, HERE, r"for job 1 it named the GPU type 'H\x1b100', which no server has"),
        ({1: Shape(1)}, MIXED, "for job 1 it named no GPU type, although there are several"),
        ({1: Shape(1, 1, "A100")}, MIXED, "for job 1 it named the GPU type A100, but the job asks for t4"),
        ({1: layout(("gpu9", 4))}, HERE, "for job 1 it named 4 GPUs on server 'gpu9', which does not exist"),
        ({1: layout(("b", 2))}, HERE, "for job 1 it named 2 GPUs on server b, which does not answer"),
        ({7: layout(("a", 5))}, HERE, "for job 7 it named 5 GPUs on server a, which offers 4"),
        ({1: Shape(2), 7: Shape(900)}, HERE, ""),
        ({5: layout(("b", 5))}, HERE, ""),
        ({6: Shape(1), 5: Shape(5)}, HERE, ""),
    ],
)
def test_the_first_fault_of_an_answer_is_named(answer: object, here: Snapshot, reason: str) -> None:
    found = fault(answer, here)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


class Astray(Policy):
    """Gives more and more GPUs to each job that is on its own, and to the last job some of a server that is not there."""

    name = "astray"

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        answer: dict[JobId, Allotment] = {name: Shape(job.replicas + 1) for name, job in snapshot.jobs.items()}
        return {**answer, max(snapshot.jobs): layout(("gpu9", 1))}


@pytest.mark.parametrize("background", [False, True])
def test_after_a_wrong_answer_only_wishes_and_limits_change_what_runs(background: bool) -> None:
    script = spec(up_to=4, background=background)
    here = snapshot(
        node("a", 6),
        running(1, on("a", 0), spec_=script),
        running(2, on("a", 1), spec_=script, wish=DesiredState.CANCEL),
        running(3, on("a", 2), spec_=spec(up_to=4, time_limit=10.0)),
        job(4, spec_=script),
        policy="astray",
    )
    decision = decide(here, [], Astray(), allocate=True)
    assert decision.round is not None
    assert decision.round.fault.startswith("policy astray answered wrongly: for job ")
    assert decision.round.placements == {name: here.jobs[name].placement for name in (1, 2, 3)}
    assert decision.round.changes == ()
    assert [(type(action), action.job, action.reason) for action in decision.actions] == [
        (Stop, 2, StopReason.CANCEL),
        (Stop, 3, StopReason.TIME),
    ]
