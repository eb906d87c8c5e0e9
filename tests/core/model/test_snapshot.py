"""What the snapshot's types say about themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.model.snapshot import Config
from tests.support.builders import job


@pytest.mark.parametrize(
    ("measured", "by_measurement", "cost"), [(None, True, 30.0), (12.0, True, 12.0), (12.0, False, 30.0)]
)
def test_a_restart_costs_the_measured_time_or_the_assumed_one(
    measured: float | None, by_measurement: bool, cost: float
) -> None:
    config = Config(restart_seconds=30.0, measured_restart=by_measurement)
    assert config.restart_cost(replace(job(1), restart_seconds=measured)) == cost
