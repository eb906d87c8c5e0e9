"""Habits of the loop itself: epochs, loaders, samplers, leaving early, evaluation during training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, DistributedSampler, Sampler, WeightedRandomSampler

from .catalogue import habit
from .material import EPOCHS, SIZE, Examples, adamw, net, usual
from .shapes import BATCH


@habit()
def range_epochs(gpq: Any, options: dict[str, Any]) -> Any:
    """for epoch in range(n) instead of job.epochs(n)"""
    _, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def range_break(gpq: Any, options: dict[str, Any]) -> Any:
    """for epoch in range(n), leaving each epoch after eight batches"""
    _, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in range(EPOCHS):
        for index, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            if index == 7:
                break
    return model


def _own_loader(gpq: Any, options: dict[str, Any], spread: bool) -> Any:
    job = gpq.init()
    data = Examples()
    job.loader(data, batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = adamw(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    if spread:
        sampler: Sampler[Any] = DistributedSampler(data, job.replicas, job.rank, shuffle=False)
        own: DataLoader[Any] = DataLoader(data, BATCH // job.replicas, sampler=sampler)
    else:
        own = DataLoader(data, BATCH)
    for _ in job.epochs(EPOCHS):
        for x, y in own:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def own_loader(gpq: Any, options: dict[str, Any]) -> Any:
    """its own DataLoader inside job.epochs"""
    return _own_loader(gpq, options, spread=False)


@habit()
def own_loader_spread(gpq: Any, options: dict[str, Any]) -> Any:
    """its own DataLoader with a DistributedSampler, inside job.epochs"""
    return _own_loader(gpq, options, spread=True)


def _sampled(gpq: Any, options: dict[str, Any], **more: Any) -> Any:
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options, **more)
    model = job.wrap(net())
    optimizer = adamw(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


WEIGHTS = [1.0 + index % 5 for index in range(SIZE)]


@habit(alone=True)
def sampler_weighted(gpq: Any, options: dict[str, Any]) -> Any:
    """sampler=WeightedRandomSampler(...), compared with gpq on one replica"""
    return _sampled(gpq, options, sampler=WeightedRandomSampler(WEIGHTS, SIZE))


@habit(alone=True)
def sampler_generator(gpq: Any, options: dict[str, Any]) -> Any:
    """sampler=WeightedRandomSampler(...) with its own generator, which gpq seeds by epoch, compared with gpq on one
    replica"""
    generator = torch.Generator().manual_seed(9)
    return _sampled(gpq, options, sampler=WeightedRandomSampler(WEIGHTS, SIZE, generator=generator))


class Backwards(Sampler[int]):
    """A script's own order: from the last example to the first."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE - 1, -1, -1))

    def __len__(self) -> int:
        return SIZE


@habit()
def sampler_own(gpq: Any, options: dict[str, Any]) -> Any:
    """its own sampler"""
    return _sampled(gpq, options, sampler=Backwards())


@habit()
def not_shuffled(gpq: Any, options: dict[str, Any]) -> Any:
    """shuffle=False"""
    return _sampled(gpq, options, shuffle=False)


@habit()
def drop_last(gpq: Any, options: dict[str, Any]) -> Any:
    """drop_last=True"""
    return _sampled(gpq, options, drop_last=True)


@habit(stops=(9, 20))  # visible only after the loop has left an epoch
def break_early(gpq: Any, options: dict[str, Any]) -> Any:
    """leaves every epoch after eight batches"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for index, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            if index == 7:
                break
    return model


@habit()
def break_at_step(gpq: Any, options: dict[str, Any]) -> Any:
    """leaves the training as soon as job.step is 30"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            if job.step >= 30:
                return model
    return model


@habit()
def skip_batches(gpq: Any, options: dict[str, Any]) -> Any:
    """skips a batch with a large loss: continue, without a step"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            if float(loss.detach()) > 0.35:
                continue
            loss.backward()
            optimizer.step()
    return model


def _evaluated(gpq: Any, options: dict[str, Any], declared: bool) -> Any:
    job, loader, model, optimizer = usual(gpq, options, adamw)
    data = Examples()
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            if job.step % 5 == 0:
                model.eval()
                if declared:
                    with job.eval(), torch.no_grad():
                        job.log(validation=mse_loss(model(data.x), data.y))
                else:
                    with torch.no_grad():
                        job.log(validation=mse_loss(model(data.x), data.y))
                model.train()
    return model


@habit(right=True)
def evaluate(gpq: Any, options: dict[str, Any]) -> Any:
    """evaluates every fifth step, under job.eval"""
    return _evaluated(gpq, options, declared=True)


@habit(right=True)
def evaluate_undeclared(gpq: Any, options: dict[str, Any]) -> Any:
    """evaluates every fifth step, without job.eval"""
    return _evaluated(gpq, options, declared=False)


@habit()
def next_of_endless(gpq: Any, options: dict[str, Any]) -> Any:
    """calls next() of an iterator 39 times and restarts it at its end, without epochs"""
    _, loader, model, optimizer = usual(gpq, options, adamw)
    batches = iter(loader)
    for _ in range(39):
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return model


@habit()
def next_of_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """calls next() of an iterator len(loader) times in every epoch"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        batches = iter(loader)
        for _ in range(len(loader)):
            x, y = next(batches)
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(stops=(14, 18))  # refused at the end of the first epoch, before any stop
def draws_ahead(gpq: Any, options: dict[str, Any]) -> Any:
    """a loop over a generator that draws the next batch before it gives one, like the prefetchers of timm and apex"""
    job, loader, model, optimizer = usual(gpq, options, adamw)

    def prefetched() -> Iterator[Any]:
        batches = iter(loader)
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch

    for _ in job.epochs(EPOCHS):
        for x, y in prefetched():
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(stops=(14, 18))  # refused in the second loop, before any stop
def two_loops(gpq: Any, options: dict[str, Any]) -> Any:
    """two loops over the loader in every epoch"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for factor in (1.0, 0.1):
            for x, y in loader:
                optimizer.zero_grad()
                (factor * mse_loss(model(x), y)).backward()
                optimizer.step()
    return model
