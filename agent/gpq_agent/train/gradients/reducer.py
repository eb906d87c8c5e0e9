"""Averages gradients over replicas: some through DistributedDataParallel's hooks, the others
itself.

It handles parameters outside the wrapped models, and those that are not used in every backward
call. It also handles a second backward call of one graph, which DDP ignores silently.
"""

from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpq_agent.train.data.batches import Micro
from gpq_agent.train.gradients.ddp_buckets import DdpBuckets, Parameter, Share
from gpq_agent.train.gradients.noise_scale import chunks
from gpq_agent.train.gradients.probe import GradientProbe
from gpq_agent.train.internals import version_of
from gpq_agent.train.process.process_group import finish

CHUNK = 1 << 22  # elements to reduce at once
Mark = Tuple[Optional[torch.Tensor], int]  # a gradient and its version, (None, -1) without one
Marks = Dict[Parameter, Mark]


def mark(parameter: Parameter) -> Mark:
    """A mark of the current `p.grad`, so that any later change shows."""
    gradient = parameter.grad
    return (None, -1) if gradient is None else (gradient, version_of(gradient))


def is_marked(parameter: Parameter, marks: Marks) -> bool:
    """Is `p.grad` as it was when it was marked?"""
    previous, version = marks[parameter]
    gradient = parameter.grad
    return gradient is previous and (gradient is None or version_of(gradient) == version)


class Reducer:
    """One per job with several replicas, which must run the same backward calls in the same order.

    models: the wrapped models. count: the number of replicas.
    control: a group for small CPU tensors, for agreements.
    """

    def __init__(
        self,
        models: Sequence[DistributedDataParallel],
        probe: GradientProbe,
        control: Any,
        count: int,
    ) -> None:
        self.share = Share()
        self.buckets = [DdpBuckets(model, self.share, probe, count) for model in models]
        self._count = count
        self._only = self.buckets[0] if len(self.buckets) == 1 else None
        self._control = control
        self._marks: Optional[Marks] = None  # None: the call reaches all parameters
        self._parameters: List[Parameter] = []
        self._synchronises = True  # in this micro-batch
        self._is_even = True  # a whole step with equal shares
        self._is_behind = False  # the script kept gradients to each replica, with no_sync()
        self._group: Any = self.buckets[0].group if self.buckets else None
        # The parameters that no wrapped model reduces: those of a criterion, or unfrozen later.
        self._strangers: List[Parameter] = []
        self._among: List[Parameter] = []  # of this list: another one if an optimizer changes
        self._knows_reach = False  # it is certain what the wrapped models reduce

    def follow(self) -> None:
        """Only weigh what the models reduce themselves."""
        for buckets in self.buckets:
            buckets.knows_reach = True

    def share_buffers(self) -> None:
        """Give all replicas rank 0's buffers. Collective."""
        for buckets in self.buckets:
            buckets.share_buffers()

    # -- around a micro-batch --------------------------------------------------------------------

    def enter(self, micro: Micro) -> None:
        """Gradients are reduced in the last micro-batch of a step."""
        self._synchronises = micro.last
        self._is_even = not micro.in_pieces
        accumulates = micro.place > 0 or not micro.last
        if self._is_behind and micro.in_pieces:  # earlier gradients have another weight
            self._is_behind = False
            self.average(self._parameters)
        for buckets in self.buckets:
            buckets.has_reduced = False
            if accumulates and not buckets.can_accumulate and not buckets.ddp_bypassed:
                buckets.bypass_ddp()
            is_reduced = micro.last and not buckets.ddp_bypassed
            if buckets.synchronises != is_reduced:
                buckets.synchronise(is_reduced)

    def enter_again(self) -> None:
        """A step in one piece, like the one before."""
        for buckets in self.buckets:
            buckets.has_reduced = False
            buckets.synchronise(not buckets.ddp_bypassed)

    def suspend(self) -> None:
        """Until `leave` no call is reduced."""
        for buckets in self.buckets:
            buckets.synchronise(False)

    def leave(self) -> None:
        """Outside the loop a model is as the script made it, unless DDP is bypassed."""
        for buckets in self.buckets:
            if buckets.synchronises == buckets.ddp_bypassed:
                buckets.synchronise(not buckets.ddp_bypassed)

    # -- around a backward call ------------------------------------------------------------------

    def backward_begins(self, parameters: List[Parameter], partial: bool) -> None:
        """`partial`: the call may reach only some parameters, and it matters which."""
        self._parameters = parameters
        self._marks = None
        if self._synchronises:
            # Does the hook of one model reduce all of these, as far as it can tell?
            only = self._only
            is_plain = only is not None and only.knows_reach and only.synchronises
            if partial or not is_plain or self._outside(parameters):
                self._marks = {item: mark(item) for item in parameters}
        for buckets in self.buckets:
            buckets.backward_begins()

    def _outside(self, parameters: List[Parameter]) -> List[Parameter]:
        """The parameters that no wrapped model reduces, and that may have a gradient now."""
        if self._among is not parameters or not self._knows_reach:
            inside = set().union(*(buckets.reach for buckets in self.buckets))
            self._knows_reach = all(buckets.knows_reach for buckets in self.buckets)
            self._among = parameters
            self._strangers = [item for item in parameters if item not in inside]
        return self._strangers and [item for item in self._strangers if item.requires_grad]

    def backward_ends(self, *, with_sums: bool) -> None:
        """Reduce what the hooks did not. `with_sums`: the call completes the step. The hooks have
        added the sums of what they reduced."""
        if not self._synchronises:
            return
        only = self._only
        if self._marks is None and only is not None and only.complete:  # all of them, by its hook
            only.finish()
            self._is_behind = False
            return
        marks, recipients = self._marks, None
        if marks is not None:
            recipients = {item for item in self._parameters if not is_marked(item, marks)}
        averages: Set[Parameter] = set()
        unreduced: List[Parameter] = []
        for buckets in self.buckets:
            if buckets.synchronises and buckets.complete:
                buckets.finish()
                self._is_behind = False
                averages |= buckets.reach
            elif recipients is None or not recipients.isdisjoint(buckets.parameters):
                if buckets.is_suspended and self._is_even:
                    self._is_behind = True  # until a call that the script lets DDP reduce
                    averages |= buckets.reach
                    continue
                if buckets.synchronises and not (buckets.has_reduced or buckets.is_suspended):
                    # Some parameters have no gradient. DDP waits for them, and would raise in the
                    # next forward pass.
                    buckets.bypass_ddp()
                    if buckets.keeps_views:  # those that arrived are reduced anyway
                        averages.update(buckets.arrivals)
                unreduced += [item for item in buckets.parameters if item not in averages]
        unreduced += self._outside(self._parameters)
        if unreduced:
            own_sums = dict(self.share.sums) if with_sums else {}
            for item in averages:
                own_sums.pop(id(item), None)
            self._reduce(unreduced, recipients, own_sums, self.share.weight)
        self._marks = None

    def average(self, parameters: Sequence[Parameter]) -> None:
        """Average `p.grad`, for the same parameters on every replica. Collective."""
        self._reduce(parameters, None, {}, 1.0)

    # -- without DDP -----------------------------------------------------------------------------

    def _reduce(
        self,
        parameters: Sequence[Parameter],
        recipients: Optional[Set[Parameter]],
        sums: Dict[int, torch.Tensor],
        weight: float,
    ) -> None:
        """Average weight * `p.grad` of the recipients + the sums, if any replica has either.
        `recipients`: None for all parameters with a gradient. Collective."""
        parameters = list(dict.fromkeys(parameters))
        if recipients is None:
            recipients = {item for item in parameters if item.grad is not None}
        votes = torch.tensor([int(item in recipients or id(item) in sums) for item in parameters])
        finish(dist.all_reduce(votes, dist.ReduceOp.MAX, group=self._control, async_op=True))
        dense: List[Parameter] = []
        for parameter, vote in zip(parameters, votes.tolist()):
            if not vote:
                continue
            # This replica's share of the mean goes into `p.grad` itself, because a copy would cost
            # too much. A gradient from before the call has the same weight, because it is the same
            # on every replica. The sum is used up.
            part = sums.get(id(parameter))
            with torch.no_grad():
                if part is not None:
                    part.mul_(self.share.unit / self._count)
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter) if part is None else part
                else:
                    parameter.grad.mul_(weight / self._count)
                    if part is not None:
                        parameter.grad.add_(part)
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
                dist.all_reduce(parameter.grad, group=self._group)
            else:
                dense.append(parameter)
        kinds: Dict[Tuple[str, str], List[Parameter]] = {}  # by type and device of their gradients
        for item in dense:
            assert item.grad is not None
            kinds.setdefault((str(item.grad.dtype), str(item.grad.device)), []).append(item)
        for kind in sorted(kinds):
            for chunk in chunks(kinds[kind], CHUNK):
                self._sum(chunk)

    def _sum(self, parameters: List[Parameter]) -> None:
        """Sum over replicas, in one buffer that is freed before the next."""
        gradients = [item.grad.detach() for item in parameters if item.grad is not None]
        buffer = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(buffer, group=self._group)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, total in zip(gradients, torch.split(buffer, sizes)):
            gradient.copy_(total.view_as(gradient))
