"""Optimizers that scripts bring with them, in the versions that people copy, with their strengths and faults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class Lion(Optimizer):
    """Chen et al. 2023: the sign of an interpolated momentum."""

    def __init__(self, parameters: Any, lr: float = 0.003) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                # A smooth sign. With the real one, rounding alone reverses a coordinate.
                update = (state["mean"] * beta1 + parameter.grad * (1 - beta1)).mul_(1e3).tanh_()
                parameter.add_(update, alpha=-group["lr"])
                state["mean"].lerp_(parameter.grad, 1 - beta2)


class Lamb(Optimizer):
    """You et al. 2020: Adam's step, scaled by the norm of the layer."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"], state["mean"] = 0, torch.zeros_like(parameter)
                    state["square"] = torch.zeros_like(parameter)
                state["step"] += 1
                state["mean"].lerp_(parameter.grad, 1 - beta1)
                state["square"].lerp_(parameter.grad.square(), 1 - beta2)
                mean = state["mean"] / (1 - beta1 ** state["step"])
                square = state["square"] / (1 - beta2 ** state["step"])
                update = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * parameter
                trust = float(parameter.norm() / update.norm()) if parameter.norm() > 0 else 1.0
                parameter.add_(update, alpha=-group["lr"] * trust)


class RelativeAdafactor(Optimizer):
    """Shazeer and Stern 2018 with relative steps: `lr` is None, and the optimizer computes its own."""

    def __init__(self, parameters: Any, lr: float | None = None) -> None:
        super().__init__(parameters, {"lr": lr, "eps": (1e-30, 1e-3), "decay": -0.8})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, square = self.state[parameter], parameter.grad.square() + group["eps"][0]
                if not state:
                    state["step"] = 0
                    state["row"] = torch.zeros_like(square.mean(-1, keepdim=True))
                    state["column"] = torch.zeros_like(square.mean(-2, keepdim=True) if square.ndim > 1 else square)
                state["step"] += 1
                kept = 1.0 - state["step"] ** group["decay"]
                state["row"].lerp_(square.mean(-1, keepdim=True), 1 - kept)
                state["column"].lerp_(square.mean(-2, keepdim=True) if square.ndim > 1 else square, 1 - kept)
                mean = state["row"] * state["column"] / state["row"].mean() if square.ndim > 1 else state["column"]
                update = parameter.grad / mean.sqrt()
                update.div_(max(1.0, float(update.square().mean().sqrt())))
                rate = min(1e-1, state["step"] ** -0.5) * max(group["eps"][1], float(parameter.square().mean().sqrt()))
                parameter.add_(update, alpha=-rate)


class Sam(Optimizer):
    """Foret et al. 2021, as in the implementation that everybody copies: two steps, with a base optimizer inside."""

    def __init__(self, parameters: Iterable[Any], base: Any, rho: float = 0.05, **options: Any) -> None:
        super().__init__(parameters, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["old"] = parameter.data.clone()
                    parameter.add_(parameter.grad, alpha=float(group["rho"] / (norm + 1e-12)))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data = self.state[parameter]["old"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is not None, "sharpness aware minimization needs a closure"
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()


class Lookahead:
    """Zhang et al. 2019. It wraps another optimizer and is not an Optimizer itself."""

    def __init__(self, base: Optimizer, k: int = 5, alpha: float = 0.5) -> None:
        self.base, self.k, self.alpha, self.count = base, k, alpha, 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in base.param_groups]

    @torch.no_grad()
    def step(self) -> None:
        self.base.step()
        self.count += 1
        if self.count % self.k == 0:
            for group, slow in zip(self.base.param_groups, self.slow, strict=True):
                for parameter, own in zip(group["params"], slow, strict=True):
                    own.lerp_(parameter, self.alpha)
                    parameter.copy_(own)


class Polyak(Optimizer):
    """Loizou et al. 2021: the loss that a step receives determines its learning rate."""

    def __init__(self, parameters: Any, most: float = 0.3) -> None:
        super().__init__(parameters, {"lr": most})

    @torch.no_grad()
    def step(self, closure: Any = None, loss: Any = None) -> Any:
        every = [item for group in self.param_groups for item in group["params"] if item.grad is not None]
        square = float(sum(item.grad.square().sum() for item in every))
        for group in self.param_groups:
            rate = min(float(loss) / (square + 1e-8), group["lr"])
            for item in group["params"]:
                if item.grad is not None:
                    item.add_(item.grad, alpha=-rate)
