"""Batch norm over groups of examples (ghost batch norm, Hoffer et al. 2017), the same groups in any
micro-batches on any number of replicas.

In the body of a loop each layer normalises its batch group by group. Running statistics change once
per step, when the last backward call returns: they get the mean over all groups of the step. A
forward pass counts if a backward call follows it. Computing one again, as checkpointing does,
changes no mean. Elsewhere layers work as in plain PyTorch.
"""

import operator
from itertools import accumulate, chain
from math import nan
from typing import Any, Dict, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch.nn import functional

from gpq_agent.train.data.batches import group_sizes
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.internals import BatchNorm, check_input, foreach_copy_
from gpq_agent.train.process.process_group import finish

SIZE = "it is the number of examples that batch norm normalises together, such as 32"


class Groups:
    """What all grouped layers of a job share, and copies of them too.

    size: examples in a group, 0 without groups.
    examples: of the current micro-batch, 0 outside of one, where layers are plain.
    stray_rows: of a layer that got other rows than these examples, or whose statistics nobody
    collects. 0 without one.
    """

    def __init__(self) -> None:
        self.size = self.examples = self.stray_rows = 0

    def __deepcopy__(self, memo: Any) -> "Groups":
        return self


class GroupedLayer(BatchNorm):
    """A layer of batch norm that keeps its parameters, its buffers and their names.

    is_collected: its model was given to job.prepare().
    statistics: of the forward passes since they were last collected, None without one. Sums over
    the passes, of shape (3, channels): the mean over groups of their means, of their unbiased
    variances, and 1.
    last_momentum: of the newest of these passes.
    """

    groups: Groups
    is_collected: bool
    statistics: Optional[torch.Tensor]
    last_momentum: Optional[float] = None

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.is_collected = False  # a copy, which job.prepare() does not know

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        groups, rows = self.groups, input.shape[0]
        if not groups.examples or not (self.training or self.running_mean is None):
            return super().forward(input)
        check_input(self, input)
        if input.numel() == input.shape[1]:
            problem = "a step has a single example, and batch norm needs two"
            raise GpqTrainError(problem, "use drop_last=True, or another batch size")
        if rows != groups.examples or not self.is_collected:
            groups.stray_rows = rows
        rest = rows % groups.size
        if not rest:
            return self._normalise(input, groups.size, 1.0)
        if rest == 1 and rows > 1:
            rest += groups.size
        head, tail = torch.split(input, [rows - rest, rest])
        sizes = group_sizes(rest, groups.size)
        parts = list(zip(torch.split(tail, sizes), sizes))
        if rows > rest:
            parts.insert(0, (head, groups.size))
        normal = [self._normalise(part, size, part.shape[0] / rows) for part, size in parts]
        return torch.cat(normal)

    def _normalise(self, input: torch.Tensor, size: int, share: float) -> torch.Tensor:
        """A part of a batch, in groups of `size`. `share`: of the batch."""
        channels, count = input.shape[1], input.shape[0] // size
        # By group. Momentum 1 replaces the running statistics by those of the batch.
        values: Any = (None, None)
        if self.running_mean is not None:
            values = self.running_mean.new_ones((3, count * channels))
        weight: Any = self.weight
        bias: Any = self.bias
        if count > 1:
            weight, bias = (item if item is None else item.repeat(count) for item in (weight, bias))
        # Row i belongs to group i modulo count, so the groups of a row are like more channels.
        output = functional.batch_norm(
            _columns(input, count), values[0], values[1], weight, bias, True, 1.0, self.eps
        )
        if self.running_mean is not None and self.momentum != 0:
            statistics = values.view(3, count, channels).mean(1)
            if share < 1.0:
                statistics = statistics * share
            earlier = self.statistics
            self.statistics = statistics if earlier is None else earlier + statistics
            self.last_momentum = self.momentum
        normal: torch.Tensor = _rows(output, count)
        return normal


def _columns(input: Any, count: int) -> Any:
    """(size * count, channels, ...) -> (size, count * channels, ...), without a copy if channels
    are not last in memory."""
    if count == 1:
        return input
    if not _is_channels_last(input):
        return input.unflatten(0, (-1, count)).flatten(1, 2)
    table = input.movedim(1, -1).unflatten(0, (-1, count))
    return table.movedim(1, -2).flatten(-2).movedim(-1, 1)


def _rows(columns: Any, count: int) -> Any:
    """The inverse."""
    if count == 1:
        return columns
    if not _is_channels_last(columns):
        return columns.unflatten(1, (count, -1)).flatten(0, 1)
    table = columns.movedim(1, -1).unflatten(-1, (count, -1))
    return table.movedim(-2, 1).flatten(0, 1).movedim(-1, 1)


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 3 and not tensor.is_contiguous() and tensor.movedim(1, -1).is_contiguous()


class GroupedBatchNorm1d(GroupedLayer, torch.nn.BatchNorm1d):
    """A BatchNorm1d."""


class GroupedBatchNorm2d(GroupedLayer, torch.nn.BatchNorm2d):
    """A BatchNorm2d."""


class GroupedBatchNorm3d(GroupedLayer, torch.nn.BatchNorm3d):
    """A BatchNorm3d."""


# Subclasses of a script may do more, so they stay as they are.
KINDS = {kind.__bases__[1]: kind for kind in GroupedLayer.__subclasses__()}


class GroupedNorms:
    """One per job: all grouped layers, and their running statistics."""

    def __init__(self) -> None:
        self.groups = Groups()
        # Of the prepared models, with running statistics. Tensors below are of all these layers.
        self._layers: List[GroupedLayer] = []
        self._process_group: Any = None  # to reduce over, None for one replica
        self._widths: List[int] = []  # channels of each layer
        self._owners = self._firsts = torch.zeros(0)  # of a channel its layer, of a layer its first
        self._running: List[torch.Tensor] = []  # means, then variances
        self._counters: List[torch.Tensor] = []  # of updates
        # Their values at the start of the step, of shape (2, channels) and (layers).
        self._before = self._counts_before = torch.zeros(0)
        # GroupedLayer.statistics, each times its examples, of the step so far: (3, channels)
        self._sums = torch.zeros(0)
        self._momenta: List[Optional[float]] = []
        self._rates = torch.zeros(0)  # these, NaN for None, of shape (layers)
        self._is_changed = False  # the running values differ from those at the start

    def convert(self, model: torch.nn.Module, size: Any) -> None:
        """Group the layers of a model. Raises GpqTrainError for a size that makes no groups, or is
        not that of another model."""
        try:
            number = operator.index(size)
        except TypeError:
            number = 0
        if number < 2:
            problem = "batch_norm must be a whole number of at least 2, not {!r}".format(size)
            raise GpqTrainError(problem, SIZE)
        if self.groups.size not in (0, number):
            words = "batch_norm is {} for one model and {} for another"
            raise GpqTrainError(words.format(self.groups.size, number), "use one number")
        self.groups.size = number
        for layer in model.modules():
            if type(layer) in KINDS:
                layer.__class__ = KINDS[type(layer)]
                layer.__dict__.update(groups=self.groups, is_collected=False, statistics=None)

    def collect(self, models: Sequence[torch.nn.Module], process_group: Any) -> None:
        """From now on, of the layers of these models. `process_group`: None for one replica."""
        self._process_group = process_group
        for layer in dict.fromkeys(chain.from_iterable(model.modules() for model in models)):
            if isinstance(layer, GroupedLayer):
                layer.is_collected = True
                if layer.running_mean is not None:
                    self._layers.append(layer)
        if self._layers:
            self._widths = [layer.num_features for layer in self._layers]
            mean: Any = self._layers[0].running_mean
            owners = torch.arange(len(self._widths)).repeat_interleave(torch.tensor(self._widths))
            firsts = [0, *accumulate(self._widths)][:-1]
            self._owners = owners.to(mean.device)
            self._firsts = torch.tensor(firsts, device=mean.device)

    # -- around a step, a micro-batch and a backward call ------------------------------------------

    def begin_step(self) -> None:
        """Every replica has the same running statistics now."""
        layers = self._layers
        if not layers:
            return
        buffers: List[Any] = [layer.running_mean for layer in layers]
        self._running = buffers + [layer.running_var for layer in layers]
        counters: List[Any] = [layer.num_batches_tracked for layer in layers]
        self._counters = counters
        before = torch.cat(self._running).view(2, -1)
        self._before = before.to(torch.promote_types(before.dtype, torch.float32))
        self._counts_before = torch.stack(self._counters)
        self._sums = self._before.new_zeros((3, sum(self._widths)))
        self._is_changed = False

    def enter(self, examples: int) -> None:
        """The body for a micro-batch of so many rows is about to run."""
        self.groups.examples = examples if self.groups.size else 0

    @property
    def stray(self) -> str:
        """A layer whose groups depend on the micro-batches, or "". Asked in a body that had it."""
        rows = self.groups.stray_rows
        if not rows:
            return ""
        if rows == self.groups.examples:
            return "a layer of a model that job.prepare() was not given"
        return "a layer with {} rows for {} examples".format(rows, self.groups.examples)

    def pass_ended(self, examples: int, *, last: bool) -> None:
        """A backward call ended. `examples`: those of the micro-batch that count. `last`: of the
        step, and then this is collective."""
        if not self._layers:
            return
        statistics = [layer.statistics for layer in self._layers]
        if examples and any(item is not None for item in statistics):
            pairs = zip(statistics, self._widths)
            empty = self._sums.new_zeros
            parts = [empty((3, width)) if item is None else item for item, width in pairs]
            self._sums += torch.cat(parts, 1) * examples
        self._forget()
        if last:
            self._update()

    def leave(self, *, drop: bool) -> None:
        """The body is over. `drop`: nothing of its step counts."""
        self.groups.examples = self.groups.stray_rows = 0
        self._forget()
        if drop and self._is_changed:
            self._set(self._before, self._counts_before)
            self._is_changed = False

    def _forget(self) -> None:
        for layer in self._layers:
            layer.statistics = None

    def _update(self) -> None:
        """From the values at the start of the step, because a second backward call may follow."""
        sums = self._sums.clone()
        if self._process_group is not None:
            finish(dist.all_reduce(sums, group=self._process_group, async_op=True))
        weights = sums[2]
        # A layer without a pass in this step stays as it is.
        targets = torch.where(weights > 0, sums[:2] / weights, self._before)
        counts = self._counts_before + (weights[self._firsts] > 0)
        momenta = [layer.last_momentum for layer in self._layers]
        if momenta != self._momenta:
            values = [nan if momentum is None else momentum for momentum in momenta]
            self._momenta, self._rates = momenta, sums.new_tensor(values)
        rates = torch.where(self._rates.isnan(), 1 / counts.clamp(min=1), self._rates)
        self._set(torch.lerp(self._before, targets, rates[self._owners]), counts)
        self._is_changed = True

    @torch.no_grad()
    def _set(self, values: torch.Tensor, counts: torch.Tensor) -> None:
        parts = [part for row in values for part in row.split(self._widths)]
        foreach_copy_(self._running, parts)
        foreach_copy_(self._counters, list(counts.unbind()))
