"""A model in DistributedDataParallel (DDP), and the communication hook that weighs its buckets."""

import weakref
from itertools import compress, repeat
from operator import is_
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.scatter_gather import scatter_kwargs

from gpq_agent.train import internals
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.probe import GradientProbe

Parameter = torch.nn.Parameter
OWN_HOOK = "the model has a communication hook of its own, which averages unequal shares as equal"
NO_HOOK = (
    "remove the hook, or run the script without gpq's library: gpq submit --gpus N -- torchrun "
    "--nproc-per-node N train.py"
)


class Share:
    """This replica's gradient of a step: `weight` times the result of the current backward call,
    plus `unit` times the sums of the earlier ones. `sums`: by id of the parameter, because its hash
    is a function in Python."""

    def __init__(self) -> None:
        self.weight = self.unit = 1.0
        self.sums: Dict[int, torch.Tensor] = {}

    def clear(self) -> None:
        """There is no earlier call."""
        self.sums, self.unit = {}, 1.0


class DdpBuckets:
    """A wrapped model."""

    def __init__(
        self, model: DistributedDataParallel, share: Share, probe: GradientProbe, count: int
    ) -> None:
        """`count`: the number of replicas. Raises GpqTrainError for a model with a hook of the
        script's own."""
        # DDP cannot reduce it, for example if some parameters are not used in every backward call.
        self.ddp_bypassed = False
        self.has_reduced = False  # a backward call of this step ran completely
        self.complete = False  # the current call has been reduced
        self.synchronises = True  # the next call will be reduced
        self.parameters = [item for item in model.module.parameters() if item.requires_grad]
        # The parameters that it reduces. Buckets show what was frozen when it was wrapped.
        self.reach = set(self.parameters)
        self.knows_reach = False
        self.keeps_views = bool(getattr(model, "gradient_as_bucket_view", False))
        # Can DDP reduce a call that it did not see completely? Not if it looks for unused
        # parameters or expects one graph for all calls. Not if gradients are sparse or complex,
        # because its buckets hold those in another form.
        inner = model.module.modules()
        self.can_accumulate = not (
            getattr(model, "find_unused_parameters", False)
            or getattr(model, "static_graph", False)
            or any(getattr(module, "sparse", False) is True for module in inner)
            or any(item.is_complex() for item in self.parameters)
        )
        self.group: Any = model.process_group
        device = self.parameters[0].device if self.parameters else torch.device("cpu")
        by_backend = averages(dist.get_backend(self.group), device.type)
        # The mean over replicas is the sum, after each has multiplied by this.
        self._mean_factor = 1.0 if by_backend else 1.0 / count
        self._options = options = dist.AllreduceOptions()
        operation = dist.ReduceOp.AVG if by_backend else dist.ReduceOp.SUM
        options.reduceOp = operation  # type: ignore[assignment]
        self._works: List[Any] = []  # of the current call
        # Address and length of a bucket, and its future.
        self._latest: Optional[Tuple[Tuple[int, int], Any]] = None
        self._model = model
        self._share, self._probe = share, probe
        self._shares_buffers = False
        self.arrivals: List[Parameter] = []  # parameters in the buckets of the current call
        try:
            model.register_comm_hook(state=_State(self), hook=_communicate)
        except RuntimeError as error:
            raise GpqTrainError(OWN_HOOK, NO_HOOK) from error

    def synchronise(self, wish: bool) -> None:
        """Will the next call be reduced?"""
        self.synchronises = wish
        internals.synchronise(self._model, wish)

    def share_buffers(self) -> None:
        """Give all replicas rank 0's buffers, if the script wants that. From now on DDP does not do
        so in a forward pass, which one replica alone may run to evaluate. Collective."""
        if self._model.broadcast_buffers:
            self._shares_buffers, self._model.broadcast_buffers = True, False
        if self._shares_buffers:
            internals.share_buffers(self._model)

    @property
    def is_suspended(self) -> bool:
        """Does the script keep the next call to this replica, with model.no_sync()?"""
        return self.synchronises and not self._model.require_backward_grad_sync

    def backward_begins(self) -> None:
        """A backward call is about to run."""
        self._works.clear()
        self.arrivals.clear()
        self.complete = False

    def finish(self) -> None:
        """The hook reduced the whole call."""
        self.has_reduced = True
        if not self.knows_reach:
            self.reach = set(self.arrivals)
        self.knows_reach = True

    def bypass_ddp(self) -> None:
        """From now on its gradients are reduced without DDP, whose reducer would wait for those
        that never arrive. The wrapper stays, and passes calls on."""
        self.ddp_bypassed = self._probe.is_blind = True
        for work in self._works:
            work.wait()
        self.synchronise(False)
        internals.detach_reducer(self._model)
        plain: Any = type(self._model)
        members = {"forward": _forward, "__reduce_ex__": _copy, "__module__": plain.__module__}
        self._model.__class__ = type(plain.__name__, (plain,), members)

    def bucket_ready(self, bucket: Any) -> Any:
        """The hook. Returns a future of the bucket's mean over replicas."""
        own, probe = self._share, self._probe
        buffer, last = bucket.buffer(), bucket.is_last()
        if last:
            self.complete = True
            probe.arrive()
        if buffer.is_sparse or not buffer.is_floating_point():
            probe.switch_off("some gradients are sparse or not real numbers")
        share = self._mean_factor
        factor = own.weight * share
        if factor != 1.0:
            buffer.mul_(factor)
        if own.sums:
            # All at once, because one call for each would cost more than all the sums.
            parts: List[Any] = list(map(own.sums.get, map(id, bucket.parameters())))
            views = internals.views_of(bucket)
            if any(map(is_, parts, repeat(None))):
                views = list(compress(views, [part is not None for part in parts]))
                parts = [part for part in parts if part is not None]
            if views:
                internals.foreach_add_(views, parts, alpha=share * own.unit)
        measure = probe.bucket(self, buffer, bucket, share)
        work = internals.all_reduce(self.group, buffer, self._options)
        self._works.append(work)
        if self.keeps_views or not self.knows_reach:
            self.arrivals += bucket.parameters()
        if last and not buffer.is_cuda:
            # Nothing else can be computed now, and waiting here saves handing the result between
            # threads.
            work.wait()
            result = buffer if measure is None else measure(buffer)
            # Buckets stay in place, so it is almost always the same future.
            place, latest = (result.data_ptr(), result.numel()), self._latest
            if latest is None or latest[0] != place:
                future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
                future.set_result(result)
                latest = self._latest = (place, future)
            return latest[1]
        if measure is None:
            return work.get_future().then(lambda future: future.value()[0])
        return work.get_future().then(lambda future: measure(future.value()[0]))


def _forward(model: Any, *inputs: Any, **keywords: Any) -> Any:
    """The forward pass of a model that nobody reduces."""
    if model.device_ids:
        all_inputs, all_keywords = scatter_kwargs(inputs, keywords, model.device_ids)
        inputs, keywords = all_inputs[0], all_keywords[0]
    return model.module(*inputs, **keywords)


def _copy(model: Any, protocol: Any) -> Any:
    """A copy, or a file, has the script's own class, and reduces like any other wrapped model."""
    state = {**model.__getstate__(), "require_backward_grad_sync": True}
    return internals.new_object, (type(model).__mro__[1], object, None), state


def averages(backend: str, device_type: str) -> bool:
    """Can the backend of a group ("nccl", or by device "cpu:gloo,cuda:nccl") average while it
    reduces on this device?"""
    return device_type == "cuda" and not {"nccl", "cuda:nccl"}.isdisjoint(backend.split(","))


class _State:
    """What DDP keeps of a hook, out of sight of Python's garbage collector. It keeps no job
    alive."""

    def __init__(self, buckets: DdpBuckets) -> None:
        self.buckets = weakref.ref(buckets)
        self.group = buckets.group

    def __deepcopy__(self, memo: Any) -> "_State":
        """A copy of the wrapped model, for example for averaged weights, has no hook of its own."""
        return self

    def __reduce__(self) -> Any:
        return object, ()


def _communicate(
    state: _State,
    # torch defines it only if c10d is built in
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    # DDP requires this name and these annotations.
    buckets = state.buckets()
    if buckets is None:  # the model outlived its job
        return allreduce_hook(state.group, bucket)
    future: torch.futures.Future[torch.Tensor] = buckets.bucket_ready(bucket)
    return future
