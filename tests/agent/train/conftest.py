"""Training jobs of this folder's tests: every process that one starts is gone when its test ends."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .driver import TrainingJob


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TrainingJob]]:
    """Make a job: ``training(size=203, fixed=True)``, see Settings."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    jobs: list[TrainingJob] = []

    def make(**settings: Any) -> TrainingJob:
        jobs.append(TrainingJob(tmp_path / f"job-{len(jobs)}", **settings))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
