"""Gradient noise scale: smoothed statistics of the gradient of one example, as the probe measures
them, and the sums of their squared norms since the last report."""

import math
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from gpq_agent.train.internals import (
    foreach_add_,
    foreach_div,
    foreach_mul_,
    foreach_norm,
    foreach_reciprocal_,
    foreach_sqrt,
)
from gpq_agent.train.process.process_group import finish

WINDOW = 100  # in base batches: after this many examples a weight in the averages has fallen to 1/e
TINY = 1e-30

HALF = (torch.float16, torch.bfloat16)
# Elements of gradients to weigh at once, whose copy is nothing compared with the model.
CHUNK = 1 << 24
FIRST_STEP = 20  # of Adam. Before it, second moments are too young for weights
# Of rms(sqrt v): a coordinate that rarely gets a gradient must not outweigh all others.
FLOOR = 0.01


class NoiseScale:
    """Averages of the two gradient statistics of one example: sqr = |E g|^2 and var = tr(Cov g).

    From K independent micro-gradients of b examples each, with L the mean of their squared norms
    and A the squared norm of their mean (McCandlish et al. 2018, appendix A, and Pollux,
    OSDI'21, section 3.1):

        tr = (L - A) b K / (K - 1)        g2 = (K A - L) / (K - 1)        noise scale = tr / g2

    tr and g2 are averaged separately, over a window counted in examples, and divided last. An epoch
    draws its examples without replacement, which biases g2 by exactly -tr / N: `sqr` has that
    corrected.
    """

    def __init__(self, base_batch: int, dataset_size: int, *, window: Optional[int] = None) -> None:
        """`base_batch`: examples of the user's own batch. `dataset_size`: N, 0 if unknown.
        `window`: in examples."""
        self._base = base_batch
        self._size = dataset_size
        self._window = window or WINDOW * base_batch
        self.preconditioned = False  # were gradients weighed by Adam's preconditioner?
        self._forget()

    def _forget(self) -> None:
        self._weight = 0.0  # examples that still count: the debiasing weight of both sums
        self._trace = self._square = 0.0

    def observe(
        self,
        local_sqr: float,
        mean_sqr: float,
        *,
        batch: float,
        count: float,
        preconditioned: bool = False,
        steps: int = 1,
    ) -> None:
        """Add the averages of L and A over `steps` steps, from `count` micro-gradients of `batch`
        examples each. Values that are not finite change nothing. A change of preconditioning
        replaces all averages, because it changes the unit."""
        if not (math.isfinite(local_sqr) and math.isfinite(mean_sqr)):
            return
        if preconditioned != self.preconditioned:
            self._forget()
            self.preconditioned = preconditioned
        trace = (local_sqr - mean_sqr) * batch * count / (count - 1)
        square = (count * mean_sqr - local_sqr) / (count - 1)
        examples = batch * count * steps
        decay = math.exp(-examples / self._window)
        self._weight = self._weight * decay + examples
        self._trace = self._trace * decay + trace * examples
        self._square = self._square * decay + square * examples

    @property
    def var(self) -> float:
        """tr(Cov g) of one example, never negative. 0.0 while nothing is known."""
        return max(self._trace / self._weight, 0.0) if self._weight else 0.0

    @property
    def sqr(self) -> float:
        """|E g|^2, positive. 0.0 while nothing is known.

        n examples tell a squared gradient from noise only down to var / n. When the estimate is not
        above that, it is the answer, and `capped` says so.
        """
        if not self._weight:
            return 0.0
        return max(self._corrected(), self._resolution(), TINY)

    @property
    def samples(self) -> int:
        """Examples in the window."""
        return int(self._weight)

    @property
    def noise_scale(self) -> float:
        """var / sqr, examples. A lower bound when `capped`, 0.0 while nothing is known."""
        return self.var / self.sqr if self._weight else 0.0

    @property
    def capped(self) -> bool:
        """Whether the noise scale is a lower bound: the squared gradient drowned in the noise."""
        return self._weight > 0 and self._corrected() <= self._resolution()

    def gain(self, total_batch: int) -> float:
        """Progress of a step of `total_batch` examples, in steps of the base batch. As in AdaScale
        and Pollux (section 2.2). Between 1 and total_batch / base_batch for batches from the base
        upwards, and 1.0 while nothing is known."""
        if not self._weight or total_batch == self._base:
            return 1.0
        ratio = total_batch / self._base
        gain = (self.var / self._base + self.sqr) / (self.var / total_batch + self.sqr)
        return min(max(gain, min(1.0, ratio)), max(1.0, ratio))

    def state_dict(self) -> Dict[str, Any]:
        """Sums with their debiasing weight: plain numbers."""
        return {
            "weight": self._weight,
            "trace": self._trace,
            "square": self._square,
            "preconditioned": self.preconditioned,
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._weight, self._trace, self._square = state["weight"], state["trace"], state["square"]
        self.preconditioned = state["preconditioned"]

    def _corrected(self) -> float:
        square = self._square / self._weight
        return square + self._trace / self._weight / self._size if self._size > 0 else square

    def _resolution(self) -> float:
        return self.var / self._weight


class NormSums:
    """Local norms, norms of the mean, and their number, by (batch, count). They stay on the device
    until they are collected. `grad_scale`: the loss scale of the current step."""

    def __init__(
        self,
        scale: NoiseScale,
        replicas: int,
        group: Any,
        device: torch.device,
        *,
        preconditioned: bool,
    ) -> None:
        self.grad_scale: Any = 1.0
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self._scale, self._preconditioned = scale, preconditioned
        self._replicas, self._group, self._device = replicas, group, device
        self._sums: Dict[Tuple[float, float], torch.Tensor] = {}

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self._device)

    def open(self, batch: float, count: float) -> None:
        """Create such a sum, even if nothing is added to it."""
        if (batch, count) not in self._sums:
            self._sums[batch, count] = self.zeros(3)

    def add(self, local: Any, mean: Any, unit: Any, batch: float, count: float) -> None:
        """Squared norms of a step, in this unit and in the unit of the loss scale."""
        unit = unit * self.grad_scale**2
        # All replicas have the same mean, so all skip the same steps. Only a local norm that
        # overflows although the mean does not is skipped by one replica alone.
        entry = torch.stack([local / unit, mean / unit, torch.ones_like(local)]).to(self.dtype)
        entry = torch.where(torch.isfinite(entry).all(), entry, torch.zeros_like(entry))
        key = (batch, count)
        self._sums[key] = self._sums[key] + entry if key in self._sums else entry

    def collect(self) -> None:
        """Combine the sums of all replicas for the NoiseScale. Collective."""
        if not self._sums:
            return
        sums = torch.stack(list(self._sums.values()))
        if self._replicas > 1:
            finish(dist.all_reduce(sums, group=self._group, async_op=True))
        for (batch, count), (local, mean, steps) in zip(self._sums, sums.tolist()):
            if steps > 0:
                self._scale.observe(
                    local / steps,
                    mean / steps,
                    batch=batch,
                    count=count,
                    preconditioned=self._preconditioned,
                    steps=max(1, round(steps / self._replicas)),
                )
        self._sums.clear()


def chunks(items: List[torch.nn.Parameter], most: int) -> Iterator[List[torch.nn.Parameter]]:
    """Chunks of at most so many elements. A larger parameter is a chunk of its own."""
    chunk: List[torch.nn.Parameter] = []
    room = most
    for parameter in items:
        if chunk and parameter.numel() > room:
            yield chunk
            chunk, room = [], most
        chunk.append(parameter)
        room -= parameter.numel()
    if chunk:
        yield chunk


def squares(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The sum of the squares of all elements, a number of `dtype` on their device. On a GPU one
    operation takes all tensors. On the CPU torch.dot sums in blocks, which is twenty times more
    exact than a norm in the same precision, and as fast."""
    operands = [item.float() if item.dtype in HALF else item for item in tensors]
    if operands[0].is_cuda:
        return torch.stack(list(foreach_norm(operands))).to(dtype).square().sum()
    vectors = [item.reshape(-1) for item in operands]
    return torch.stack([torch.dot(item, item) for item in vectors]).sum(dtype=dtype)


def weighed_squares(gradient: torch.Tensor, weights: Optional[torch.Tensor]) -> torch.Tensor:
    flat = gradient.detach().reshape(-1)
    if weights is not None:
        flat = flat.float() if flat.dtype in HALF else flat
        flat = flat * weights.reshape(-1)
    return squares([flat], torch.float32)


def is_adam(optimizer: Any) -> bool:
    """Whether `optimizer` is torch's Adam or AdamW."""
    return isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW))


class Preconditioner:
    """What Adam divides gradients by, as weights for their norms. Never writes its state. They are
    1 / (sqrt(v_hat) + eps_eff), with eps_eff = max(eps, FLOOR * rms(sqrt v_hat)). Local and
    averaged gradients of one step must have the same weights, so `prepare` is called once before
    its first backward pass. The weights hold until the optimizer steps. They are not normalised to
    mean 1. Instead the caller divides squared norms by the squared mean weight, which saves a
    pass."""

    def __init__(self, optimizer: Any, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._parameters = list(parameters)
        self._is_ripe = False
        self._eps = torch.zeros(())
        self._by_parameter: Any = {}

    def ripe(self) -> bool:
        """Whether the optimizer has taken FIRST_STEP steps. Once true it stays true, so that no
        step reads it again."""
        if not self._is_ripe:
            # One state is enough: that of the first parameter that has one.
            states = (self._optimizer.state.get(item, {}) for item in self._parameters)
            steps = (float(state["step"]) for state in states if "step" in state)
            self._is_ripe = next(steps, 0.0) >= FIRST_STEP
        return self._is_ripe

    def prepare(self) -> int:
        """Read bias corrections and the floor for this step. Returns the number of coordinates that
        have weights."""
        self._by_parameter = {}
        total: Any = None
        coordinates, eps = 0, 0.0
        for group in self._optimizer.param_groups:
            eps = max(eps, float(group["eps"]))
            states = {item: self._optimizer.state.get(item, {}) for item in group["params"]}
            states = {item: state for item, state in states.items() if "exp_avg_sq" in state}
            if not states:
                continue
            name = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
            moments = [state[name] for state in states.values()]
            shares = torch.stack([moment.sum(dtype=torch.float32) for moment in moments])
            # The factor on the root of each second moment, and the sum of all corrected moments.
            # Steps on the GPU stay there.
            beta, steps = group["betas"][1], [state["step"] for state in states.values()]
            roots: List[Any]
            if isinstance(steps[0], torch.Tensor) and steps[0].is_cuda:
                corrections = 1.0 - beta ** torch.stack(steps)
                roots, share = list(corrections.rsqrt().unbind()), (shares / corrections).sum()
            else:
                numbers = [1.0 - beta ** float(step) for step in steps]
                roots = [number**-0.5 for number in numbers]
                share = torch.stack(list(foreach_div(list(shares.unbind()), numbers))).sum()
            self._by_parameter.update(zip(states, zip(moments, roots)))
            total = share if total is None else total + share
            coordinates += sum(moment.numel() for moment in moments)
        if coordinates:
            self._eps = (FLOOR * (total / coordinates).sqrt()).clamp(min=eps)
        return coordinates

    def of(self, parameters: Sequence[torch.nn.Parameter]) -> List[torch.Tensor]:
        """The weights of each, fp32, of its shape. Zero if the optimizer does not update it. Each
        operation takes all of them: one by one, a model's hundred tensors take a GPU longer than
        its whole step."""
        rows = [self._by_parameter.get(item, (None, 1.0)) for item in parameters]
        moments, roots = [row[0] for row in rows], [row[1] for row in rows]
        if any(moment is None or moment.dtype != torch.float32 for moment in moments):
            weights = [
                torch.empty_like(item, dtype=torch.float32, requires_grad=False)
                for item in parameters
            ]
            for parameter, weight in zip(parameters, weights):
                self._roots(parameter, weight)
        else:
            weights = list(foreach_sqrt(moments))
            foreach_mul_(weights, roots)
        foreach_add_(weights, [self._eps] * len(weights))
        foreach_reciprocal_(weights)
        return weights

    def fill(
        self, buffer: torch.Tensor, views: Sequence[torch.Tensor], parameters: Sequence[Any]
    ) -> torch.Tensor:
        """Weights for a flat bucket, fp32. `views` are gradients of `parameters` in `buffer`."""
        weights = torch.empty_like(buffer, dtype=torch.float32)
        start = int(buffer.storage_offset())
        for view, parameter in zip(views, parameters):
            target = weights.as_strided(view.size(), view.stride(), view.storage_offset() - start)
            self._roots(parameter, target)
        return weights.add_(self._eps).reciprocal_()

    def _roots(self, parameter: torch.nn.Parameter, out: torch.Tensor) -> None:
        moment, root = self._by_parameter.get(parameter, (None, 1.0))
        if moment is None:
            out.fill_(float("inf"))  # the weight is its reciprocal: zero
            return
        if moment.dtype == torch.float32 and moment.device == out.device:
            torch.sqrt(moment, out=out)
        else:
            out.copy_(moment)
            out.sqrt_()
        out.mul_(root)
