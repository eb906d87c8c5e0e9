"""The daemon may be killed at any moment: nothing is lost, nothing runs twice, every exit code is the job's own."""

from __future__ import annotations

import pytest

from tests.e2e.chaos import chaos


@pytest.mark.timeout(600)
def test_kill_9_at_random_moments_loses_nothing_and_doubles_nothing() -> None:
    verdict = chaos(jobs=60, kills=12, slots=8, seed=11, longest=1.0)
    assert verdict.kills >= 12
    assert verdict.acknowledged == 60
    assert verdict.good, f"{verdict}\n{verdict.table()}"
