"""Takes gradient statistics from training steps, and weighs micro-batches, by DDP's hook or on one replica's own gradients.

It measures only: which steps are sampled, when sums are combined and what follows from them is decided elsewhere.
"""

from time import perf_counter
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .noise_scale import NoiseScale
from .preconditioner import Preconditioner, is_adam
from .timing import StepClock


class GradientProbe:
    """Takes squared gradient norms on sampled steps, and weighs micro-batches on all.

    With several replicas it is the one communication hook of the DDP model: a micro-gradient is then what a replica has
    accumulated over its micro-batches (K of them a step, no copies, unbiased). With one replica each micro-batch is a
    micro-gradient, set aside when its backward pass ends; a step of one micro-batch tells nothing. Norms are taken
    before the caller can clip. Sums stay on the device until `collect`: no step waits for it or for another replica.

    `weight` must be set before each backward pass: the gradient of the step is the weighted sum of those of its
    micro-batches (averaged over replicas). `grad_scale` is the loss scale of this step, a number or a tensor.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any, scale: NoiseScale, replicas: int) -> None:
        self.scale = scale
        self.grad_scale: Any = 1.0
        self.last_ready: Any = None  # mark of a StepClock; None with one replica
        self.arrived: Callable[[], None] = lambda: (
            None
        )  # called when the last gradient of a step is ready, before it waits
        self.cost = 0.0  # seconds of this thread that the latest sampled step spent on statistics
        self.notice = ""  # why the probe has switched itself off
        self._replicas = replicas
        self._weight = 1.0
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._clock = StepClock(self._device)
        self._dtype = torch.float32 if self._device.type == "mps" else torch.float64
        self._adam = Preconditioner(optimizer, self._parameters) if is_adam(optimizer) else None
        self._group: Any = getattr(model, "process_group", None)
        self._set_aside: Dict[torch.nn.Parameter, torch.Tensor] = {}
        self._sums: Dict[Tuple[float, float, bool], torch.Tensor] = {}
        self._hooked = False
        self._wrapped = isinstance(model, DistributedDataParallel)
        self._slots = torch.zeros(3, len(self._parameters) + 1, dtype=self._dtype, device=self._device)
        self._seen: Set[int] = set()
        self._last_done: Optional[Tuple[int, int, Any]] = None  # address and length of a bucket, future that has it
        self.arm(sampled=False, micro_batches=1, batch=1)
        if replicas > 1:
            self._register(model)
        elif self._parameters:
            first: Any = self._parameters[0]
            first.register_post_accumulate_grad_hook(self._on_gradient)

    def _register(self, model: torch.nn.Module) -> None:
        if not isinstance(model, DistributedDataParallel):
            self._switch_off("the model is not wrapped in DistributedDataParallel")
            return
        if getattr(model, "find_unused_parameters", False):
            self._switch_off("the model is wrapped with find_unused_parameters=True")
        self._average = averages(dist.get_backend(self._group), self._device.type)
        self._reduction = options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.AVG if self._average else dist.ReduceOp.SUM  # type: ignore[assignment]
        try:
            model.register_comm_hook(state=self, hook=_communicate)
            self._hooked = True
        except RuntimeError as error:
            self._switch_off("the model has a communication hook of its own ({})".format(str(error).splitlines()[0]))

    @property
    def weight(self) -> float:
        """Factor on the gradient of the coming backward pass."""
        return self._weight

    @weight.setter
    def weight(self, value: float) -> None:
        # What has accumulated so far carries the old factor; it can stay in place only while that does not change.
        if value != self._weight and self._accumulated and (self._hooked or self._replicas == 1):
            self._put_aside()
        self._weight = value

    def arm(self, *, sampled: bool, micro_batches: int, batch: float) -> None:
        """Before the first forward pass of an optimiser step; `batch`: examples of a micro-batch of one replica.

        Sample only steps in which replicas have equally many examples.
        """
        self._micro_batches = micro_batches
        self._batch = batch
        self._backwards = 0
        self._accumulated = False  # gradients of earlier micro-batches are in p.grad, without their weight
        self._ready = False  # the single replica's step is complete in p.grad
        self._set_aside.clear()
        self._seen.clear()
        self._norms: List[torch.Tensor] = []
        self._weights: List[float] = []
        self._coordinates = 0
        self._sampled = sampled and self._replicas * micro_batches > 1 and (self._adam is None or self._adam.ripe())
        if self._sampled and self._replicas > 1:
            # Entered here, where replicas cannot differ, so that all of them combine the same sums.
            key = (float(batch * micro_batches), float(self._replicas), self._adam is not None)
            self._sums.setdefault(key, torch.zeros(3, dtype=self._dtype, device=self._device))
        if self.notice:
            self._sampled = False
        if self._sampled:
            started = perf_counter()
            self._slots.zero_()
            if self._adam is not None:
                self._coordinates = self._adam.prepare()
            self.cost = perf_counter() - started

    def after_backward(self, *, last: bool) -> None:
        """After every backward pass, before the optimizer steps; `last`: of this optimiser step."""
        if self._replicas == 1:
            self._accumulated = not last
            if last and not self._ready:
                if not self._backwards and self._gradients():
                    # The parameter whose hook tells the end of a backward pass is not used.
                    self._switch_off("some parameters got no gradient")
                self._finish_single()
            return
        self._accumulated = not last
        if not last:
            return
        if not self._hooked:
            if self._weight != 1.0:
                torch._foreach_mul_(self._gradients(), self._weight)
        elif self._sampled and self._seen:
            started = perf_counter()
            local, mean, weights = self._slots.sum(dim=1)
            self._add(local, mean, weights, float(self._batch * self._micro_batches), float(self._replicas))
            self.cost += perf_counter() - started
        self._set_aside.clear()
        self._seen.clear()
        self._sampled = False

    def collect(self) -> None:
        """Combine the sums of all replicas since the last time for the NoiseScale. A collective if replicas > 1."""
        if not self._sums:
            return
        sums = torch.stack(list(self._sums.values()))
        if self._replicas > 1:
            dist.all_reduce(sums, group=self._group)
        for (batch, count, preconditioned), (local, mean, steps) in zip(self._sums, sums.tolist()):
            if steps > 0:
                self.scale.observe(
                    local / steps,
                    mean / steps,
                    batch=batch,
                    count=count,
                    preconditioned=preconditioned,
                    steps=max(1, round(steps / self._replicas)),
                )
        self._sums.clear()

    # -- several replicas ----------------------------------------------------------------------------------------------

    def _bucket_ready(self, bucket: Any) -> Any:
        buffer, index, last = bucket.buffer(), bucket.index(), bucket.is_last()
        if last:
            self.last_ready = self._clock.mark()
            self.arrived()
        if index in self._seen:
            self._switch_off("a step has more than one backward pass")
        self._seen.add(index)
        if buffer.is_sparse or not buffer.is_floating_point():
            self._switch_off("some gradients are sparse or not real numbers")
        if self._set_aside:
            buffer.mul_(self._weight)
            for view, parameter in zip(bucket.gradients(), bucket.parameters()):
                if parameter in self._set_aside:
                    view.add_(self._set_aside[parameter])
        factor = 1.0 if self._set_aside else self._weight
        if not self._average:
            factor /= self._replicas
        if factor != 1.0:
            buffer.mul_(factor)
        weights: Any = None
        if self._sampled:
            started = perf_counter()
            if self._adam is not None:
                weights = self._adam.fill(buffer, bucket.gradients(), bucket.parameters())
                self._slots[2, index] = weights.sum()
            local = _squared(buffer, weights)
            self._slots[0, index] = local if self._average else local * float(self._replicas) ** 2
            self.cost += perf_counter() - started
        # Not by dist.all_reduce: its checks and logging cost a tenth of a millisecond, and this runs once per bucket.
        work: Any = self._group.allreduce([buffer], self._reduction)
        if last and not buffer.is_cuda:
            # Nothing is left to compute meanwhile, and a wait here saves handing the result from thread to thread.
            work.wait()
            return self._done(self._averaged(buffer, index, weights))
        if not self._sampled:
            return work.get_future().then(_reduced)
        return work.get_future().then(lambda future: self._averaged(future.value()[0], index, weights))

    def _done(self, buffer: torch.Tensor) -> Any:
        """A future that has this tensor. Buckets stay where they are, so the last one is nearly always the same."""
        known = self._last_done
        if known is None or known[0] != buffer.data_ptr() or known[1] != len(buffer):
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(buffer)
            known = self._last_done = (buffer.data_ptr(), len(buffer), future)
        return known[2]

    def _averaged(self, reduced: torch.Tensor, index: int, weights: Optional[torch.Tensor]) -> torch.Tensor:
        if self._sampled:
            self._slots[1, index] = _squared(reduced, weights)
        if weights is not None and weights.is_cuda:
            weights.record_stream(torch.cuda.current_stream())  # this runs on a stream of its own
        return reduced

    # -- one replica ---------------------------------------------------------------------------------------------------

    def _on_gradient(self, parameter: torch.nn.Parameter) -> None:
        # Every backward pass reaches this one parameter once; the engine calls back when the pass is complete. DDP, if
        # the model is wrapped in it although alone, writes its gradients in such a call too: queue behind it.
        engine: Any = torch.autograd.Variable._execution_engine
        if self._wrapped:
            engine.queue_callback(lambda: engine.queue_callback(self._pass_ended))
        else:
            engine.queue_callback(self._pass_ended)

    def _pass_ended(self) -> None:
        if self._ready:
            if not self.notice:
                self._switch_off("a step has more than one backward pass")
            return
        self._backwards += 1
        last = self._backwards >= self._micro_batches
        if self._sampled:
            self._measure()
        if last:
            self._finish_single()
        elif self._sampled:
            self._put_aside()
        else:
            self._accumulated = True

    def _measure(self) -> None:
        started = perf_counter()
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse or not gradient.is_floating_point():
                self._switch_off("some parameters got no gradient, or one that is sparse or not of real numbers")
                return
        self._norms.append(self._norm(total=False))
        self._weights.append(self._weight)
        self.cost += perf_counter() - started

    def _finish_single(self) -> None:
        gradients = self._gradients()
        if self._weight != 1.0 and gradients:
            torch._foreach_mul_(gradients, self._weight)
        for parameter, earlier in self._set_aside.items():
            if parameter.grad is None:
                parameter.grad = earlier
            else:
                parameter.grad.add_(earlier)
        self._set_aside.clear()
        self._accumulated = False
        self._ready = True
        if self._sampled and len(self._norms) == self._micro_batches and min(self._weights) > 0:
            started = perf_counter()
            mean = self._norm(total=True)
            # Weights tell how the examples were split. L then has tr * mean(1 / b_i), A has tr / n: the batch and count
            # of equal micro-batches with the same two figures stand for them.
            examples = self._batch * self._micro_batches
            inverse = sum(sum(self._weights) / w for w in self._weights) / self._micro_batches / examples
            local = torch.stack(self._norms).mean()
            self._add(local, mean, self._slots[2].sum(), 1.0 / inverse, examples * inverse)
            self.cost += perf_counter() - started
        self._sampled = False

    def _norm(self, *, total: bool) -> torch.Tensor:
        result = torch.zeros((), dtype=self._dtype, device=self._device)
        weigh = 0.0 if total or self._norms else 1.0  # the sum of the weights is wanted once
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                continue
            weights = None
            if self._adam is not None:
                weights = self._adam.of(parameter)
                if weigh:
                    self._slots[2, index] = weights.sum()
            result += _squared(parameter.grad, weights)
        return result

    # -- both ----------------------------------------------------------------------------------------------------------

    def _add(self, local: Any, mean: Any, weights: Any, batch: float, count: float) -> None:
        if self._adam is not None:
            unit: Any = (weights / max(1, self._coordinates)) ** 2
        else:
            unit = 1.0
        unit = unit * self.grad_scale**2
        # All replicas have the same mean, so all of them leave out the same steps; only a local norm that overflows
        # where the mean does not is left out by one of them alone.
        entry = torch.stack([local / unit, mean / unit, torch.ones_like(local)]).to(self._dtype)
        entry = torch.where(torch.isfinite(entry).all(), entry, torch.zeros_like(entry))
        key = (batch, count, self._adam is not None)
        self._sums[key] = self._sums[key] + entry if key in self._sums else entry

    def _put_aside(self) -> None:
        gradients = self._gradients()
        if self._weight != 1.0 and gradients:
            torch._foreach_mul_(gradients, self._weight)
        for parameter in self._parameters:
            if parameter.grad is None:
                continue
            if parameter in self._set_aside:
                self._set_aside[parameter].add_(parameter.grad)
            elif self._wrapped:
                self._set_aside[parameter] = parameter.grad.clone()  # it may be a view of DDP's bucket
            else:
                self._set_aside[parameter] = parameter.grad
            parameter.grad = None
        self._accumulated = False

    def _gradients(self) -> List[torch.Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]

    def _switch_off(self, reason: str) -> None:
        self.notice = "gradient noise is not measured: {}".format(reason)
        self._sampled = False


def averages(backend: str, device_type: str) -> bool:
    """Can the backend of a group ("nccl", or by device "cpu:gloo,cuda:nccl") average while it reduces on this device?"""
    return device_type == "cuda" and not {"nccl", "cuda:nccl"}.isdisjoint(backend.split(","))


def _communicate(
    state: GradientProbe,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch names it only where c10d is built in
) -> torch.futures.Future[torch.Tensor]:
    # DDP insists on this name and on these annotations.
    future: torch.futures.Future[torch.Tensor] = state._bucket_ready(bucket)
    return future


def _reduced(future: Any) -> torch.Tensor:
    reduced: torch.Tensor = future.value()[0]
    return reduced


def _squared(gradient: torch.Tensor, weights: Optional[torch.Tensor]) -> torch.Tensor:
    # torch.dot sums in blocks: on CPUs twenty times more exact than a norm in the same precision, and as fast.
    flat = gradient.detach().reshape(-1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    if weights is not None:
        flat = flat * weights.reshape(-1)
    return torch.dot(flat, flat)
