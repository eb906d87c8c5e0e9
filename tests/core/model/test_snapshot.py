"""What the snapshot's types say about themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.model.snapshot import Config
from tests.support.builders import job


@pytest.mark.parametrize(("measured", "cost"), [(None, 30.0), (12.0, 12.0)])
def test_a_restart_costs_the_measured_time_or_the_assumed_one(measured: float | None, cost: float) -> None:
    config = Config(restart_seconds=30.0)
    assert config.restart_cost(replace(job(1), restart_seconds=measured)) == cost
