"""Takes gradient statistics from training steps: squared norms of micro-gradients and of their mean.

It measures only: what gradients are made of, which steps are sampled and what follows from them is decided elsewhere.
"""

from time import perf_counter
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .internals import foreach_mul_, foreach_norm
from .noise_scale import NoiseScale
from .preconditioner import Preconditioner, is_adam
from .timing import StepClock

HALF = (torch.float16, torch.bfloat16)
CHUNK = 1 << 24  # elements of gradients that are weighed at once


class GradientProbe:
    """Takes squared gradient norms on sampled steps.

    With several replicas a micro-gradient is what a replica has accumulated over its micro-batches (K of them a step, no
    copies, unbiased), seen in the buckets of DDP. With one replica each micro-batch is a micro-gradient; a step of one
    micro-batch tells nothing. Norms are taken before the script can clip. Sums stay on the device until `collect`: no step
    waits for it or for another replica.

    `optimizers` are those on whose parameters it is measured; several, or one that is not Adam, are not preconditioned.
    `grad_scale` is the loss scale of this step, a number or a tensor; `weights`: the sum of the weights of this replica's
    micro-batches of the step.
    """

    def __init__(self, optimizers: Sequence[Any], scale: NoiseScale, replicas: int, group: Any = None) -> None:
        self.scale = scale
        self._grad_scale: Any = 1.0
        self.weights = 1.0
        self.last_ready: Any = None  # mark of a StepClock; None with one replica
        # Called when the last gradient of a step is ready, before it waits.
        self.arrived: Callable[[], None] = lambda: None
        self.cost = 0.0  # seconds of this thread that the latest sampled step spent on statistics
        self.notice = ""  # why the probe has switched itself off
        self._optimizers = list(optimizers)
        self._replicas = replicas
        self._group = group
        self._parameters: List[torch.nn.Parameter] = []
        self._find_parameters()
        self._device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._clock = StepClock(self._device)
        self._dtype = torch.float32 if self._device.type == "mps" else torch.float64
        alone = self._optimizers[0] if len(self._optimizers) == 1 else None
        self._adam = Preconditioner(alone, self._parameters) if alone is not None and is_adam(alone) else None
        self._sums: Dict[Tuple[float, float, bool], torch.Tensor] = {}
        self._slots = torch.zeros(0)
        self._used = 0
        self._seen: Dict[Tuple[int, int], int] = {}
        self.arm(sampled=False, micro_batches=1, examples=1, inverse=1.0)

    def arm(self, *, sampled: bool, micro_batches: int, examples: int, inverse: float) -> None:
        """Before the first forward pass of an optimiser step of `examples`; `micro_batches`: of each replica; `inverse`: the
        mean over micro-gradients of one over its examples."""
        self._micro_batches = micro_batches
        self._passes = 0
        self.weights = 0.0
        self._norms: List[torch.Tensor] = []
        self._weights: List[float] = []
        self._seen.clear()
        self._used = 0
        # L has tr * mean(1 / b_i), A has tr / n: the batch and count of equal micro-gradients with the same two figures
        # stand for them.
        self._batch, self._count = 1.0 / inverse, examples * inverse
        several = self._replicas * micro_batches > 1
        self._sampled = sampled and several and not self.notice and (self._adam is None or self._adam.ripe())
        if not self._sampled:
            return
        started = perf_counter()
        self._find_parameters()
        if self._replicas > 1:
            # Entered here, where replicas cannot differ, so that all of them combine the same sums.
            key = (float(self._batch), float(self._count), self._adam is not None)
            self._sums.setdefault(key, torch.zeros(3, dtype=self._dtype, device=self._device))
        if self._slots.shape[-1] < len(self._parameters) + 1:
            self._slots = torch.zeros(3, len(self._parameters) + 1, dtype=self._dtype, device=self._device)
        self._slots.zero_()
        self._coordinates = self._adam.prepare() if self._adam is not None else 0
        self.cost = perf_counter() - started

    @property
    def grad_scale(self) -> Any:
        """The loss scale of this step: a number or a tensor."""
        return self._grad_scale

    @grad_scale.setter
    def grad_scale(self, value: Any) -> None:
        # A GradScaler changes its own in place, in the body of the loop: before the step's norms are divided by it.
        self._grad_scale = value.detach().clone() if isinstance(value, torch.Tensor) else value

    @property
    def wants_parts(self) -> bool:
        """Is the gradient of every pass by itself to be measured, in `p.grad`?"""
        return self._sampled and self._replicas == 1

    def switch_off(self, reason: str) -> None:
        """Measure nothing more, and say why."""
        self.notice = "gradient noise is not measured: {}".format(reason)
        self._sampled = False

    def arrive(self) -> None:
        """The last local gradient of a pass is ready."""
        self.last_ready = self._clock.mark()
        self.arrived()

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

    def bucket(self, owner: Any, buffer: torch.Tensor, bucket: Any, share: float) -> Optional[Callable[[Any], Any]]:
        """The local gradients of a bucket, times `share`, before they are reduced. Returns what to call with the result."""
        if not self._sampled:
            return None
        place = (id(owner), int(bucket.index()))
        if place in self._seen:
            self.switch_off("a step has more than one backward pass")
            return None
        if not self._measured.issuperset(bucket.parameters()):
            if self._measured.isdisjoint(bucket.parameters()):
                return None
            self.switch_off("its optimizer has only some of the parameters of a model")
            return None
        started = perf_counter()
        index = self._seen[place] = len(self._seen)
        weights: Any = None
        if self._adam is not None:
            weights = self._adam.fill(buffer, bucket.gradients(), bucket.parameters())
            self._slots[2, index] = weights.sum()
        self._slots[0, index] = _squared(buffer, weights) / (share * self.weights) ** 2
        self.cost += perf_counter() - started

        def reduced(result: torch.Tensor) -> torch.Tensor:
            if self._sampled:
                self._slots[1, index] = _squared(result, weights)
            if weights is not None and weights.is_cuda:
                weights.record_stream(torch.cuda.current_stream())  # this runs on a stream of its own
            return result

        return reduced

    # -- one replica ---------------------------------------------------------------------------------------------------

    def pass_ended(self, weight: float, *, touched: Any) -> None:
        """A pass of a step in pieces has left its gradients in `p.grad`, not weighed yet, of the parameters `touched`."""
        if not self._sampled or self._replicas > 1 or self._measured.isdisjoint(touched):
            return
        self._passes += 1
        if self._passes > self._micro_batches:
            self.switch_off("a step has more than one backward pass")
            return
        started = perf_counter()
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse or not gradient.is_floating_point():
                self.switch_off("some parameters got no gradient, or one that is sparse or not of real numbers")
                return
        self._norms.append(self._norm(total=False))
        self._weights.append(weight)
        self.cost += perf_counter() - started

    def scaled(self, factor: float) -> None:
        """The weights so far have turned out to be so many times what was told."""
        self._weights = [weight * factor for weight in self._weights]
        self.weights *= factor

    def step_ended(self) -> None:
        """The gradient of the step is in `p.grad`, of one replica."""
        if self._sampled and len(self._norms) == self._micro_batches and min(self._weights) > 0:
            started = perf_counter()
            mean = self._norm(total=True)
            examples = self._batch * self._count
            whole = sum(self._weights)
            inverse = sum(whole / weight for weight in self._weights) / self._micro_batches / examples
            local = torch.stack(self._norms).mean()
            self._add(local, mean, self._slots[2].sum(), 1.0 / inverse, examples * inverse)
            self.cost += perf_counter() - started
            self._sampled = False

    def _norm(self, *, total: bool) -> torch.Tensor:
        result = torch.zeros((), dtype=self._dtype, device=self._device)
        weigh = not total and not self._norms  # the sum of the weights is wanted once
        for index, chunk in enumerate(_chunks([item for item in self._parameters if item.grad is not None])):
            gradients = [item.grad.detach() for item in chunk if item.grad is not None]
            if self._adam is None:
                result += squares(gradients, self._dtype)
                continue
            weights = self._adam.of(chunk)
            if weigh:
                self._slots[2, index] = torch.stack([item.sum() for item in weights]).sum()
            foreach_mul_(weights, gradients)
            result += squares(weights, self._dtype)
        return result

    # -- both ----------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The last micro-batch of a step is over."""
        if self._sampled and self._replicas > 1 and self._seen:
            started = perf_counter()
            local, mean, weights = self._slots.sum(dim=1)
            self._add(local, mean, weights, float(self._batch), float(self._count))
            self.cost += perf_counter() - started
        self._sampled = False

    def _find_parameters(self) -> None:
        """Those that are trained now: some may have been frozen before, or added since."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        self._parameters[:] = [item for group in groups for item in group["params"] if item.requires_grad]
        self._measured = set(self._parameters)

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


def _chunks(parameters: List[torch.nn.Parameter]) -> Iterator[List[torch.nn.Parameter]]:
    """Of so few elements that a copy of their gradients is nothing beside the model, or of one parameter."""
    chunk: List[torch.nn.Parameter] = []
    room = CHUNK
    for parameter in parameters:
        if chunk and parameter.numel() > room:
            yield chunk
            chunk, room = [], CHUNK
        chunk.append(parameter)
        room -= parameter.numel()
    if chunk:
        yield chunk


def squares(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Sum of the squares of all elements, a number of `dtype` on their device.

    On a GPU all tensors in one operation. On the CPU torch.dot, which sums in blocks: twenty times more exact than a norm in
    the same precision, and as fast.
    """
    wide = [item.float() if item.dtype in HALF else item for item in tensors]
    if wide[0].is_cuda:
        return torch.stack(list(foreach_norm(wide))).to(dtype).square().sum()
    flat = [item.reshape(-1) for item in wide]
    return torch.stack([torch.dot(item, item) for item in flat]).sum(dtype=dtype)


def _squared(gradient: torch.Tensor, weights: Optional[torch.Tensor]) -> torch.Tensor:
    flat = gradient.detach().reshape(-1)
    if weights is not None:
        flat = flat.float() if flat.dtype in HALF else flat
        flat = flat * weights.reshape(-1)
    return squares([flat], torch.float32)
