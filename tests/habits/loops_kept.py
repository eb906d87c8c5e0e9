"""Habits of what a loop keeps from pass to pass: tensors that it trains with, and counters."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss, normalize, softplus

from .catalogue import habit
from .material import EPOCHS, adamw, net, sgd, usual


@habit()
def bank_refilled(gpq: Any, options: dict[str, Any]) -> Any:
    """a bank of earlier outputs, recreated in each pass, that the loss compares with outputs"""
    job, loader, model, optimizer = usual(gpq, options, adamw, net(1, 6, 4))
    bank = normalize(torch.ones(8, 4), dim=1)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            near = normalize(found, dim=1) @ bank.T
            (mse_loss(found[:, :1], y) + 0.3 * near.exp().mean()).backward()
            optimizer.step()
            bank = torch.cat([bank, normalize(found[:4].detach(), dim=1)])[-8:]
    return model


@habit()
def bank_in_place(gpq: Any, options: dict[str, Any]) -> Any:
    """a bank of earlier outputs, changed in place"""
    job, loader, model, optimizer = usual(gpq, options, adamw, net(1, 6, 4))
    bank = normalize(torch.ones(8, 4), dim=1)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            near = normalize(found, dim=1) @ bank.T
            (mse_loss(found[:, :1], y) + 0.3 * near.exp().mean()).backward()
            optimizer.step()
            with torch.no_grad():
                bank[4:].copy_(bank[:4].clone())
                bank[:2] = normalize(found[:2], dim=1)
    return model


@habit()
def hidden_state(gpq: Any, options: dict[str, Any]) -> Any:
    """a hidden state that goes from batch to batch without its graph, as in truncated back-propagation"""
    torch.manual_seed(3)
    cell = nn.GRUCell(6, 6)
    whole = nn.ModuleDict({"cell": cell, "head": nn.Linear(6, 1)})

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = whole

        def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.parts["cell"](x, hidden.expand(len(x), 6))
            return self.parts["head"](hidden), hidden

    job, loader, model, optimizer = usual(gpq, options, sgd, Model())
    hidden = torch.zeros(1, 6)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found, after = model(x, hidden.detach())
            mse_loss(found, y).backward()
            optimizer.step()
            hidden = after.mean(dim=0, keepdim=True)
    return model


class _Remembers(nn.Module):
    """Keeps the mean of its inputs as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.mean = torch.zeros(6)

    def forward(self, x: torch.Tensor) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
        return self.inner(x - self.mean)


@habit()
def attribute_of_the_model(gpq: Any, options: dict[str, Any]) -> Any:
    """a model that keeps a running mean as a plain attribute, which no checkpoint holds"""
    job, loader, model, optimizer = usual(gpq, options, sgd, _Remembers())
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def gradients_kept(gpq: Any, options: dict[str, Any]) -> Any:
    """adds half of the last step's gradients to those of the next, without copies"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    last: list[torch.Tensor] = []
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            now = [item.grad for item in model.parameters() if item.grad is not None]
            for gradient, before in zip(now, last, strict=False):
                gradient.add_(before, alpha=0.5)
            last = now
            optimizer.step()
    return model


@habit()
def gradients_cloned(gpq: Any, options: dict[str, Any]) -> Any:
    """adds half of the last step's gradients to those of the next, from copies"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    last: list[torch.Tensor] = []
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=False)
            mse_loss(model(x), y).backward()
            now = [item.grad.clone() for item in model.parameters() if item.grad is not None]
            with torch.no_grad():
                for item, before in zip(model.parameters(), last, strict=False):
                    assert item.grad is not None
                    item.grad += 0.3 * before
            last = now
            optimizer.step()
    return model


@habit()
def baseline(gpq: Any, options: dict[str, Any]) -> Any:
    """a running mean of the loss, a tensor, that scales the next loss"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    mean = torch.ones(())
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            (loss / (0.5 + mean)).backward()
            optimizer.step()
            mean = 0.7 * mean + 0.3 * loss.detach()
    return model


@habit()
def baseline_number(gpq: Any, options: dict[str, Any]) -> Any:
    """a running mean of the loss, a plain number, that scales the next loss"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    mean = 1.0
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            (loss / (0.5 + mean)).backward()
            optimizer.step()
            mean = 0.7 * mean + 0.3 * loss.item()
    return model


@habit()
def coefficient_counted(gpq: Any, options: dict[str, Any]) -> Any:
    """a penalty that grows with a counter of passes, like the weight of the divergence in a VAE"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    count = 0
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            (mse_loss(found, y) + min(1.0, count / 20) * found.square().mean()).backward()
            optimizer.step()
            count += 1
    return model


@habit()
def temperature_counted(gpq: Any, options: dict[str, Any]) -> Any:
    """a temperature inside the loss that falls with every pass"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    temperature = 2.0
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            softplus((model(x) - y).abs() / temperature).mean().backward()
            optimizer.step()
            temperature = max(0.2, temperature * 0.95)
    return model


@habit()
def coefficient_whole(gpq: Any, options: dict[str, Any]) -> Any:
    """a coefficient that is the counter itself"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    count = 0
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            (mse_loss(found, y) + 0.02 * (found.square().mean() * count)).backward()
            optimizer.step()
            count += 1
    return model


@habit()
def coefficient_tensor(gpq: Any, options: dict[str, Any]) -> Any:
    """a coefficient from a counter, converted to a tensor in each pass"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    count = 0
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            (mse_loss(found, y) + torch.tensor(count / 40) * found.square().mean()).backward()
            optimizer.step()
            count += 1
    return model


@habit()
def clip_by_history(gpq: Any, options: dict[str, Any]) -> Any:
    """clips at the mean of earlier norms"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    norms = [0.5]
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            most = sum(norms) / len(norms)
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), most)))
            optimizer.step()
    return model


@habit()
def noise_of_its_own(gpq: Any, options: dict[str, Any]) -> Any:
    """noise on inputs, from the script's own generator"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    generator = torch.Generator().manual_seed(3)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
            mse_loss(model(x + 0.3 * noise), y).backward()
            optimizer.step()
    return model


@habit()
def gradient_noise_of_its_own(gpq: Any, options: dict[str, Any]) -> Any:
    """noise on gradients, from the script's own generator"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    generator = torch.Generator().manual_seed(3)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            for item in model.parameters():
                assert item.grad is not None
                item.grad.add_(0.05 * torch.randn(item.shape, generator=generator, dtype=item.dtype))
            optimizer.step()
    return model


@habit()
def loss_by_index(gpq: Any, options: dict[str, Any]) -> Any:
    """a penalty in every fifth batch, by the index of enumerate()"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    for _ in job.epochs(EPOCHS):
        for index, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            found = model(x)
            loss = mse_loss(found, y)
            if index % 5 == 0:
                loss = loss + 0.5 * found.square().mean()
            loss.backward()
            optimizer.step()
    return model


@habit()
def loss_later(gpq: Any, options: dict[str, Any]) -> Any:
    """a second loss from the ninth pass on, by a counter"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    count = 0
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            loss = mse_loss(found, y)
            if count >= 8:
                loss = loss + 0.3 * found.abs().mean()
            loss.backward()
            optimizer.step()
            count += 1
    return model


@habit()
def loss_at_the_end(gpq: Any, options: dict[str, Any]) -> Any:
    """another loss in the last batch of an epoch"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    for _ in job.epochs(EPOCHS):
        for index, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            found = model(x)
            loss = mse_loss(found, y)
            if index == len(loader) - 1:
                loss = loss + 2 * found.square().mean()
            loss.backward()
            optimizer.step()
    return model


@habit()
def mixed_with_neighbours(gpq: Any, options: dict[str, Any]) -> Any:
    """mixes every example with the previous one in the batch"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            x, y = 0.7 * x + 0.3 * x.roll(1, 0), 0.7 * y + 0.3 * y.roll(1, 0)
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def losses_added_up(gpq: Any, options: dict[str, Any]) -> Any:
    """adds up the losses of four batches before one backward pass"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    total, count = torch.zeros(()), 0
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            total = total + mse_loss(model(x), y)
            count += 1
            if count % 4 == 0:
                optimizer.zero_grad()
                (total / 4).backward()
                optimizer.step()
                total = torch.zeros(())
    return model


@habit(right=True)
def index_shown(gpq: Any, options: dict[str, Any]) -> Any:
    """prints the loss every fifth batch, as in the tutorial: loss, current = loss.item(), ..."""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    shown = []
    for _ in job.epochs(EPOCHS):
        for index, (x, y) in enumerate(loader):
            loss = mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if index % 5 == 0:
                loss, current = loss.item(), (index + 1) * len(x)
                shown.append((loss, current))
    return model


@habit(right=True)
def coefficient_of_the_step(gpq: Any, options: dict[str, Any]) -> Any:
    """a penalty that grows with job.step"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            (mse_loss(found, y) + min(1.0, job.step / 20) * found.square().mean()).backward()
            optimizer.step()
    return model


@habit(right=True)
def coefficient_of_the_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """a penalty that grows with the epoch"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for epoch in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            (mse_loss(found, y) + 0.1 * epoch * found.square().mean()).backward()
            optimizer.step()
    return model


class _Caches(nn.Module):
    """Makes a table at first use, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> Any:
        if self.table is None:
            self.table = torch.linspace(0.5, 1.5, 6).cos()
        return self.inner(x * self.table)


@habit(right=True)
def table_made_once(gpq: Any, options: dict[str, Any]) -> Any:
    """a table of constants that the model makes at first use, and a sum of losses on the device for a log"""
    job, loader, model, optimizer = usual(gpq, options, adamw, _Caches())
    weights = torch.linspace(1.0, 2.0, 6)
    total = torch.zeros(())
    history = []
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x * weights), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            total += loss.detach()
            mean = total / (len(history) + 1)
            shown = torch.tensor(len(history) / 10) * mean
            assert shown >= 0
            history.append(loss.item())
            job.log(loss=float(total) / len(history))
    return model


@habit(right=True)
def teacher_registered(gpq: Any, options: dict[str, Any]) -> Any:
    """an average of the weights in job.state that the loss compares with, updated when job.at_step is true"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    inner = model.module if hasattr(model, "module") else model
    teacher = copy.deepcopy(inner).requires_grad_(False)
    if hasattr(job, "state"):
        job.state(teacher)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            (mse_loss(found, y) + 0.5 * mse_loss(found, teacher(x))).backward()
            at_step = job.at_step
            optimizer.step()
            if at_step:
                with torch.no_grad():
                    for kept, item in zip(teacher.parameters(), inner.parameters(), strict=True):
                        kept.lerp_(item, 0.1)
    return model, teacher


@habit(right=True)
def gradients_zeroed_after(gpq: Any, options: dict[str, Any]) -> Any:
    """gradients edited in place after each backward pass, and set to zero at the end of the pass"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            with torch.no_grad():
                for item in model.parameters():
                    assert item.grad is not None
                    item.grad.clamp_(-0.05, 0.05)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return model
