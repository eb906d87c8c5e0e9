"""What a checkpoint may hold. Data comes back and code does not run. gpq tells users in time if they save more than
data."""

from __future__ import annotations

import dataclasses
import datetime
import fractions
import io
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpq_agent.train.checkpoints.state_parts import USER, Parts, read_state
from gpq_agent.train.checkpoints.store import CheckpointStore
from gpq_agent.train.errors import GpqTrainError


@dataclasses.dataclass
class Best:
    loss: float = 0.0


class Code:
    """What an attacker would put into a checkpoint."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def saved(value: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save({"value": value}, stream)
    stream.seek(0)
    return stream


@pytest.mark.parametrize(
    "value",
    [
        np.random.get_state(),
        random.getstate(),
        {
            "array": np.arange(6.0).reshape(2, 3),
            "flag": np.bool_(True),
            "best": np.float32(0.5),
            "names": np.array(["a"]),
        },
        [datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc), datetime.timedelta(3), fractions.Fraction(1, 3)],
        {"path": Path("a/b"), "set": {1, 2}, "bytes": b"\0\xff", "large": 1 << 100, "slice": slice(1, 2)},
    ],
    ids=["numpy", "random", "arrays", "times", "plain"],
)
def test_data_comes_back(value: Any) -> None:
    assert repr(read_state(saved(value))["value"]) == repr(value)


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(GpqTrainError, match="could run any code"):
        read_state(saved(Code(mark)))
    with pytest.raises(GpqTrainError):
        read_state(saved(np.array([Code(mark)], dtype=object)))
    assert not mark.exists()


def test_a_class_that_the_script_allows_comes_back() -> None:
    with pytest.raises(GpqTrainError, match=r"holds a .*\.Best") as caught:
        read_state(saved(Best(0.5)))
    assert "torch.serialization.add_safe_globals([Best])" in caught.value.hint
    with torch.serialization.safe_globals([Best]):
        assert read_state(saved(Best(0.5))) == {"value": Best(0.5)}


class Part:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "weights": torch.ones(1000)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def test_a_part_that_could_not_be_loaded_is_refused_at_registration() -> None:
    parts = Parts()
    with pytest.raises(GpqTrainError, match=r"\.Best"):
        parts.add(USER + "1", Part([Best()]))
    parts.add(USER + "2", Part([0.5]))


def test_a_part_that_later_holds_more_is_reported_with_the_save(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    assert store.save({"state": {"best": 0.5}}, 1, attempt=1).refusal == ""
    refusal = store.save({"state": {"best": Best()}}, 2, attempt=1).refusal
    assert ".Best" in refusal
    assert "add_safe_globals([Best])" in refusal
