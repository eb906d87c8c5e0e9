"""Habits of parameters: frozen, unused, shared, sparse, complex, outside the model, and with hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

from .catalogue import habit
from .material import EPOCHS, Examples, Reader, Sentences, adamw, net, sgd, usual
from .shapes import BATCH


def _thawed(gpq: Any, options: dict[str, Any], due: Any, wanted: bool) -> Any:
    inner = net()
    for parameter in inner[0].parameters():
        parameter.requires_grad_(not wanted)
    job, loader, model, optimizer = usual(gpq, options, adamw, inner)
    for epoch in job.epochs(EPOCHS):
        if due(epoch):
            for parameter in inner[0].parameters():
                parameter.requires_grad_(wanted)
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def unfreeze_from(gpq: Any, options: dict[str, Any]) -> Any:
    """unfreezes a layer from epoch 1 on: if epoch >= 1"""
    return _thawed(gpq, options, lambda epoch: epoch >= 1, wanted=True)


@habit(stops=(5, 27))
def unfreeze_at(gpq: Any, options: dict[str, Any]) -> Any:
    """unfreezes a layer at epoch 1: if epoch == 1, which a restart in epoch 2 skips"""
    return _thawed(gpq, options, lambda epoch: epoch == 1, wanted=True)


@habit()
def freeze_later(gpq: Any, options: dict[str, Any]) -> Any:
    """freezes a layer from epoch 1 on"""
    return _thawed(gpq, options, lambda epoch: epoch >= 1, wanted=False)


@habit()
def unfreeze_group(gpq: Any, options: dict[str, Any]) -> Any:
    """unfreezes a layer at epoch 1 and adds it to the optimizer with add_param_group"""
    inner = net()
    inner[0].requires_grad_(False)
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(inner)
    optimizer = adamw(inner[2:].parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    for epoch in job.epochs(EPOCHS):
        if epoch == 1:
            inner[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(inner[0].parameters()), "lr": 0.005})
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def criterion_parameters(gpq: Any, options: dict[str, Any]) -> Any:
    """a learnable temperature in the criterion, in the optimizer but outside the wrapped model"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    temperature = nn.Parameter(torch.tensor([0.5]))
    optimizer = adamw([*model.parameters(), temperature])
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x) * temperature.exp(), y).backward()
            optimizer.step()
    return {"model": model, "temperature": temperature}


class Branches(nn.Module):
    """A net with a second branch, used only on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.branch = net(1), net(3)

    def forward(self, x: torch.Tensor, both: bool = False) -> torch.Tensor:
        y = self.body(x)
        return y + self.branch(x) if both else y  # type: ignore[no-any-return]


def _unused(gpq: Any, options: dict[str, Any], find: bool, alternating: bool) -> Any:
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model: nn.Module = Branches()
    own = find and job.replicas > 1
    model = DistributedDataParallel(model, find_unused_parameters=True) if own else job.wrap(model)
    optimizer = adamw(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x, both=alternating and job.step % 2 == 0), y).backward()
            optimizer.step()
    return model


@habit()
def unused_found(gpq: Any, options: dict[str, Any]) -> Any:
    """a branch that is never used, with find_unused_parameters=True"""
    return _unused(gpq, options, find=True, alternating=False)


@habit()
def unused_alternating(gpq: Any, options: dict[str, Any]) -> Any:
    """a branch used in every second step, with find_unused_parameters=True"""
    return _unused(gpq, options, find=True, alternating=True)


@habit()
def unused(gpq: Any, options: dict[str, Any]) -> Any:
    """a branch that is never used, without find_unused_parameters"""
    return _unused(gpq, options, find=False, alternating=False)


@habit()
def unused_alternating_silent(gpq: Any, options: dict[str, Any]) -> Any:
    """a branch used in every second step, without find_unused_parameters"""
    return _unused(gpq, options, find=False, alternating=True)


def _read(gpq: Any, options: dict[str, Any], model: Reader, make: Any) -> Any:
    job = gpq.init()
    loader = job.loader(Sentences(), batch_size=BATCH, **options)
    wrapped = job.wrap(model)
    optimizer = make(wrapped.parameters())
    wrapped, optimizer, _ = job.prepare(wrapped, optimizer)
    for _ in job.epochs(EPOCHS):
        for given, wanted in loader:
            optimizer.zero_grad()
            cross_entropy(wrapped(given).flatten(0, 1), wanted.clamp(min=0).flatten()).backward()
            optimizer.step()
    return wrapped


@habit(right=True)
def weight_tying(gpq: Any, options: dict[str, Any]) -> Any:
    """a transformer whose head shares the weights of its embedding"""
    return _read(gpq, options, Reader(tied=True), adamw)


@habit()
def sparse_embedding(gpq: Any, options: dict[str, Any]) -> Any:
    """an embedding with sparse gradients"""
    model = Reader()
    model.embed = nn.Embedding(11, 16, sparse=True, _weight=model.embed.weight.detach().clone())
    return _read(gpq, options, model, lambda parameters: torch.optim.SGD(parameters, lr=0.1))


class Waves(nn.Module):
    """A layer with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.weight = nn.Parameter(torch.randn(6, 8, dtype=torch.complex128) / 3)
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((x.to(self.weight.dtype) @ self.weight).abs())  # type: ignore[no-any-return]


@habit()
def complex_parameters(gpq: Any, options: dict[str, Any]) -> Any:
    """complex parameters"""
    job, loader, model, optimizer = usual(gpq, options, sgd, Waves())
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def functional_call(gpq: Any, options: dict[str, Any]) -> Any:
    """torch.func.functional_call with weights computed from the parameters"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            weights = {name: parameter.tanh() for name, parameter in model.named_parameters()}
            mse_loss(torch.func.functional_call(model, weights, (x,)), y).backward()
            optimizer.step()
    return model


def _hooked(gpq: Any, options: dict[str, Any], hook: Any, after: bool = False) -> Any:
    inner = net()
    for parameter in inner.parameters():
        if after:
            parameter.register_post_accumulate_grad_hook(hook)
        else:
            parameter.register_hook(hook)
    job, loader, model, optimizer = usual(gpq, options, sgd, inner)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def hook_scale(gpq: Any, options: dict[str, Any]) -> Any:
    """a gradient hook that halves gradients"""
    return _hooked(gpq, options, lambda gradient: gradient * 0.5)


@habit()
def hook_clip(gpq: Any, options: dict[str, Any]) -> Any:
    """a gradient hook that clips gradients"""
    return _hooked(gpq, options, lambda gradient: gradient.clamp(-0.02, 0.02))


@habit()
def hook_after_clip(gpq: Any, options: dict[str, Any]) -> Any:
    """a hook after accumulation that clips p.grad in place"""

    def clip(parameter: Any) -> None:
        parameter.grad.clamp_(-0.02, 0.02)

    return _hooked(gpq, options, clip, after=True)


@habit()
def spectral_norm(gpq: Any, options: dict[str, Any]) -> Any:
    """spectral norm, whose power iteration continues in every forward pass"""
    inner = net()
    torch.manual_seed(3)
    nn.utils.parametrizations.spectral_norm(inner[2])
    job, loader, model, optimizer = usual(gpq, options, sgd, inner)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def freeze_in_turns(gpq: Any, options: dict[str, Any]) -> Any:
    """trains the first and the last layer alternately, batch by batch"""
    inner = net()
    job, loader, model, optimizer = usual(gpq, options, adamw, inner)
    for _ in job.epochs(EPOCHS):
        for index, (x, y) in enumerate(loader):
            inner[0].requires_grad_(index % 2 == 0)
            inner[4].requires_grad_(index % 2 == 1)
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model
