"""What is measured, its squared norms, and the sums of those since the last report."""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from gpq_agent.train.internals import foreach_norm
from gpq_agent.train.noise.noise_scale import NoiseScale
from gpq_agent.train.runtime.process_group import finish

HALF = (torch.float16, torch.bfloat16)
CHUNK = 1 << 24  # elements of gradients to weigh at once


class MeasuredParameters:
    """The trained parameters of these optimizers."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.parameters: List[torch.nn.Parameter] = []
        self.as_set: Set[torch.nn.Parameter] = set()
        self._optimizers = list(optimizers)
        self.find()

    def find(self) -> None:
        """The parameters trained now: some may have been frozen before, or added since."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        items = [item for group in groups for item in group["params"]]
        self.parameters[:] = [item for item in items if item.requires_grad]
        self.as_set = set(self.parameters)


class NormSums:
    """Local norms, norms of the mean, and their number, by (batch, count, preconditioned). They
    stay on the device until they are collected. `grad_scale`: the loss scale of the current
    step."""

    def __init__(self, scale: NoiseScale, replicas: int, group: Any, device: torch.device) -> None:
        self.grad_scale: Any = 1.0
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self._scale = scale
        self._replicas, self._group, self._device = replicas, group, device
        self._sums: Dict[Tuple[float, float, bool], torch.Tensor] = {}

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self._device)

    def open(self, batch: float, count: float, *, preconditioned: bool) -> None:
        """Create such a sum, even if nothing is added to it."""
        key = (batch, count, preconditioned)
        if key not in self._sums:
            self._sums[key] = self.zeros(3)

    def add(
        self, local: Any, mean: Any, unit: Any, batch: float, count: float, *, preconditioned: bool
    ) -> None:
        """Squared norms of a step, in this unit and in the unit of the loss scale."""
        unit = unit * self.grad_scale**2
        # All replicas have the same mean, so all skip the same steps. Only a local norm that
        # overflows although the mean does not is skipped by one replica alone.
        entry = torch.stack([local / unit, mean / unit, torch.ones_like(local)]).to(self.dtype)
        entry = torch.where(torch.isfinite(entry).all(), entry, torch.zeros_like(entry))
        key = (batch, count, preconditioned)
        self._sums[key] = self._sums[key] + entry if key in self._sums else entry

    def collect(self) -> None:
        """Combine the sums of all replicas for the NoiseScale. Collective."""
        if not self._sums:
            return
        sums = torch.stack(list(self._sums.values()))
        if self._replicas > 1:
            finish(dist.all_reduce(sums, group=self._group, async_op=True))
        for (batch, count, preconditioned), (local, mean, steps) in zip(self._sums, sums.tolist()):
            if steps > 0:
                self._scale.observe(
                    local / steps,
                    mean / steps,
                    batch=batch,
                    count=count,
                    preconditioned=preconditioned,
                    steps=max(1, round(steps / self._replicas)),
                )
        self._sums.clear()


def chunks(parameters: List[torch.nn.Parameter]) -> Iterator[List[torch.nn.Parameter]]:
    """Chunks so small that a copy of their gradients is nothing compared with the model.

    A larger parameter is a chunk of its own.
    """
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
    """The sum of the squares of all elements, a number of `dtype` on their device.

    On a GPU one operation takes all tensors. On the CPU torch.dot sums in blocks, which is twenty
    times more exact than a norm in the same precision, and as fast.
    """
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
