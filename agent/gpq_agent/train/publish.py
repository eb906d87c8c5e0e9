"""Turns measurements into report lines: timing, noise, progress, metrics. Runs at agreed steps, on every replica."""

from typing import Any, Dict, Optional, Tuple

import torch

from gpq_agent import wire

from .agreement import Agreement
from .batches import Limits
from .noise_scale import NoiseScale
from .report import Reporter
from .timing import StepTimes


class Publisher:
    """`nodes` and `replicas` are those of this attempt: part of what a timing is a timing of."""

    def __init__(self, report: Reporter, agreement: Agreement, nodes: int, replicas: int) -> None:
        self._report = report
        self._agreement = agreement
        self._nodes = nodes
        self._replicas = replicas
        self._metrics: Dict[str, Any] = {}

    def log(self, values: Dict[str, Any]) -> None:
        """Keep the newest of each; tensors stay where they are until they are published."""
        for name, value in values.items():
            self._metrics[name] = value.detach() if isinstance(value, torch.Tensor) else value

    def publish(
        self, times: StepTimes, current: Tuple[int, int], noise: Optional[NoiseScale], progress: wire.Progress
    ) -> None:
        """One round of lines. All replicas must call it at the same step: the slowest one's times are what counts."""
        self._timing(times, current)
        self._report.reported()
        if not self._report.active:
            self._metrics.clear()
            return
        if noise is not None and noise.samples > 0:
            content = wire.Noise(noise.sqr, noise.var, noise.samples, noise.biased, noise.preconditioned, noise.capped)
            self._report.send("noise", content._asdict())
        self._report.send("progress", progress._asdict())
        if self._metrics:
            values = {name: float(value) for name, value in sorted(self._metrics.items())}
            self._metrics.clear()
            finite = {name: value for name, value in values.items() if abs(value) < float("inf")}
            self._report.send("metrics", {"step": progress.step, "values": finite})

    def _timing(self, times: StepTimes, current: Tuple[int, int]) -> None:
        flushed = times.flush()
        here = [accum.total / accum.number for key, accum, _ in flushed if key == current and accum.number]
        # Steps end together, so rank 0's times are everybody's; gradients are ready when the slowest replica's are.
        slowest = self._agreement.maximum([here[0] if here else 0.0])[0]
        for key, accum, step in flushed:
            total, squares = accum.total, accum.squares
            if key == current and here and here[0] > 0.0:
                ratio = slowest / here[0]
                total, squares = total * ratio, squares * ratio * ratio
            content = wire.Timing(
                self._nodes, self._replicas, key[0], key[1],
                accum.number, total, squares,
                step.number, step.total, step.squares,
            )  # fmt: skip
            self._report.send("timing", content._asdict())


def declaration(limits: Limits, size: int, epochs: int, rule: str, model: torch.nn.Module) -> wire.Declared:
    """What the script says of itself; `size`: examples of an epoch. With a fixed batch it is resizable, no more."""
    return wire.Declared(
        level="resizable" if limits.fixed else "adaptive",
        batch_size=limits.base_batch,
        max_batch_size=limits.max_batch,
        max_atomic_batch=limits.max_local,
        dataset_size=size,
        epochs=epochs,
        rule=rule,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )
