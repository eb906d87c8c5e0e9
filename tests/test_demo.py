"""What the demo's judge demands of jobs under each kind of policy, and of the members of a team."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpq.demo import JobResult, passes
from gpq.demo_team import JOBS, SHARES, judge
from gpq.policies.registry import POLICIES
from gpq.rpc.team_messages import MemberRow

CALM = JobResult("a", 1, "completed", "accuracy", 0.98, 0.97, True, 0, 0, 0, True, 20.0)
GROWN = replace(CALM, resizes=1, restarts=1)
TUNED = replace(CALM, batch_changes=2)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_has_to_finish_all_jobs(policy: str) -> None:
    assert passes(policy, [CALM, GROWN, TUNED])
    for wrong in (replace(CALM, state="failed"), replace(CALM, reached=False), replace(CALM, samples_exact=False)):
        assert not passes(policy, [CALM, GROWN, TUNED, wrong])


@pytest.mark.parametrize(
    ("policy", "grows", "tunes"),
    [("goodput", True, True), ("sia", True, True), ("optimus", True, False), ("tiresias", False, False)],
)
def test_a_policy_must_show_what_it_can_do_and_nothing_else(policy: str, grows: bool, tunes: bool) -> None:
    assert passes(policy, [CALM, TUNED]) is not grows
    assert passes(policy, [CALM, GROWN]) is not tunes
    assert passes(policy, [CALM]) is not (grows or tunes)


def test_a_team_must_come_to_its_floors_and_stay_there() -> None:
    fair = {
        name: MemberRow(name, share, False, False, False, int(share), int(share), 0.0, 0.0, 0.0)
        for name, share in SHARES.items()
    }
    poor = {**fair, "cat": replace(fair["cat"], devices=0)}
    waits = dict.fromkeys(SHARES, 3.0)
    states = {name: ["completed"] * count for name, count in JOBS.items()}
    result = judge([fair, fair], waits, states, 4)
    assert result.passed
    assert [row.gpus for row in result.members] == list(SHARES.values())
    assert not judge([], {"bob": 1.0}, states, 4).passed
    assert not judge([fair, poor], waits, states, 4).passed
    assert not judge([fair], waits, {**states, "ana": ["completed", "cancelled"]}, 4).passed
    assert not judge([fair], waits, {**states, "bob": ["running", "failed"]}, 4).passed
