"""What the demo's judge demands of jobs under each kind of policy."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpq.demo import JobResult, passes
from gpq.policies.registry import POLICIES

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
