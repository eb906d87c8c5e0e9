"""Habits of passes: several backward passes per step, recomputation, sharpness-aware steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss
from torch.utils.checkpoint import checkpoint

from .catalogue import habit
from .material import EPOCHS, Examples, adamw, net, usual
from .own_optimizers import Lookahead, Sam
from .shapes import BATCH


@habit()
def two_passes(gpq: Any, options: dict[str, Any]) -> Any:
    """two forward and backward passes, then one step"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            (0.5 * mse_loss(model(-x), y)).backward()
            optimizer.step()
    return model


@habit()
def two_passes_clip(gpq: Any, options: dict[str, Any]) -> Any:
    """two forward and backward passes, clipped to the norm of their sum"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            mse_loss(model(-x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
    return model


@habit()
def two_forwards_one_backward(gpq: Any, options: dict[str, Any]) -> Any:
    """two forward passes and one backward pass of the sum (Siamese nets, consistency losses)"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            one, other = model(x), model(-x)
            (mse_loss(one, y) + 0.3 * mse_loss(one, -other)).backward()
            optimizer.step()
    return model


@habit()
def chunks_by_hand(gpq: Any, options: dict[str, Any]) -> Any:
    """splits every batch into chunks of four with one pass each, and clips their sum"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            for part, wanted in zip(x.split(4), y.split(4), strict=True):
                (mse_loss(model(part), wanted, reduction="sum") / len(x)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
    return model


@habit()
def retain_graph(gpq: Any, options: dict[str, Any]) -> Any:
    """two backward passes of one graph, with retain_graph=True"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            mse_loss(found, y).backward(retain_graph=True)
            l1_loss(found, -y).backward()
            optimizer.step()
    return model


@habit(right=True)
def several_losses(gpq: Any, options: dict[str, Any]) -> Any:
    """one forward pass, several losses, and one backward pass of their sum"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            losses = [mse_loss(found, y), 0.1 * l1_loss(found, -y), 0.01 * found.square().mean()]
            sum(losses).backward()
            optimizer.step()
    return model


@habit(right=("one", "two", "resize"))
def sam_class(gpq: Any, options: dict[str, Any]) -> Any:
    """SAM as a class around a base optimizer: first_step, a second pass, second_step"""
    job, loader, model, optimizer = usual(
        gpq, options, lambda parameters: Sam(parameters, torch.optim.SGD, rho=0.2, lr=0.05, momentum=0.9)
    )
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            optimizer.first_step(zero_grad=True)
            mse_loss(model(x), y).backward()
            optimizer.second_step(zero_grad=True)
    return model


@habit(right=("one", "two", "resize"))
def sam_by_hand(gpq: Any, options: dict[str, Any]) -> Any:
    """SAM in the loop: up the gradient, zero_grad, a second pass, back down, step"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            parameters = list(model.parameters())
            with torch.no_grad():
                norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
                climbs = [0.2 * parameter.grad / norm for parameter in parameters]
                torch._foreach_add_(parameters, climbs)
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            with torch.no_grad():
                torch._foreach_sub_(parameters, climbs)
            optimizer.step()
    return model


@habit()
def lookahead(gpq: Any, options: dict[str, Any]) -> Any:
    """Lookahead around an optimizer, which moves the weights halfway back in every fifth step"""
    job, loader, model, optimizer = usual(gpq, options)
    ahead = Lookahead(optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            ahead.step()
    return model


class Recomputed(nn.Module):
    """Three layers, the second of which is recomputed. `first`: register it before the others."""

    def __init__(self, *, reentrant: bool, first: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        parts = net(1)
        if first:
            self.middle = nn.Sequential(parts[2], nn.Tanh())
        self.stem, self.head = nn.Sequential(parts[0], nn.Tanh()), parts[4]
        if not first:
            self.middle = nn.Sequential(parts[2], nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(self.middle, self.stem(x), use_reentrant=self.reentrant)
        return self.head(y)  # type: ignore[no-any-return]


def _recomputed(gpq: Any, options: dict[str, Any], *, reentrant: bool, first: bool) -> Any:
    job, loader, model, optimizer = usual(gpq, options, adamw, Recomputed(reentrant=reentrant, first=first))
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def checkpoint_reentrant_first(gpq: Any, options: dict[str, Any]) -> Any:
    """reentrant checkpointing of a module that is registered first"""
    return _recomputed(gpq, options, reentrant=True, first=True)


@habit()
def checkpoint_reentrant_last(gpq: Any, options: dict[str, Any]) -> Any:
    """reentrant checkpointing of a module that is registered last"""
    return _recomputed(gpq, options, reentrant=True, first=False)


@habit()
def checkpoint_plain(gpq: Any, options: dict[str, Any]) -> Any:
    """checkpointing that is not reentrant"""
    return _recomputed(gpq, options, reentrant=False, first=True)


@habit()
def gradient_penalty(gpq: Any, options: dict[str, Any]) -> Any:
    """a penalty on the gradient of the input: create_graph, a double backward pass"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            x.requires_grad_(True)
            found = model(x)
            (slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)
            (mse_loss(found, y) + 0.1 * (slope.norm(dim=1) - 1).square().mean()).backward()
            optimizer.step()
    return model


@habit(stops=(4, 18))
def accumulation_by_hand(gpq: Any, options: dict[str, Any]) -> Any:
    """accumulates by itself: a step every second batch, with losses halved"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for index, (x, y) in enumerate(loader):
            (mse_loss(model(x), y) / 2).backward()
            if (index + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return model


@habit()
def autograd_grad(gpq: Any, options: dict[str, Any]) -> Any:
    """torch.autograd.grad, with its results written to p.grad"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            parameters = list(model.parameters())
            found = torch.autograd.grad(mse_loss(model(x), y), parameters)
            for parameter, gradient in zip(parameters, found, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return model


@habit()
def compiled(gpq: Any, options: dict[str, Any]) -> Any:
    """torch.compile of the wrapped model"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = adamw(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    swift = torch.compile(model, backend="eager", dynamic=True)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(swift(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
    return model


@habit(right=True)
def backward_twice_the_loss(gpq: Any, options: dict[str, Any]) -> Any:
    """loss.backward(gradient=2): twice the loss"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward(gradient=2 * torch.ones_like(loss))
            optimizer.step()
    return model


@habit(right=True)
def backward_of_both(gpq: Any, options: dict[str, Any]) -> Any:
    """torch.autograd.backward([one, other])"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            torch.autograd.backward([mse_loss(found, y), 0.1 * found.square().mean()])
            optimizer.step()
    return model


@habit(right=True)
def backward_vector_mean(gpq: Any, options: dict[str, Any]) -> Any:
    """a loss per example, and backward(1 / len) of each"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            losses = (model(x) - y).square().mean(dim=1)
            losses.backward(torch.ones_like(losses) / len(losses))
            optimizer.step()
    return model


@habit()
def backward_vector_sum(gpq: Any, options: dict[str, Any]) -> Any:
    """a loss per example, and backward(1) of each, which is their sum"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            losses = (model(x) - y).square().mean(dim=1)
            losses.backward(torch.ones_like(losses))
            optimizer.step()
    return model


@habit()
def backward_own_share(gpq: Any, options: dict[str, Any]) -> Any:
    """a mean and backward(len(x) / 16), its own share of the batch"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward(gradient=torch.full_like(loss, len(x) / 16))
            optimizer.step()
    return model


@habit(right=True)
def input_attack(gpq: Any, options: dict[str, Any]) -> Any:
    """adversarial training with the sign of the input's gradient, from torch.autograd.grad"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            x = x.clone().requires_grad_()
            gradient = torch.autograd.grad(mse_loss(model(x), y), x)[0]
            x = (x + 0.05 * gradient.sign()).detach()
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def input_attack_backward(gpq: Any, options: dict[str, Any]) -> Any:
    """adversarial training with the sign of x.grad from backward(), and gradients cleared after it"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            x = x.clone().requires_grad_()
            mse_loss(model(x), y).backward()
            x = (x + 0.05 * x.grad.sign()).detach()
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def projected_gradients(gpq: Any, options: dict[str, Any]) -> Any:
    """two losses, with gradients from torch.autograd.grad, one projected onto the other (PCGrad)"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            parameters = list(model.parameters())
            found = model(x)
            one = torch.autograd.grad(mse_loss(found, y), parameters, retain_graph=True)
            other = torch.autograd.grad(found.square().mean(), parameters)
            dot = sum((a * b).sum() for a, b in zip(one, other, strict=True))
            square = sum((b * b).sum() for b in other)
            share = min(float(dot / square), 0.0)
            for parameter, a, b in zip(parameters, one, other, strict=True):
                parameter.grad = a - share * b + 0.1 * b
            optimizer.step()
    return model
