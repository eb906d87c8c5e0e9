"""Learning-rate rules: the factor on the base learning rate at another batch size, and the change
of Adam's betas, for the batch of each step.

An optimizer changes only for the length of a step.
"""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from gpq_agent.train.data.batches import Limits
from gpq_agent.train.gradients.noise_scale import NoiseScale, is_adam
from gpq_agent.train.gradients.progress import ProgressMeter

# The factor for a batch that is `scale` times the base batch and worth `gain` steps of it.
FORMULAS: Dict[str, Callable[[float, float], float]] = {
    "adascale": lambda scale, gain: gain,  # Johnson et al. 2020, for SGD
    "adam-sqrt": lambda scale, gain: float(gain**0.5),  # Pollux, for Adam
    "linear": lambda scale, gain: scale,  # Goyal et al. 2017
    "sqrt": lambda scale, gain: float(scale**0.5),  # Krizhevsky 2014
    "legw": lambda scale, gain: float(scale**0.5),  # You et al. 2019
    "none": lambda scale, gain: 1.0,
}
NAMES = ("auto", *FORMULAS)

if TYPE_CHECKING:
    from gpq_agent.train.loop.setup import Training


class Rule(NamedTuple):
    """One rule. `notice`: a line for the user, or ""."""

    name: str
    base_batch: int
    warmup_steps: float = 0.0
    notice: str = ""

    def factor(self, *, total_batch: int, gain: float, base_steps: float) -> float:
        """The factor on the base learning rate for a step of `total_batch` examples.

        gain: of this batch (NoiseScale.gain).
        base_steps: progress so far, in steps at the base batch size.
        """
        scale = total_batch / self.base_batch
        factor = FORMULAS[self.name](scale, gain)
        # The linear warm-up of legw lasts k times as many epochs for a batch k times as large. In
        # steps at the base batch, which count examples, that is k times the base warm-up.
        length = self.warmup_steps * scale if self.name == "legw" else 0.0
        return factor * min(1.0, (base_steps + 1.0) / length) if length > 1.0 else factor


def make_rule(name: str, optimizer: Any, base_batch: int, warmup_steps: float = 0.0) -> Rule:
    """The rule with this name. "auto" chooses by the optimizer.

    base_batch: in examples. warmup_steps: of the user's own schedule, for legw.
    Raises ValueError for an unknown name, for a negative warm-up, and for a rule that cannot change
    an optimizer without a learning rate.
    """
    if not warmup_steps >= 0.0:
        raise ValueError("warmup_steps must not be negative, got {}".format(warmup_steps))
    kind = type(optimizer).__name__
    lacks_rate = any(group.get("lr") is None for group in optimizer.param_groups)
    if lacks_rate and name not in ("auto", "none"):
        text = "{} sets its learning rate itself, so rule={!r} cannot change it"
        raise ValueError(text.format(kind, name))
    if lacks_rate:
        text = "{} sets its learning rate itself, so gpq does not change it for a larger batch"
        return Rule("none", base_batch, notice=text.format(kind) if name == "auto" else "")
    if name == "auto":
        if is_adam(optimizer):
            return Rule("adam-sqrt", base_batch)
        if isinstance(optimizer, torch.optim.SGD):
            return Rule("adascale", base_batch)
        notice = "gpq has no learning-rate rule for {}, so it uses sqrt".format(kind)
        return Rule("sqrt", base_batch, notice=notice)
    if name not in FORMULAS:
        text = "unknown learning-rate rule {!r}: expected one of {}"
        raise ValueError(text.format(name, ", ".join(NAMES)))
    return Rule(name, base_batch, warmup_steps)


class Adjustment(NamedTuple):
    """For one step: a factor on the learning rate, and a power of Adam's betas."""

    rate: float = 1.0
    betas: float = 1.0


UNCHANGED = Adjustment()


@contextmanager
def adjust_for_step(optimizer: Any, adjustment: Adjustment) -> Iterator[None]:
    """Within, the optimizer has these rates and betas. Afterwards it has its own again."""
    # Group, name and value of a setting, and a copy of the value if it is a tensor.
    originals: List[Tuple[Dict[str, Any], str, Any, Optional[torch.Tensor]]] = []
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if adjustment.rate != 1.0 and isinstance(rate, torch.Tensor):
            # A captured or compiled step reads this same tensor.
            originals.append((group, "lr", rate, rate.detach().clone()))
            rate.detach().mul_(adjustment.rate)
        elif adjustment.rate != 1.0 and rate is not None:
            originals.append((group, "lr", rate, None))
            group["lr"] = rate * adjustment.rate
        betas = group.get("betas")
        if adjustment.betas == 1.0 or betas is None:
            continue
        if all(isinstance(beta, float) for beta in betas):
            originals.append((group, "betas", betas, None))
            group["betas"] = tuple(beta**adjustment.betas for beta in betas)
    try:
        yield
    finally:
        for group, name, value, content in originals:
            if content is not None:
                value.detach().copy_(content)
            group[name] = value


class LrAdjuster:
    """Sets learning rates and betas for the batch of a step. `gain`: how many steps at the base
    batch the current step is worth (AdaScale)."""

    def __init__(
        self, limits: Limits, noise: NoiseScale, meter: ProgressMeter, training: "Training"
    ) -> None:
        self.gain = 1.0
        self._limits, self._noise, self._meter = limits, noise, meter
        self._rules = dict(zip(map(id, training.optimizers), training.rules))
        self._scale_betas = training.scale_betas and not limits.fixed
        self._total = limits.base_batch

    def begin_step(self, total: int, most: float) -> None:
        """For this number of examples. `most`: the gain is at most this."""
        self._total = total
        gain = 1.0 if self._limits.fixed else max(self._noise.gain(total), 1.0)
        self.gain = min(gain, most)

    def adjustment(self, optimizer: Any) -> Adjustment:
        """For the current step."""
        base, total = self._limits.base_batch, self._total
        if total == base and self.gain == 1.0 and self._rules[id(optimizer)].warmup_steps == 0.0:
            return UNCHANGED
        betas = 1.0
        if self._scale_betas and is_adam(optimizer):
            # With beta^k Adam's averages keep their half-life in examples (Marek et al. 2025, arXiv
            # 2507.07101, for beta2).
            betas = max(total / base, 1.0)
        return Adjustment(self.factor(optimizer), betas)

    def factor(self, optimizer: Any) -> float:
        """The factor on the learning rate."""
        total = self._limits.base_batch
        # Fixed batches may be those of a batch sampler, which differ and have one rate.
        if not self._limits.fixed:
            total = max(self._total, total)
        rule = self._rules[id(optimizer)]
        return rule.factor(total_batch=total, gain=self.gain, base_steps=self._meter.base_steps)
