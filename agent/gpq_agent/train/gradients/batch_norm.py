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
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gpq_agent.train.data.batches import group_sizes
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.internals import (
    BatchNorm,
    batch_norm_sums,
    batch_norm_update_stats,
    check_input,
    foreach_copy_,
)
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

    def _normalise(self, input: Any, size: int, share: float) -> torch.Tensor:
        """A part of a batch, in groups of `size`. `share`: of the batch."""
        channels, count = input.shape[1], input.shape[0] // size
        # By group. Momentum 1 replaces the running statistics by those of the batch.
        values: Any = [None, None]
        if self.running_mean is not None:
            values = self.running_mean.new_ones((3, count * channels))
        mean, variance = values[0], values[1]
        weight: Any = self.weight
        bias: Any = self.bias
        output: torch.Tensor
        if count == 1:
            output = functional.batch_norm(input, mean, variance, weight, bias, True, 1.0, self.eps)
        elif _is_channels_last(input) and not torch.compiler.is_compiling():
            if weight is None:
                weight, bias = input.new_ones(channels), input.new_zeros(channels)
            apply: Any = _ChannelsLast.apply
            output, values[0], values[1] = apply(input, weight, bias, count, self.eps)
        else:
            # Row i belongs to group i modulo count, so the groups of a row are like more channels.
            columns = input.unflatten(0, (-1, count)).flatten(1, 2)
            if weight is not None:
                weight, bias = weight.repeat(count), bias.repeat(count)
            normal: Any = functional.batch_norm(
                columns, mean, variance, weight, bias, True, 1.0, self.eps
            )
            output = normal.unflatten(1, (count, -1)).flatten(0, 1)
        if self.running_mean is not None and self.momentum != 0:
            statistics = values.view(3, count, channels).mean(1)
            if share < 1.0:
                statistics = statistics * share
            earlier = self.statistics
            self.statistics = statistics if earlier is None else earlier + statistics
            self.last_momentum = self.momentum
        return output


class _ChannelsLast(torch.autograd.Function):
    """Batch norm of several groups whose channels are last in memory, without a copy.

    The batch is a table with a row for each row of a group, and a column for each group, position
    and channel. To torch's kernels a column is a channel. The statistics of a group are those of
    its columns together. Tensors by group have shape (count, 1, channels).
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        count: int,
        eps: float,
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Also returns means and unbiased variances, each of shape (count * channels)."""
        table = _table(input, count)
        exact = torch.promote_types(input.dtype, torch.float32)
        means, variances = table.new_zeros((2, table.shape[1]), dtype=exact)
        batch_norm_update_stats(table, means, variances, 1.0)
        columns = count, -1, input.shape[1]
        variance, mean = torch.var_mean(means.view(columns), 1, correction=0, keepdim=True)
        within = variances.view(columns).mean(1, keepdim=True)  # unbiased
        variance += within * (1 - 1 / table.shape[0])
        scale, shift = weight.to(exact).expand_as(mean), bias.to(exact).expand_as(mean)
        by_group = mean, variance, scale, shift
        means, variances, scales, shifts = (_by_column(item, table) for item in by_group)
        output = functional.batch_norm(table, means, variances, scales, shifts, eps=eps)
        ctx.save_for_backward(input, mean, (variance + eps).rsqrt(), scale)
        examples = input.numel() / mean.numel()
        statistics = mean.flatten(), variance.flatten() * (examples / (examples - 1))
        ctx.mark_non_differentiable(*statistics)
        return (_batch(output, input), *statistics)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, *unused: Any) -> Any:
        input, mean, inverse, scale = ctx.saved_tensors
        table, gradient = _table(input, len(mean)), _table(gradient, len(mean))
        # Of each column, the sums of the gradient, and of its products with the normalised input.
        values = [_by_column(item, table) for item in (mean, inverse)]
        sums = batch_norm_sums(gradient, table, *values)
        columns = len(mean), -1, input.shape[1]
        products, plain = (item.view(columns).sum(1, keepdim=True) for item in sums)
        examples = input.numel() / mean.numel()
        factor = scale * inverse
        slope = -factor * inverse * products / examples
        offset = -factor * plain / examples - slope * mean
        factor, slope, offset = (_by_column(item, table) for item in (factor, slope, offset))
        result = torch.addcmul(offset, table, slope).addcmul_(gradient, factor)
        return _batch(result, input), products.sum((0, 1)), plain.sum((0, 1)), None, None


def _table(batch: torch.Tensor, count: int) -> torch.Tensor:
    return batch.movedim(1, -1).reshape(batch.shape[0] // count, -1)


def _batch(table: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """The inverse, of the shape of `batch`."""
    return table.view_as(batch.movedim(1, -1)).movedim(-1, 1)


def _by_column(item: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Values by group, repeated for each position."""
    return item.expand(-1, table.shape[1] // item.numel(), -1).flatten()


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
