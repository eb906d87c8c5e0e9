"""gpq does not use servers that lack what a job needs. It asks them, and asks again. Nobody is driven away by that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.feasibility import environments
from gpq.core.feasibility.environments import FIT_FOR, UNFIT_FOR
from gpq.core.feasibility.shapes import feasible
from gpq.core.model import events as facts
from gpq.core.model.actions import Launch, Prepare, Stop
from gpq.core.model.jobs import JobState, Level
from gpq.core.model.nodes import NodeState
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.rounds.rounds import Decision, decide, due
from gpq.core.state.apply_events import fold
from gpq.policies.registry import POLICIES, policy
from tests.support.builders import black_box, job, node, on, running, snapshot, spec
from tests.support.explanations import explain

A, B = NodeId("a"), NodeId("b")
NEEDS = black_box(environment="e1")
ELASTIC = spec(environment="e1")
# which names servers by their GPUs
on_every_policy = pytest.mark.parametrize("name", sorted(set(POLICIES) - {"pollux"}))


def seen(name: NodeId, fit: bool = True, environment: str = "e1", at: float = 0.0) -> facts.EnvironmentSeen:
    return facts.EnvironmentSeen(at, name, environment, fit, "" if fit else "no folder /x", "" if fit else "make it")


def after(here: Snapshot, *news: facts.Event) -> Snapshot:
    return fold(here, news).snapshot


def next_round(here: Snapshot, name: str = "goodput") -> Decision:
    return decide(here, [], policy(name), allocate=True)


def asked(decision: Decision) -> list[tuple[str, str]]:
    return [(action.node, action.environment) for action in decision.actions if isinstance(action, Prepare)]


def started(decision: Decision) -> list[Placement]:
    return [action.placement for action in decision.actions if isinstance(action, Launch)]


@on_every_policy
def test_nothing_starts_before_a_server_was_asked_and_fits(name: str) -> None:
    here = snapshot(node("a", 4), node("b", 1), job(1, spec_=NEEDS))
    first = next_round(here, name)
    assert (started(first), asked(first)) == ([], [("a", "e1"), ("b", "e1")])
    then = next_round(after(here, seen(A, fit=False), seen(B)), name)
    assert (started(then), asked(then)) == ([on("b", 0)], [])


def test_a_job_without_needs_starts_at_once_and_no_server_is_asked() -> None:
    first = next_round(snapshot(node("a"), job(1, spec_=black_box())))
    assert len(started(first)) == 1
    assert not asked(first)


def test_jobs_with_one_environment_share_a_check() -> None:
    here = snapshot(node("a"), *(job(i, spec_=NEEDS) for i in (1, 2, 3)), job(4, spec_=black_box(environment="e2")))
    assert asked(next_round(here)) == [("a", "e1"), ("a", "e2")]
    assert [look.spec for look in environments.checks_due(here)] == [NEEDS, here.jobs[JobId(4)].spec]


def test_only_servers_that_answer_and_are_not_drained_are_asked_and_only_for_jobs_that_may_start() -> None:
    silent = node("b", state=NodeState.UNREACHABLE)
    here = snapshot(node("a"), silent, node("c"), job(1, spec_=NEEDS))
    here = after(here, facts.NodeDrained(0.0, NodeId("c"), "", ""))
    assert [look.node for look in environments.checks_due(here)] == ["a"]
    assert [look.node for look in environments.checks_due(here, B)] == []
    held = snapshot(node("a"), job(1, spec_=NEEDS, state=JobState.HELD), running(2, on("a", 0), spec_=NEEDS))
    assert environments.checks_due(held) == []


def test_only_servers_with_a_gpu_that_suits_one_of_the_jobs_are_asked() -> None:
    here = snapshot(
        node("a", type="A100"), node("b", type="H100"), node("c", 0),
        job(1, spec_=NEEDS.having(gpu_type="A100")),
    )  # fmt: skip
    assert asked(next_round(here)) == [("a", "e1")]
    assert explain(here, {}, here.jobs[JobId(1)]).reasons == ("server a: its environment is being checked",)
    other = replace(here, jobs={**here.jobs, **snapshot(job(2, spec_=NEEDS.having(gpu_type="h1"))).jobs})
    looks = environments.checks_due(other)
    assert [(look.node, look.spec.gpu_type) for look in looks] == [("a", "A100"), ("b", "h1")]


def test_findings_are_checked_again_in_time() -> None:
    here = after(snapshot(node("a"), node("b"), job(1, spec_=NEEDS)), seen(A, at=100.0), seen(B, fit=False, at=100.0))
    for now, nodes in (
        (100.0, []), (99.0 + UNFIT_FOR, []), (101.0 + UNFIT_FOR, ["b"]), (101.0 + FIT_FOR, ["a", "b"]), (50.0, ["a", "b"]),
    ):  # fmt: skip
        assert [look.node for look in environments.checks_due(replace(here, now=now))] == nodes, now


def test_a_new_submission_does_not_get_an_old_finding() -> None:
    here = after(snapshot(node("a"), node("b"), job(1, spec_=NEEDS)), seen(A, fit=False), seen(B))
    assert list(after(here, facts.Submitted(1.0, JobId(2), NEEDS)).checks) == [(B, "e1")]
    assert after(here, facts.Submitted(1.0, JobId(2), black_box())).checks is here.checks


def test_news_that_change_something_call_for_a_round_and_others_do_not() -> None:
    here = replace(snapshot(node("a"), job(1, spec_=NEEDS)), round_at=0.0, now=1.0)
    assert due(here, [seen(A)])
    assert not due(after(here, seen(A)), [seen(A, at=1.0)])
    assert due(after(here, seen(A)), [seen(A, fit=False)])


def test_an_elastic_job_does_not_grow_onto_a_server_without_it_and_keeps_what_it_has() -> None:
    here = snapshot(node("a", 2), node("b", 2), running(1, on("a", 0), spec_=ELASTIC), now=10_000.0)
    here = environments.recall(here)
    one = here.jobs[JobId(1)]
    assert {shape.nodes for shape in feasible(one, here)} == {1}
    assert Shape(4, 2) in feasible(one, after(here, seen(B)))
    here = after(here, seen(A, fit=False), seen(B, fit=False))  # a part of it is on a, which proves more
    decision = next_round(here)
    assert {shape.replicas for shape in feasible(one, here)} == {1, 2}
    assert not any(isinstance(action, Stop) and action.target is None for action in decision.actions)


def test_a_new_daemon_takes_what_its_jobs_prove_and_asks_for_the_rest() -> None:
    here = snapshot(node("a"), node("b"), running(1, on("a", 0), spec_=ELASTIC), job(2, spec_=NEEDS))
    here = environments.recall(here)
    assert list(here.checks) == [(A, "e1")]
    assert [look.node for look in environments.checks_due(here)] == ["b"]


def test_a_removed_server_is_asked_again_unless_a_job_is_there() -> None:
    here = after(snapshot(node("a"), node("b"), running(1, on("a", 0), spec_=ELASTIC)), seen(A), seen(B))
    here = after(here, facts.NodeRemoved(0.0, A), facts.NodeRemoved(0.0, B))
    assert list(here.checks) == [(A, "e1")]


def test_something_missing_at_the_start_requeues_the_job_and_is_remembered() -> None:
    here = after(snapshot(node("a"), job(1, spec_=NEEDS)), seen(A))
    here = next_round(here).snapshot
    refused = facts.StartRefused(1.0, JobId(1), 1, A, "no folder /x", transient=True)
    here = decide(
        replace(here, now=1.0), [refused, seen(A, fit=False, at=1.0)], policy("goodput"), allocate=False
    ).snapshot
    assert here.jobs[JobId(1)].state is JobState.PENDING
    assert not here.checks[A, "e1"].fit
    assert explain(replace(here, now=20.0), {}, here.jobs[JobId(1)]).headline == "no server fits: no folder /x"


def test_why_names_each_server_what_is_missing_and_the_fix() -> None:
    here = snapshot(node("a"), node("b"), job(1, spec_=NEEDS), now=12.0)
    assert explain(here, None, here.jobs[JobId(1)]).headline == "gpq is checking its environment"
    other = facts.EnvironmentSeen(10.0, B, "e1", False, "no interpreter /p", "make the interpreter")
    here = after(here, seen(A, fit=False, at=2.0), other)
    said = explain(here, {}, here.jobs[JobId(1)])
    assert said.headline == "no server has its environment"
    assert said.reasons == (
        "server a: no folder /x (seen 10 s ago)",
        "server b: no interpreter /p (seen 2 s ago)",
    )
    assert said.remedies == ("make it", "make the interpreter", "gpq checks again every 30 s")


def test_why_of_a_waiting_job_says_which_servers_it_cannot_use() -> None:
    full = Placement(((A, (DeviceId("a-0"),)),))
    here = snapshot(
        node("a", 1), node("b", 1), job(1, spec_=NEEDS), running(2, full, spec_=spec(level=Level.BLACK_BOX))
    )
    here = after(here, seen(A), seen(B, fit=False))
    said = explain(here, {}, here.jobs[JobId(1)])
    assert said.headline == "waits for GPUs"
    assert "gpq cannot use server b: no folder /x (seen 0 s ago)" in said.reasons
    assert (
        explain(replace(here, checks={}), {}, job(1, spec_=NEEDS.having(setup="make"))).headline
        == "gpq is running its setup"
    )
