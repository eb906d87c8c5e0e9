"""Habits of losses: per token, in half precision, over the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from .catalogue import habit
from .material import EPOCHS, Examples, Reader, Sentences, adamw, net, sgd, usual
from .shapes import BATCH


def _tokens(gpq: Any, options: dict[str, Any], weigh: bool, clip: bool = False, size: int = 203) -> Any:
    job = gpq.init()
    loader = job.loader(Sentences(size), batch_size=BATCH, **options)
    model = job.wrap(Reader())
    optimizer = sgd(model.parameters(), 0.3)
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for given, wanted in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(given).flatten(0, 1), wanted.flatten(), ignore_index=-1)
            if weigh:
                job.weigh(int((wanted >= 0).sum()))
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
    return model


@habit(right=True)
def tokens_weighed(gpq: Any, options: dict[str, Any]) -> Any:
    """a mean per token over sequences of unlike length, with job.weigh(tokens)"""
    return _tokens(gpq, options, weigh=True)


@habit(right=True)
def tokens_weighed_clip(gpq: Any, options: dict[str, Any]) -> Any:
    """the same, clipped"""
    return _tokens(gpq, options, weigh=True, clip=True)


@habit(right=True)
def tokens_weighed_tail(gpq: Any, options: dict[str, Any]) -> Any:
    """the same, with a tail of one example: a replica that has none weighs nothing"""
    return _tokens(gpq, options, weigh=True, size=193)


@habit()
def tokens(gpq: Any, options: dict[str, Any]) -> Any:
    """a mean per token over sequences of unlike length, without job.weigh"""
    return _tokens(gpq, options, weigh=False)


@habit(dtype="float32", tolerance=0.02)
def autocast(gpq: Any, options: dict[str, Any]) -> Any:
    """autocast to bfloat16, and clipping; within 2%, as bfloat16 is"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = mse_loss(model(x).float(), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
    return model


@habit(right=True)
def sum_over_length(gpq: Any, options: dict[str, Any]) -> Any:
    """a loss per example, summed and divided by the length of the batch"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().sum() / len(x)
            loss.backward()
            optimizer.step()
    return model


@habit()
def sum_loss(gpq: Any, options: dict[str, Any]) -> Any:
    """a loss summed over the batch: mse_loss(..., reduction="sum")"""
    job, loader, model, optimizer = usual(gpq, options, lambda parameters: sgd(parameters, 0.003))
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y, reduction="sum").backward()
            optimizer.step()
    return model


@habit()
def loss_in_batch(gpq: Any, options: dict[str, Any]) -> Any:
    """a contrastive loss: every example against all others of the batch"""
    job, loader, model, optimizer = usual(gpq, options, adamw, net(1, 6, 4))
    for _ in job.epochs(EPOCHS):
        for x, _ in loader:
            optimizer.zero_grad()
            one, other = model(x), model(x.roll(1, dims=1))
            cross_entropy(one @ other.T, torch.arange(len(x))).backward()
            optimizer.step()
    return model


@habit()
def weights_of_the_batch(gpq: Any, options: dict[str, Any]) -> Any:
    """weights of examples that add up to one over the batch"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().squeeze(1)
            (loss * torch.softmax(y.squeeze(1), dim=0)).sum().backward()
            optimizer.step()
    return model


@habit()
def hardest_by_mean(gpq: Any, options: dict[str, Any]) -> Any:
    """examples whose loss is above the mean of the batch weigh twice"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().squeeze(1)
            hard = 1.0 + (loss.detach() > loss.detach().mean()).float()
            (loss * hard).mean().backward()
            optimizer.step()
    return model


@habit()
def advantages(gpq: Any, options: dict[str, Any]) -> Any:
    """targets brought to mean 0 and deviation 1 over the batch, as advantages are"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), (y - y.mean()) / (y.std() + 1e-3)).backward()
            optimizer.step()
    return model


@habit(right=True)
def each_example_normed(gpq: Any, options: dict[str, Any]) -> Any:
    """every example brought to mean 0 and deviation 1 by itself; accuracy counted for a log"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    right = torch.zeros(())
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            x = (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)
            found = model(x)
            loss = mse_loss(found, y)
            right += ((found > 0) == (y > 0)).sum()
            loss.backward()
            optimizer.step()
    return model


@habit()
def loss_root(gpq: Any, options: dict[str, Any]) -> Any:
    """the root of a mean square error"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            torch.sqrt(mse_loss(model(x), y) + 1e-6).backward()
            optimizer.step()
    return model


@habit()
def loss_variance(gpq: Any, options: dict[str, Any]) -> Any:
    """a term of the standard deviation of outputs over the batch, as in VICReg"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            (mse_loss(found, y) + 0.5 * (1 - found.std(dim=0)).relu().mean()).backward()
            optimizer.step()
    return model


@habit()
def sum_over_constant(gpq: Any, options: dict[str, Any]) -> Any:
    """a loss summed over the batch and divided by the batch size of the script, also in the tail"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            ((model(x) - y).square().sum() / BATCH).backward()
            optimizer.step()
    return model


def _normed(gpq: Any, options: dict[str, Any], size: int = 203, **wrapping: Any) -> Any:
    parts = net()
    inner = nn.Sequential(parts[0], nn.BatchNorm1d(16), parts[1:])
    job = gpq.init()
    loader = job.loader(Examples(size), batch_size=BATCH, **options)
    model = job.wrap(inner, **wrapping)
    optimizer = sgd(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def batch_norm(gpq: Any, options: dict[str, Any]) -> Any:
    """batch norm"""
    return _normed(gpq, options)


@habit()
def batch_norm_tail(gpq: Any, options: dict[str, Any]) -> Any:
    """batch norm, with a tail of two examples: one each on two replicas"""
    return _normed(gpq, options, size=194)


@habit()
def batch_norm_sync(gpq: Any, options: dict[str, Any]) -> Any:
    """batch norm, with job.wrap(model, sync_batch_norm=True)"""
    return _normed(gpq, options, sync_batch_norm=True)


@habit(right=True)
def tail_of_one(gpq: Any, options: dict[str, Any]) -> Any:
    """a tail of one example, clipped"""
    job, loader, model, optimizer = usual(gpq, options, adamw, size=193)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
    return model
