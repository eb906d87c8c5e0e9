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
    """a mean per token over sequences of different lengths, with job.weigh(tokens)"""
    return _tokens(gpq, options, weigh=True)


@habit(right=True)
def tokens_weighed_clip(gpq: Any, options: dict[str, Any]) -> Any:
    """a mean per token with job.weigh(tokens), clipped"""
    return _tokens(gpq, options, weigh=True, clip=True)


@habit(right=True)
def tokens_weighed_tail(gpq: Any, options: dict[str, Any]) -> Any:
    """a mean per token with job.weigh(tokens) and a tail of one example, so an idle replica must weigh nothing"""
    return _tokens(gpq, options, weigh=True, size=193)


@habit()
def tokens(gpq: Any, options: dict[str, Any]) -> Any:
    """a mean per token over sequences of different lengths, without job.weigh"""
    return _tokens(gpq, options, weigh=False)


@habit(dtype="float32", tolerance=0.02)
def autocast(gpq: Any, options: dict[str, Any]) -> Any:
    """autocast to bfloat16, and clipping, with the 2% tolerance of bfloat16"""
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
    """a contrastive loss, which compares every example with all others of the batch"""
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
    """weights of examples that sum to one over the batch"""
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
    """doubles the weight of examples whose loss is above the mean of the batch"""
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
    """targets normalised to mean 0 and deviation 1 over the batch, like advantages"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), (y - y.mean()) / (y.std() + 1e-3)).backward()
            optimizer.step()
    return model


@habit(right=True)
def each_example_normed(gpq: Any, options: dict[str, Any]) -> Any:
    """normalises every example to mean 0 and deviation 1 by itself, and counts accuracy for a log"""
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
    """a term with the standard deviation of outputs over the batch, as in VICReg"""
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
    """a loss summed over the batch and divided by the script's batch size, also in the tail"""
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
    """batch norm, with a tail of two examples, one on each of two replicas"""
    return _normed(gpq, options, size=194)


@habit()
def batch_norm_sync(gpq: Any, options: dict[str, Any]) -> Any:
    """batch norm, with job.wrap(model, sync_batch_norm=True)"""
    return _normed(gpq, options, sync_batch_norm=True)


@habit(right=True, alone=True)
def batch_norm_grouped(gpq: Any, options: dict[str, Any]) -> Any:
    """batch norm, with job.wrap(model, batch_norm=3)"""
    return _normed(gpq, options, batch_norm=3)


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


@habit()
def weight_by_gradients(gpq: Any, options: dict[str, Any]) -> Any:
    """a second loss weighted by a ratio of gradient norms, as in a VQGAN"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found, last = model(x), list(model.parameters())[-2]
            one, other = mse_loss(found, y), found.square().mean()
            first = torch.autograd.grad(one, last, retain_graph=True)[0]
            second = torch.autograd.grad(other, last, retain_graph=True)[0]
            weight = (first.norm() / (second.norm() + 1e-4)).clamp(0, 10).detach()
            (one + 0.1 * weight * other).backward()
            optimizer.step()
    return model


@habit()
def first_ten(gpq: Any, options: dict[str, Any]) -> Any:
    """trains on the first ten examples of every batch"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x[:10]), y[:10]).backward()
            optimizer.step()
    return model


@habit()
def halves_mixed(gpq: Any, options: dict[str, Any]) -> Any:
    """mixes the first half of a batch with the second"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            half = len(x) // 2
            x = 0.7 * x[:half] + 0.3 * x[half : 2 * half]
            y = 0.7 * y[:half] + 0.3 * y[half : 2 * half]
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(right=True)
def in_chunks(gpq: Any, options: dict[str, Any]) -> Any:
    """adds up the losses of chunks of a batch, weighted by their examples, and prints the first rows"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = sum(
                mse_loss(model(a), b, reduction="sum") for a, b in zip(x.split(3), y.split(3), strict=True)
            ) / len(x)
            loss.backward()
            job.log(first=x[:4].mean().item(), of=float(y[0]))
            optimizer.step()
    return model


@habit()
def hardest_four(gpq: Any, options: dict[str, Any]) -> Any:
    """trains on the four hardest examples of every batch"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            losses = (model(x) - y).square().mean(dim=1)
            losses.topk(4).values.mean().backward()
            optimizer.step()
    return model


@habit()
def masked_mean(gpq: Any, options: dict[str, Any]) -> Any:
    """a mean over the examples that a mask picks"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            losses = (model(x) - y).square().mean(dim=1)
            mask = (x.mean(dim=1) > 0).to(losses.dtype)
            ((losses * mask).sum() / mask.sum().clamp(min=1)).backward()
            optimizer.step()
    return model


@habit()
def class_weights(gpq: Any, options: dict[str, Any]) -> Any:
    """a cross-entropy with class weights, which is a weighted mean over the batch"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            weight = torch.tensor([1.0, 5.0], dtype=found.dtype)
            cross_entropy(torch.cat([found, -found], dim=1), (y[:, 0] > 0).long(), weight=weight).backward()
            optimizer.step()
    return model


@habit()
def ignored_classes(gpq: Any, options: dict[str, Any]) -> Any:
    """a cross-entropy that ignores some targets"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            target = (y[:, 0] > 0).long().masked_fill(x[:, 0] > 0.5, -100)
            cross_entropy(torch.cat([found, -found], dim=1), target).backward()
            optimizer.step()
    return model


@habit()
def pairs_compared(gpq: Any, options: dict[str, Any]) -> Any:
    """compares every second example with the previous one, as in a ranking"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found, even = model(x), len(x) // 2 * 2
            mse_loss(found[:even:2] - found[1:even:2], y[:even:2] - y[1:even:2]).backward()
            optimizer.step()
    return model


@habit()
def pairs_of_passes(gpq: Any, options: dict[str, Any]) -> Any:
    """compares every second example with the previous one, with one pass through the model for each"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            even = len(x) // 2 * 2
            one, other = model(x[:even:2]), model(x[1:even:2])
            (mse_loss(one, y[:even:2]) + 0.3 * mse_loss(one, other)).backward()
            optimizer.step()
    return model
