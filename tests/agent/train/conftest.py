"""Training jobs for the tests of this folder. When a test ends, every process that its jobs started is gone."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpq_agent.train.internals import is_compiled

from .driver import TrainingJob


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """What a job leaves in this process is not the next test's: variables are as before.

    gpq observes less in a process that has ever compiled, so a test that compiles has a process of its own.
    """
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    assert not is_compiled(), "call torch.compile in a separate process: what it loads stays for the next tests"


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
