"""Makes a GradScaler act once per optimizer step: in the last micro-batch, when gradients are
whole."""

import functools
from typing import Any

from .step_gate import StepGate


def wrap_scaler(scaler: Any, gate: StepGate) -> None:
    """Its step, unscale_ and update do nothing until the last micro-batch of a step.

    They are replaced on this instance. Outside a loop over the loader, and for optimizers of
    others, `step` acts as in plain PyTorch.
    """
    step, unscale, update = scaler.step, scaler.unscale_, scaler.update

    @functools.wraps(step)
    def gated_step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        micro = gate.micro
        if micro is None or not gate.owns(optimizer):
            return step(optimizer, *args, **kwargs)
        gate.begin_scaler_step(micro)
        if not micro.last:
            gate.hold(optimizer)
            return None
        result = step(optimizer, *args, **kwargs)
        gate.end_scaler_step(optimizer)
        return result

    @functools.wraps(unscale)
    def gated_unscale(optimizer: Any) -> None:
        if gate.last:
            unscale(optimizer)

    @functools.wraps(update)
    def gated_update(*args: Any, **kwargs: Any) -> None:
        if gate.last:
            update(*args, **kwargs)

    scaler.__dict__.update(step=gated_step, unscale_=gated_unscale, update=gated_update)
