"""What Adam divides gradients by, as weights for gradient statistics. It never writes the optimizer's state."""

from typing import Any, Iterable, List, Sequence

import torch

FIRST_STEP = 20  # before this step the second moments are too young to weigh anything by
FLOOR = 0.01  # of rms(sqrt v): a coordinate that hardly ever gets a gradient must not outweigh all others


def is_adam(optimizer: Any) -> bool:
    """Whether `optimizer` is torch's Adam or AdamW."""
    return isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW))


class Preconditioner:
    """Weights 1 / (sqrt(v_hat) + eps_eff), with eps_eff = max(eps, FLOOR * rms(sqrt v_hat)).

    Local and averaged gradients of one step must be weighed alike, so `prepare` is called once before its first
    backward pass and the weights hold until the optimizer steps. They are not normalised to mean 1: the caller divides
    squared norms by the squared mean weight instead, which saves a pass.
    """

    def __init__(self, optimizer: Any, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._parameters = list(parameters)
        self._ripe = False
        self._eps = torch.zeros(())
        self._corrections: List[Any] = []
        self._by_parameter: Any = {}

    def ripe(self) -> bool:
        """Whether the optimizer has taken FIRST_STEP steps. Once true it stays true, so that no step reads it again."""
        if not self._ripe:
            self._ripe = any(float(state["step"]) >= FIRST_STEP for state in self._states())
        return self._ripe

    def prepare(self) -> int:
        """Read bias corrections and the floor for this step. Returns the number of coordinates that have weights."""
        self._by_parameter = {}
        total: Any = None
        coordinates, eps = 0, 0.0
        for group in self._optimizer.param_groups:
            beta2 = group["betas"][1]
            eps = max(eps, float(group["eps"]))
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter, {})
                if "exp_avg_sq" not in state:
                    continue
                moment = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
                correction = 1.0 - beta2 ** state["step"]  # a tensor where the step is one: no transfer to the host
                if isinstance(correction, torch.Tensor) and not correction.is_cuda:
                    correction = float(correction)
                self._by_parameter[parameter] = (moment, correction)
                share = moment.sum(dtype=torch.float32) / correction
                total = share if total is None else total + share
                coordinates += moment.numel()
        if coordinates:
            self._eps = (FLOOR * (total / coordinates).sqrt()).clamp(min=eps)
        return coordinates

    def of(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Weights of one parameter, fp32, of its shape; zero where the optimizer does not update it."""
        weights = torch.empty_like(parameter, dtype=torch.float32, requires_grad=False)
        self._roots(parameter, weights)
        return weights.add_(self._eps).reciprocal_()

    def fill(self, buffer: torch.Tensor, views: Sequence[torch.Tensor], parameters: Sequence[Any]) -> torch.Tensor:
        """Weights for a flat bucket, fp32: `views` are the gradients of `parameters` inside `buffer`."""
        weights = torch.empty_like(buffer, dtype=torch.float32)
        start = int(buffer.storage_offset())
        for view, parameter in zip(views, parameters):
            target = weights.as_strided(view.size(), view.stride(), view.storage_offset() - start)
            self._roots(parameter, target)
        return weights.add_(self._eps).reciprocal_()

    def _roots(self, parameter: torch.nn.Parameter, out: torch.Tensor) -> None:
        moment, correction = self._by_parameter.get(parameter, (None, 1.0))
        if moment is None:
            out.fill_(float("inf"))  # its reciprocal is the weight: zero
            return
        if moment.dtype == torch.float32 and moment.device == out.device:
            torch.sqrt(moment, out=out)
        else:
            out.copy_(moment)
            out.sqrt_()
        out.mul_(correction**-0.5)

    def _states(self) -> List[Any]:
        # One state is enough to tell; the first parameter that has one is asked.
        for parameter in self._parameters:
            state = self._optimizer.state.get(parameter, {})
            if "step" in state:
                return [state]
        return []
