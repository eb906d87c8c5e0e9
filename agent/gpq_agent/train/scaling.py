"""Learning-rate rules: by what to multiply the base learning rate at another total batch. No optimizer is changed."""

from typing import Any, Callable, Dict

import torch

from .preconditioner import is_adam


class Rule:
    """One rule. `name` is what reports show; `notice` is a line for the user, "" if there is nothing to say."""

    def __init__(self, name: str, base_batch: int, warmup_steps: float = 0.0, notice: str = "") -> None:
        self.name = name
        self.notice = notice
        self._base = base_batch
        self._warmup = warmup_steps
        self._formula = FORMULAS[name]

    def factor(self, *, total_batch: int, gain: float, base_steps: float) -> float:
        """Multiplier of the base learning rate for a step of `total_batch` examples.

        `gain`: of this batch (NoiseScale.gain); `base_steps`: progress so far in steps at the base batch.
        """
        return self._formula(self, total_batch / self._base, gain, base_steps)

    def _legw(self, scale: float, base_steps: float) -> float:
        # You et al. 2019: sqrt scaling, and a linear warm-up that lasts as many epochs more as the batch is larger. In
        # steps at the base batch, which count examples, that is the base warm-up times the scale.
        length = self._warmup * scale
        ramp = min(1.0, (base_steps + 1.0) / length) if length > 1.0 else 1.0
        return float(scale**0.5 * ramp)


FORMULAS: Dict[str, Callable[[Rule, float, float, float], float]] = {
    "adascale": lambda rule, scale, gain, steps: gain,  # Johnson et al. 2020, for SGD
    "adam-sqrt": lambda rule, scale, gain, steps: float(gain**0.5),  # Pollux, for Adam
    "linear": lambda rule, scale, gain, steps: scale,  # Goyal et al. 2017
    "sqrt": lambda rule, scale, gain, steps: float(scale**0.5),  # Krizhevsky 2014
    "legw": lambda rule, scale, gain, steps: rule._legw(scale, steps),
    "none": lambda rule, scale, gain, steps: 1.0,
}
NAMES = ("auto", *FORMULAS)


def make_rule(name: str, optimizer: Any, *, base_batch: int, warmup_steps: float = 0.0) -> Rule:
    """The rule called `name`; "auto" chooses by the optimizer. `warmup_steps`: of the user's own schedule, for legw.

    Raises ValueError, naming the valid ones, for a name it does not know, and for a base batch or warm-up out of range.
    """
    if base_batch < 1:
        raise ValueError("base_batch must be at least 1, got {}".format(base_batch))
    if not warmup_steps >= 0.0:
        raise ValueError("warmup_steps must not be negative, got {}".format(warmup_steps))
    if name == "auto":
        if is_adam(optimizer):
            return Rule("adam-sqrt", base_batch)
        if isinstance(optimizer, torch.optim.SGD):
            return Rule("adascale", base_batch)
        notice = "no learning-rate rule is known for {}: using sqrt".format(type(optimizer).__name__)
        return Rule("sqrt", base_batch, notice=notice)
    if name not in FORMULAS:
        raise ValueError("unknown learning-rate rule {!r}: choose one of {}".format(name, ", ".join(NAMES)))
    return Rule(name, base_batch, warmup_steps)
