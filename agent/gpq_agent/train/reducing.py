"""Averages gradients over replicas: by the hook of each DistributedDataParallel, and by itself what those do not reach.

That is what lies outside the wrapped models (parameters of a criterion), was unfrozen after wrapping, or is not used in every
pass; and a second backward pass of one graph, which DDP passes over in silence.
"""

import weakref
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.scatter_gather import scatter_kwargs

from . import internals
from .internals import version_of
from .probe import GradientProbe

CHUNK = 1 << 22  # elements that are reduced at once

Parameter = torch.nn.Parameter
Marks = Dict[Parameter, Tuple[Optional[torch.Tensor], int]]


def mark(parameter: Parameter) -> Tuple[Optional[torch.Tensor], int]:
    """What is in `p.grad`, so that any change to it can be seen: the tensor and its version."""
    return mark_of(parameter.grad)


def mark_of(gradient: Optional[torch.Tensor]) -> Tuple[Optional[torch.Tensor], int]:
    return (None, -1) if gradient is None else (gradient, version_of(gradient))


def is_marked(parameter: Parameter, marks: Marks) -> bool:
    """Is `p.grad` as it was when it was marked?"""
    return is_as(parameter, *marks.get(parameter, (None, -1)))


def is_as(parameter: Parameter, known: Optional[torch.Tensor], version: int) -> bool:
    """Is `p.grad` this tensor, at this version?"""
    gradient = parameter.grad
    return gradient is known and (gradient is None or version_of(gradient) == version)


class Reducer:
    """One per job with several replicas. All replicas must run the same passes in the same order.

    `models` are the wrapped models; `control`: a group for small tensors of the CPU, for what has to be agreed on.
    """

    def __init__(
        self, models: Sequence[DistributedDataParallel], probe: GradientProbe, control: Any, count: int
    ) -> None:
        self.last_ready: Any = None  # mark of a StepClock: when the last local gradient of a pass was ready
        self.count = count
        self.probe = probe
        self.sums: Dict[Parameter, torch.Tensor] = {}
        self.unit = 1.0
        self.weight = 1.0
        self.buckets = [_Buckets(model, self) for model in models]
        self._control = control
        self._marks: Optional[Marks] = None
        self._parameters: List[Parameter] = []
        self._synchronised = True
        self._group: Any = self.buckets[0].group if self.buckets else None
        self._inside: Optional[Set[Parameter]] = None
        self._settled = False  # what the wrapped models reduce is known
        self._strangers: List[Parameter] = []  # what they do not, of this list of parameters:
        self._strangers_of: List[Parameter] = []

    @property
    def own_hooks(self) -> bool:
        """Has a model a communication hook of the script's?"""
        return any(not each.hooked for each in self.buckets)

    def follow(self) -> None:
        """Only weigh what the models reduce by themselves."""
        for each in self.buckets:
            each.learnt = True

    # -- around a micro-batch ------------------------------------------------------------------------------------------

    def enter(self, last: bool, *, accumulates: bool, even: bool) -> None:
        """`last`: gradients are reduced in this micro-batch; `accumulates`: it is not the only one; `even`: all replicas have
        equally much of the step. The same on every replica."""
        self._synchronised = last
        for each in self.buckets:
            each.done = False
            if accumulates and not each.accumulates and not each.loose:
                each.loosen()
            each.synchronise(last and not each.loose and (each.hooked or (even and not accumulates)))

    def weigh(self) -> None:
        """Replicas weigh what is their own: a hook of the script's would average it as it is."""
        for each in self.buckets:
            if not each.hooked and not each.loose:
                each.loosen()

    def leave(self) -> None:
        """Outside the loop over the loader a model is as the script made it, unless that has been seen not to work."""
        for each in self.buckets:
            each.synchronise(not each.loose)

    def begin_pass(
        self, parameters: List[Parameter], sums: Dict[Parameter, torch.Tensor], unit: float, weight: float, watch: bool
    ) -> None:
        """`sums`, times `unit`, are added to what the pass computes, which `weight` is a factor on. `watch`: what it
        reaches matters."""
        self.sums, self.unit, self.weight = sums, unit, weight
        self._parameters = parameters
        self._marks = None
        if self._synchronised and (watch or not self.is_plain(parameters)):
            self._marks = {item: mark(item) for item in parameters}
        for each in self.buckets:
            each.begin_pass()

    @property
    def keeps_views(self) -> bool:
        """Are gradients, once reduced, parts of a bucket?"""
        return any(each.views for each in self.buckets)

    def is_plain(self, parameters: List[Parameter]) -> bool:
        """Does the hook of one model reduce all of these, as far as is known?"""
        self._parameters = parameters
        first = self.buckets[0] if len(self.buckets) == 1 else None
        return first is not None and first.learnt and first.synchronising and not self._outside()

    def touched(self) -> Set[Parameter]:
        """The parameters that the pass has left a gradient to."""
        if self._marks is None:
            return set(self._parameters)
        return {item for item in self._parameters if not is_marked(item, self._marks)}

    def end_pass(self, waiting: Dict[Parameter, torch.Tensor]) -> None:
        """Reduce what the hooks have not. `waiting`: the sums that belong to this pass; the hooks have added theirs."""
        if not self._synchronised:
            return
        first = self.buckets[0] if len(self.buckets) == 1 else None
        if self._marks is None and first is not None and first.complete:  # all of them, by its hook
            first.finish()
            return
        reduced: Set[Parameter] = set()
        left = []
        touched = self.touched() if self._marks is not None else None
        for each in self.buckets:
            if each.synchronising and each.complete:
                each.finish()
                reduced |= each.reached
            elif touched is None or not touched.isdisjoint(each.parameters):
                if each.synchronising and not each.done:
                    # Some parameters got no gradient: DDP waits for them, and would raise at the next forward pass.
                    each.loosen()
                    reduced.update(each.already())
                left += [item for item in each.parameters if item not in reduced]
        left += self._outside()
        if left:
            rest = {item: part for item, part in waiting.items() if item not in reduced}
            self._reduce(left, touched, rest, self.weight)
        self._marks = None

    def average(self, parameters: Sequence[Parameter]) -> None:
        """Average what is in `p.grad`, of parameters that the same on every replica have one or not."""
        self._reduce(parameters, None, {}, 1.0)

    def _outside(self) -> List[Parameter]:
        """What no wrapped model reduces, and may have a gradient now."""
        changed = self._strangers_of is not self._parameters  # its list is made anew where an optimizer's changes
        if self._settled and not changed and not self._strangers:
            return self._strangers
        inside = self._inside
        if inside is None or any(not each.learnt for each in self.buckets):
            inside = self._inside = set().union(*(each.reached for each in self.buckets))
            changed = True
            self._settled = all(each.learnt for each in self.buckets)
        if changed:
            self._strangers_of = self._parameters
            self._strangers = [item for item in self._parameters if item not in inside]
        return [item for item in self._strangers if item.requires_grad]

    def _reduce(
        self,
        parameters: Sequence[Parameter],
        touched: Optional[Set[Parameter]],
        waiting: Dict[Parameter, torch.Tensor],
        weight: float,
    ) -> None:
        """Average weight * `p.grad` (where the pass has touched it) + waiting, wherever a replica has any of both."""
        parameters = list(dict.fromkeys(parameters))
        has = [item.grad is not None and (touched is None or item in touched) for item in parameters]
        wanted = torch.tensor([int(mine or item in waiting) for mine, item in zip(has, parameters)])
        dist.all_reduce(wanted, op=dist.ReduceOp.MAX, group=self._control)
        dense: List[Parameter] = []
        for parameter, mine, any_has in zip(parameters, has, wanted.tolist()):
            if not any_has:
                continue
            self._prepare(parameter, mine, waiting.pop(parameter, None), weight / self.count)
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
                dist.all_reduce(parameter.grad, group=self._group)
            else:
                dense.append(parameter)
        for part in _chunks(dense):
            self._sum(part)

    def _sum(self, parameters: List[Parameter]) -> None:
        """Sum over replicas, in one buffer that is gone before the next one comes."""
        gradients = [item.grad.detach() for item in parameters if item.grad is not None]
        buffer = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(buffer, group=self._group)
        for gradient, whole in zip(gradients, torch.split(buffer, [gradient.numel() for gradient in gradients])):
            gradient.copy_(whole.view_as(gradient))

    def _prepare(self, parameter: Parameter, mine: bool, waiting: Optional[torch.Tensor], weight: float) -> None:
        """What this replica adds to the mean of all, into `p.grad` itself: a copy would be one too many."""
        share = self.unit / self.count
        if not mine or parameter.grad is None:
            value = torch.zeros_like(parameter) if waiting is None else waiting.detach() * share
            if parameter.grad is None or parameter.grad.is_sparse or value.is_sparse:
                parameter.grad = value
            else:
                parameter.grad.detach().copy_(value)
        elif parameter.grad.is_sparse or (waiting is not None and waiting.is_sparse):
            value = parameter.grad.detach() * weight
            parameter.grad = value if waiting is None else value + waiting * share
        else:
            gradient = parameter.grad.detach().mul_(weight)
            if waiting is not None:
                gradient.add_(waiting, alpha=share)


class _Buckets:
    """One wrapped model and its communication hook."""

    def __init__(self, model: DistributedDataParallel, owner: Reducer) -> None:
        self.model = model
        self.group: Any = model.process_group
        self.hooked = False
        self.loose = False  # DDP cannot reduce it: some parameters are not used in every pass
        self.done = False  # a pass of this step has been reduced by the hook
        self.complete = False  # the pass in hand has
        self.synchronising = True
        self.parameters = [item for item in model.module.parameters() if item.requires_grad]
        self.reached = set(self.parameters)  # that it reduces; what was frozen or not when it was wrapped, buckets tell
        self.learnt = False
        self._owner = owner
        self._works: List[Any] = []
        self._given: List[Parameter] = []
        self.views = bool(getattr(model, "gradient_as_bucket_view", False))
        # Can DDP reduce what it did not see all of? Not where it looks for unused parameters or counts on one graph for all
        # passes, nor of gradients that are sparse or complex, which are not in its buckets as they are.
        sparse = any(getattr(each, "sparse", False) is True for each in model.module.modules())
        counts_on_graph = any(getattr(model, name, False) for name in ("find_unused_parameters", "static_graph"))
        self.accumulates = not (counts_on_graph or sparse or any(item.is_complex() for item in self.parameters))
        self._last_done: Optional[Tuple[int, int, Any]] = None  # address and length of a bucket, future that has it
        self._device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self._averages = averages(dist.get_backend(self.group), self._device.type)
        self._options = options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.AVG if self._averages else dist.ReduceOp.SUM  # type: ignore[assignment]
        try:
            model.register_comm_hook(state=_State(self), hook=_communicate)
            self.hooked = True
        except RuntimeError:
            pass  # it has one of its own, which the caller tells

    def synchronise(self, wanted: bool) -> None:
        """Is the next pass to be reduced?"""
        self.synchronising = wanted
        internals.synchronise(self.model, wanted)

    def begin_pass(self) -> None:
        self._works.clear()
        self._given.clear()
        self.complete = self.synchronising and not self.hooked and not self.done  # nothing tells: DDP sees to it

    def finish(self) -> None:
        """A pass was reduced by the hook, whole."""
        self.done = True
        if not self.learnt and self.hooked:
            self.reached = set(self._given)
        self.learnt = True

    def loosen(self) -> None:
        """From now on its gradients are reduced without DDP, whose reducer would wait for those that never come. The wrapper
        stays, and passes on what it is called with."""
        self.loose = True
        for work in self._works:
            work.wait()
        self.synchronise(False)
        model, inner, places = self.model, self.model.module, self.model.device_ids

        def forward(*inputs: Any, **named: Any) -> Any:
            if places:
                moved, named_ones = scatter_kwargs(inputs, named, places)
                inputs, named = moved[0], named_ones[0]
            return inner(*inputs, **named)

        model.__dict__["forward"] = forward
        internals.detach_reducer(model)

    def already(self) -> List[Parameter]:
        """Of a pass that is not complete: the parameters whose gradients are reduced all the same."""
        return self._given if self.views else []

    def bucket_ready(self, bucket: Any) -> Any:
        owner = self._owner
        buffer, last = bucket.buffer(), bucket.is_last()
        probe = owner.probe
        if last:
            self.complete = True
            probe.arrive()
        if buffer.is_sparse or not buffer.is_floating_point():
            probe.switch_off("some gradients are sparse or not real numbers")
        share = 1.0 if self._averages else 1.0 / owner.count
        if owner.weight * share != 1.0:
            buffer.mul_(owner.weight * share)
        if owner.sums:
            pairs = zip(bucket.gradients(), bucket.parameters())
            views = [(view, owner.sums[item]) for view, item in pairs if item in owner.sums]
            if views:  # at once: one call for each would cost more than all the sums
                internals.foreach_add_(
                    [view for view, _ in views], [part for _, part in views], alpha=share * owner.unit
                )
        measured = probe.bucket(self, buffer, bucket, share)
        work = internals.all_reduce(self.group, buffer, self._options)
        self._works.append(work)
        if self.views or not self.learnt:
            self._given += bucket.parameters()
        if last and not buffer.is_cuda:
            # Nothing is left to compute meanwhile, and a wait here saves handing the result from thread to thread.
            work.wait()
            return self._done(buffer if measured is None else measured(buffer))
        if measured is None:
            return work.get_future().then(_reduced)
        return work.get_future().then(lambda future: measured(future.value()[0]))

    def _done(self, buffer: torch.Tensor) -> Any:
        """A future that has this tensor. Buckets stay where they are, so the last one is nearly always the same."""
        known = self._last_done
        if known is None or known[0] != buffer.data_ptr() or known[1] != buffer.numel():
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(buffer)
            known = self._last_done = (buffer.data_ptr(), buffer.numel(), future)
        return known[2]


def _chunks(parameters: List[Parameter]) -> List[List[Parameter]]:
    """Together those whose gradients are of one type on one device, at most CHUNK elements or one tensor."""
    kinds: Dict[Tuple[str, str], List[Parameter]] = {}
    for item in parameters:
        assert item.grad is not None
        kinds.setdefault((str(item.grad.dtype), str(item.grad.device)), []).append(item)
    chunks: List[List[Parameter]] = []
    for kind in sorted(kinds):
        size = CHUNK
        for item in kinds[kind]:
            size += item.numel()
            if size > CHUNK:
                chunks.append([])
                size = item.numel()
            chunks[-1].append(item)
    return chunks


def averages(backend: str, device_type: str) -> bool:
    """Can the backend of a group ("nccl", or by device "cpu:gloo,cuda:nccl") average while it reduces on this device?"""
    return device_type == "cuda" and not {"nccl", "cuda:nccl"}.isdisjoint(backend.split(","))


class _State:
    """What DDP keeps of a hook, where Python's garbage collector does not see it: so it does not keep the job alive."""

    def __init__(self, buckets: _Buckets) -> None:
        self.buckets = weakref.ref(buckets)
        self.group = buckets.group

    def __deepcopy__(self, memo: Any) -> "_State":
        """A copy of the wrapped model, as for an average of its weights, has no hook of its own."""
        return self

    def __reduce__(self) -> Any:
        return object, ()


def _communicate(
    state: _State,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch names it only where c10d is built in
) -> torch.futures.Future[torch.Tensor]:
    # DDP insists on this name and on these annotations.
    buckets = state.buckets()
    if buckets is None:  # the model has outlived its job
        return allreduce_hook(state.group, bucket)
    future: torch.futures.Future[torch.Tensor] = buckets.bucket_ready(bucket)
    return future


def _reduced(future: Any) -> torch.Tensor:
    reduced: torch.Tensor = future.value()[0]
    return reduced
