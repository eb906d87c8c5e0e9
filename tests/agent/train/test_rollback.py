"""The first split step is checked without using device memory, whatever the parts are."""

from __future__ import annotations

import threading
from typing import Any

import torch
from gpq_agent.train.attempt.rollback import StepRollback
from torch._subclasses.fake_tensor import FakeTensorMode

from .test_stepping import Examples, job, prepared


def tensors_within(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [item for part in value for item in tensors_within(part)] if isinstance(value, (list, tuple)) else []


class Part:
    """Keeps tensors, like an average of weights."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_copies_of_device_tensors_are_on_the_host() -> None:
    """Uses tensors with a device and no content. On a CPU device, a test of memory peaks would show nothing."""
    with FakeTensorMode():
        model = torch.nn.BatchNorm1d(3, device="cuda")
        model.weight.grad = torch.zeros(3, device="cuda")
        rollback = StepRollback(list(model.parameters()), {}, [model])
    own = {id(item) for item in (*model.parameters(), *model.buffers())}
    copies = [item for item in tensors_within([vars(rollback)]) if id(item) not in own]
    assert [item.device.type for item in copies] == 6 * ["cpu"]


def test_copies_share_no_memory_with_their_originals() -> None:
    model = torch.nn.BatchNorm1d(3)
    model.weight.grad = torch.zeros(3)
    rollback = StepRollback(list(model.parameters()), {}, [model])
    with torch.no_grad():
        model.weight.add_(1)
        model.running_mean.add_(1)  # type: ignore[union-attr,operator]
        model.weight.grad.add_(1)
    rollback.undo()
    assert torch.equal(model.weight, torch.ones(3))
    assert torch.equal(model.running_mean, torch.zeros(3))  # type: ignore[arg-type]
    assert torch.equal(model.weight.grad, torch.zeros(3))


def test_no_tensor_of_a_part_is_kept() -> None:
    part = Part(mean=torch.zeros(3))
    rollback = StepRollback([], {"average": part})
    assert tensors_within([rollback._states]) == []


def test_a_part_gets_its_state_back() -> None:
    part = Part(mean=torch.zeros(3), count=1)
    rollback = StepRollback([], {"average": part})
    part.state["mean"].add_(1)
    rollback.undo()
    assert torch.equal(part.state["mean"], torch.zeros(3))


def test_a_part_that_cannot_be_saved_does_not_end_the_training() -> None:
    this = job()
    this.state(Part(lock=threading.Lock()), name="locked")
    loader = this.loader(Examples(48), batch_size=12, max_local_batch=6, fixed_batch=True)
    model, optimizer, _ = prepared(this)
    for _ in this.epochs(1):
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert this.step == 4
