"""What Adam divides gradients by, as weights for gradient statistics.

Never writes the optimizer's state.
"""

from typing import Any, Iterable, List, Sequence, Tuple

import torch

from gpq_agent.train.internals import (
    foreach_add_,
    foreach_div,
    foreach_mul_,
    foreach_reciprocal_,
    foreach_sqrt,
)

FIRST_STEP = 20  # before this step the second moments are too young for weights
# Of rms(sqrt v): a coordinate that rarely gets a gradient must not outweigh all others.
FLOOR = 0.01


def is_adam(optimizer: Any) -> bool:
    """Whether `optimizer` is torch's Adam or AdamW."""
    return isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW))


class Preconditioner:
    """Weights 1 / (sqrt(v_hat) + eps_eff), with eps_eff = max(eps, FLOOR * rms(sqrt v_hat)).

    Local and averaged gradients of one step must have the same weights, so `prepare` is called once
    before its first backward pass. The weights hold until the optimizer steps. They are not
    normalised to mean 1. Instead the caller divides squared norms by the squared mean weight, which
    saves a pass.
    """

    def __init__(self, optimizer: Any, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._parameters = list(parameters)
        self._is_ripe = False
        self._eps = torch.zeros(())
        self._by_parameter: Any = {}

    def ripe(self) -> bool:
        """Whether the optimizer has taken FIRST_STEP steps.

        Once true it stays true, so that no step reads it again.
        """
        if not self._is_ripe:
            self._is_ripe = any(float(state["step"]) >= FIRST_STEP for state in self._states())
        return self._is_ripe

    def prepare(self) -> int:
        """Read bias corrections and the floor for this step.

        Returns the number of coordinates that have weights.
        """
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
            roots, share = _corrected(
                [state["step"] for state in states.values()], group["betas"][1], shares
            )
            self._by_parameter.update(zip(states, zip(moments, roots)))
            total = share if total is None else total + share
            coordinates += sum(moment.numel() for moment in moments)
        if coordinates:
            self._eps = (FLOOR * (total / coordinates).sqrt()).clamp(min=eps)
        return coordinates

    def of(self, parameters: Sequence[torch.nn.Parameter]) -> List[torch.Tensor]:
        """The weights of each, fp32, of its shape. Zero if the optimizer does not update it.

        Each operation takes all of them: one by one, a model's hundred tensors take a GPU longer
        than its whole step.
        """
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

    def _states(self) -> List[Any]:
        # One state is enough: that of the first parameter that has one.
        for parameter in self._parameters:
            state = self._optimizer.state.get(parameter, {})
            if "step" in state:
                return [state]
        return []


def _corrected(
    steps: List[Any], beta: float, shares: torch.Tensor
) -> Tuple[List[Any], torch.Tensor]:
    """(factor on the root of each second moment, sum of all corrected moments).

    Steps on the GPU stay there.
    """
    if isinstance(steps[0], torch.Tensor) and steps[0].is_cuda:
        corrections = 1.0 - beta ** torch.stack(steps)
        return list(corrections.rsqrt().unbind()), (shares / corrections).sum()
    numbers = [1.0 - beta ** float(step) for step in steps]
    parts = foreach_div(list(shares.unbind()), numbers)
    return [number**-0.5 for number in numbers], torch.stack(list(parts)).sum()
