"""What happens to servers and what runs there, small. `make chaos` runs it at full size."""

from __future__ import annotations

import pytest

from tests.chaos import starts, supervisors, zoo
from tests.support.figures import Figures


@pytest.mark.row("20")
def test_a_start_that_arrives_twice_or_late_runs_once(figures: Figures) -> None:
    figures.all(starts.starts(16, seed=1, late=0.0))


@pytest.mark.row("24")
def test_a_job_outlives_its_supervisor_and_keeps_its_gpu(figures: Figures) -> None:
    figures.all(supervisors.shim_kills(8, seed=0))


@pytest.mark.row("25")
def test_every_run_has_a_record_even_if_its_supervisor_is_killed_during_the_start(figures: Figures) -> None:
    figures.all(supervisors.start_kills(30, seed=8))


@pytest.mark.row("27")
def test_a_cancel_ends_every_process_of_the_zoo(figures: Figures) -> None:
    figures.all(zoo.zoo(len(zoo.PROCESSES), seed=0))
