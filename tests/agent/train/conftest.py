"""Training jobs for the tests of this folder. When a test ends, every process that its jobs started is gone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .driver import TrainingJob


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TrainingJob]]:
    """Make a job, for example ``training(size=203, fixed=True)``. See Settings."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    jobs: list[TrainingJob] = []

    def make(**settings: Any) -> TrainingJob:
        jobs.append(TrainingJob(tmp_path / f"job-{len(jobs)}", **settings))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
