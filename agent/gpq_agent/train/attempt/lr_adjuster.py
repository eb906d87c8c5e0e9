"""Sets learning rates and betas for the batch of a step."""

from typing import Any, Sequence

from gpq_agent.train.data.batches import Limits
from gpq_agent.train.noise.noise_scale import NoiseScale
from gpq_agent.train.optim.lr_rules import UNCHANGED, Adjustment, Rule, betas_power
from gpq_agent.train.optim.progress import ProgressMeter

from .shape import BatchSource


class LrAdjuster:
    """`gain`: how many steps at the base batch the current step is worth (AdaScale)."""

    def __init__(
        self,
        data: BatchSource,
        meter: ProgressMeter,
        optimizers: Sequence[Any],
        rules: Sequence[Rule],
        *,
        scale_betas: bool,
    ) -> None:
        self.gain = 1.0
        self._limits: Limits = data.limits
        self._noise: NoiseScale = data.noise
        self._meter = meter
        self._rules = {id(optimizer): rule for optimizer, rule in zip(optimizers, rules)}
        self._scale_betas = scale_betas and not data.limits.fixed
        self._total = data.limits.base_batch

    def begin_step(self, total: int) -> None:
        """For this number of examples."""
        self._total = total
        self.gain = 1.0 if self._limits.fixed else max(self._noise.gain(total), 1.0)

    def adjustment(self, optimizer: Any) -> Adjustment:
        """For the current step."""
        base, total = self._limits.base_batch, self._total
        if total == base and self.gain == 1.0 and self._rules[id(optimizer)].is_neutral:
            return UNCHANGED
        betas = 1.0
        if self._scale_betas:
            betas = betas_power(optimizer, total_batch=total, base_batch=base)
        return Adjustment(self.factor(optimizer), betas)

    def factor(self, optimizer: Any) -> float:
        """The factor on the learning rate."""
        total = self._limits.base_batch
        if (
            not self._limits.fixed
        ):  # batches of a batch sampler differ, and the rate is right for all of them
            total = max(self._total, total)
        rule = self._rules[id(optimizer)]
        return rule.factor(total_batch=total, gain=self.gain, base_steps=self._meter.base_steps)
