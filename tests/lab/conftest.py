"""Where there can be no laboratory, its tests are skipped and say why; in CI that is a failure (tests/conftest.py)."""

from __future__ import annotations

import pytest

from tests.lab.machine import lacking


@pytest.fixture(autouse=True, scope="session")
def _laboratory() -> None:
    reason = lacking()
    if reason:
        pytest.skip(f"the laboratory {reason}")
