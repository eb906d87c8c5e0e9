"""gpq refuses parts that no checkpoint can hold before it trains. If that happens only later, training continues."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from gpq_agent.train.checkpoints.state_parts import Parts
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment

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


class Average:
    """Keeps the tensors that it is given, like averages of many libraries."""

    def __init__(self, device: str) -> None:
        self.decay = torch.tensor(0.9)
        self.shadow = {
            "weight": torch.zeros(3, device=device),
            "steps": [torch.zeros(1, device=device), torch.zeros(1)],
        }

    def state_dict(self) -> dict[str, Any]:
        return {"decay": self.decay, **self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.decay = state["decay"]
        self.shadow = {"weight": state["weight"], "steps": state["steps"]}


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_tensors_of_a_part_come_back_on_their_own_devices(late: bool) -> None:
    """The second device is one without memory, which every machine has."""
    saved = {"decay": torch.tensor(0.5), "weight": torch.ones(3), "steps": [torch.ones(1), torch.ones(1)]}
    parts, average = Parts(), Average("meta")
    if late:
        parts.restore({"user:average": saved})
    parts.add("user:average", average)
    if not late:
        parts.restore({"user:average": saved})
    assert (average.decay, average.decay.device.type) == (0.5, "cpu")
    assert average.shadow["weight"].device.type == "meta"
    assert [item.device.type for item in average.shadow["steps"]] == ["meta", "cpu"]
    assert average.shadow["steps"][1].data_ptr() != saved["steps"][1].data_ptr()


def test_a_part_that_has_no_state_yet_is_restored() -> None:
    class Empty(Average):
        def state_dict(self) -> dict[str, Any]:
            if not self.shadow:
                raise RuntimeError("call update() first")
            return super().state_dict()

    parts, part = Parts(), Empty("cpu")
    part.shadow = {}
    parts._parts["user:part"] = part
    parts.restore({"user:part": {"decay": torch.tensor(0.5), "weight": torch.ones(3), "steps": []}})
    assert part.shadow["weight"].tolist() == [1, 1, 1]
