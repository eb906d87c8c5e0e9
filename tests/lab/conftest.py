"""Without a laboratory its tests are skipped and say why. In CI that is a failure (tests/conftest.py)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.lab.kinds import PLAIN
from tests.lab.lab import Lab
from tests.lab.machine import lacking


@pytest.fixture(autouse=True, scope="session")
def _laboratory() -> None:
    reason = lacking()
    if reason:
        pytest.skip(f"the laboratory {reason}")


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    with Lab({"srv-a": PLAIN, "srv-b": PLAIN, "srv-c": PLAIN}) as lab:
        yield lab


@pytest.fixture
def lab(shared: Lab) -> Iterator[Lab]:
    """All servers are on and healthy at the start of each test, and files of jobs in the homes are gone, because every
    daemon counts its jobs from 1."""
    yield shared
    shared.repair()
    for server in shared:
        for left in server.home.glob("[!.]*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
