"""Every check on the GPUs of this machine that nobody uses."""

from __future__ import annotations

import pytest

from tests.support.figures import Figures

from .checks import CHECKS
from .conftest import RunCheck


@pytest.mark.parametrize("name", CHECKS)
def test_gpq_keeps_its_promises_on_a_real_gpu(
    name: str, gpus: list[str], run_check: RunCheck, figures: Figures
) -> None:
    result = run_check(name, gpus)
    figures.note(name, result.figure)
    if result.verdict == "SKIP":
        pytest.skip(result.figure)
    assert result.verdict == "PASS", result.figure
