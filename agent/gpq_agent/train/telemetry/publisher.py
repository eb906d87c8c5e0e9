"""Turns measurements into report lines: timing, noise, progress, metrics, losses.

Runs at agreed steps, on every replica.
"""

import math
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple

import torch

from gpq_agent import wire
from gpq_agent.train.data.batches import Limits
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.runtime.agreement import Agreement
from gpq_agent.train.telemetry.report import Reporter
from gpq_agent.train.telemetry.timing import StepTimes

if TYPE_CHECKING:
    from gpq_agent.train.noise.noise_scale import NoiseScale

METRIC = "loss"  # the only name that makes a curve


class Publisher:
    """`nodes` and `replicas` are those of this attempt and its timings."""

    def __init__(self, report: Reporter, agreement: Agreement, nodes: int, replicas: int) -> None:
        self._report = report
        self._agreement = agreement
        self._nodes = nodes
        self._replicas = replicas
        self._metrics: Dict[str, Any] = {}
        self._losses = LossWindow()

    def log(self, values: Mapping[str, Any], base_steps: float = 0.0) -> None:
        """Keep the newest value of each metric, and the mean of the loss. Raises GpqTrainError.

        The loss was logged at `base_steps` of progress. Tensors stay in place until they are
        published.
        """
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
                self._metrics[name] = value.detach()
                continue
            try:
                self._metrics[name] = float(value)
            except (TypeError, ValueError, OverflowError, RuntimeError):
                shape = ""
                if isinstance(value, torch.Tensor):
                    shape = " of shape {}".format(tuple(value.shape))
                words = "job.log({}=...) needs one number, not a {}{}"
                raise GpqTrainError(
                    words.format(name, type(value).__name__, shape),
                    "pass a float or a tensor with one element",
                ) from None
        if METRIC in values and self._report.active:
            self._losses.add(self._metrics[METRIC], base_steps)

    def metrics(self, step: int) -> None:
        """Send what was logged since the last time.

        A value that is not finite is sent as text, and a mean over it is left out.
        """
        if self._metrics and self._report.active:
            values = {name: float(value) for name, value in sorted(self._metrics.items())}
            plain = {
                name: value if math.isfinite(value) else str(value)
                for name, value in values.items()
            }
            self._report.send("metrics", {"step": step, "values": plain})
        self._metrics.clear()
        loss = self._losses.close()
        if loss is not None:
            self._report.send("loss", loss._asdict())

    def publish(
        self,
        times: StepTimes,
        current: Tuple[int, int],
        noise: "Optional[NoiseScale]",
        progress: wire.Progress,
    ) -> None:
        """Send one round of lines. All replicas must call it at the same step.

        The times of the slowest replica count.
        """
        self._timing(times, current)
        self._report.reported()
        if not self._report.active:
            self._metrics.clear()
            return
        if noise is not None and noise.samples > 0:
            content = wire.Noise(
                noise.sqr,
                noise.var,
                noise.samples,
                preconditioned=noise.preconditioned,
                capped=noise.capped,
            )
            self._report.send("noise", content._asdict())
        self._report.send("progress", progress._asdict())
        self.metrics(progress.step)

    def ranks(self, times: StepTimes, step: int) -> None:
        """Compare all replicas. Collective if there are several."""
        if self._replicas == 1:
            return
        table = self._agreement.gather(times.window())
        self._report.window_closed()
        if all(row[0] > 0 for row in table):
            steps, *columns = (list(column) for column in zip(*table))
            rounded_columns = [
                [float("{:.4g}".format(value)) for value in column] for column in columns
            ]
            counts = [int(count) for count in steps]
            content = wire.RankTimes(step, counts, *rounded_columns)
            self._report.send("ranks", content._asdict())

    def _timing(self, times: StepTimes, current: Tuple[int, int]) -> None:
        entries = times.flush()
        own_means = [
            accum.total / accum.number
            for key, accum, _ in entries
            if key == current and accum.number
        ]
        # Steps end together, so rank 0's times hold for all. Gradients are ready when those of the
        # slowest replica are.
        slowest = self._agreement.all_reduce_max([own_means[0] if own_means else 0.0])[0]
        for key, accum, step in entries:
            total, squares = accum.total, accum.squares
            if key == current and own_means and own_means[0] > 0.0:
                ratio = slowest / own_means[0]
                total, squares = total * ratio, squares * ratio * ratio
            content = wire.Timing(
                self._nodes, self._replicas, key[0], key[1],
                accum.number, total, squares,
                step.number, step.total, step.squares,
            )  # fmt: skip
            self._report.send("timing", content._asdict())


def declaration(
    limits: Limits, size: int, epochs: int, rule: str, models: Sequence[torch.nn.Module]
) -> wire.Declared:
    """What the script says about itself. `size`: examples per epoch.

    With a fixed batch it is only resizable.
    """
    return wire.Declared(
        level="resizable" if limits.fixed else "adaptive",
        batch_size=limits.base_batch,
        max_batch_size=limits.max_batch,
        max_atomic_batch=limits.max_local,
        dataset_size=size,
        epochs=epochs,
        rule=rule,
        parameters=sum(parameter.numel() for model in models for parameter in model.parameters()),
    )


class LossWindow:
    """The mean of the values of `job.log(loss=...)` since the last report.

    Sums stay on the device of each loss, so that only `close` must wait for it.
    """

    def __init__(self) -> None:
        self._sums: Dict[Optional[torch.device], Any] = {}  # None: plain numbers
        self._count = 0
        self._base_steps = 0.0

    def add(self, value: Any, base_steps: float) -> None:
        """One loss, a float or a tensor of one element, logged at `base_steps` of progress."""
        device = None
        if isinstance(value, torch.Tensor):
            device, value = value.device, value.detach().reshape(()).float()
        # Never in place, because the tensor belongs to the script.
        self._sums[device] = self._sums.get(device, 0.0) + value
        self._count += 1
        self._base_steps += base_steps

    def close(self) -> Optional[wire.Loss]:
        """The mean, at the mean progress. Starts a new window.

        None if nothing was logged, or if something was not finite.
        """
        count, progress = self._count, self._base_steps
        total = sum(float(part) for part in self._sums.values())
        self._sums, self._count, self._base_steps = {}, 0, 0.0
        if not count or not math.isfinite(total):
            return None
        return wire.Loss(round(progress / count, 3), total / count)
