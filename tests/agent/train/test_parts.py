"""gpq refuses parts that no checkpoint can hold before it trains. If that happens only later, training continues."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.job.job import Job
from gpq_agent.train.runtime.environment import Environment

from .test_stepping import Examples, adam, clear_first, network


class Part:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def job(tmp_path: Path) -> Job:
    return Job(Environment(checkpoint_dir=str(tmp_path)), torch.device("cpu"), 0, {})


def test_a_part_that_cannot_be_saved_is_refused_by_prepare(tmp_path: Path) -> None:
    this = job(tmp_path)
    this.loader(Examples(20), batch_size=10)
    this.state(Part(lambda: 0), name="schedule")
    model = network()
    with pytest.raises(GpqTrainError, match=r"the state of schedule \(Part\) cannot be saved: "):
        this.prepare(model, adam(model))


def test_training_continues_when_a_part_can_no_longer_be_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    this = job(tmp_path)
    loader = this.loader(Examples(20), batch_size=10)
    part = this.state(Part(0))
    model = network()
    model, optimizer, _ = this.prepare(model, adam(model))
    for _ in this.epochs(2):
        part.value = lambda: 0
        for x, y in loader:
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    assert this.step == 4
    assert "gpq: cannot write a checkpoint: " in capsys.readouterr().err


def test_a_job_without_references_is_freed(tmp_path: Path) -> None:
    engine = weakref.ref(job(tmp_path)._engine)
    gc.collect()
    assert engine() is None
