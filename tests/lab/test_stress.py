"""Random operations under random faults, for a few seconds. `make stress` runs it for an hour."""

from __future__ import annotations

from tests.chaos.stress import stress
from tests.lab.lab import Lab
from tests.support.figures import Figures


def test_random_operations_under_random_faults_break_no_promise(lab: Lab, figures: Figures) -> None:
    figures.all(stress(10, seed=0, lab=lab))
