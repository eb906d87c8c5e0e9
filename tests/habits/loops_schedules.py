"""Habits of learning rates: schedules built from len(loader), forgotten schedules, and rates set by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from .catalogue import habit
from .material import EPOCHS, Examples, adamw, net, sgd
from .shapes import BATCH


def _scheduled(gpq: Any, options: dict[str, Any], make: Any, per_epoch: bool = False, given: bool = True) -> Any:
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = sgd(model.parameters())
    schedule = make(optimizer, len(loader))
    if given:
        model, optimizer, schedule = job.prepare(model, optimizer, schedule)
    else:
        model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            if not per_epoch:
                schedule.step()
        if per_epoch:
            schedule.step()
    return {"model": model, "rate": optimizer.param_groups[0]["lr"]}


@habit(right=True)
def one_cycle(gpq: Any, options: dict[str, Any]) -> Any:
    """OneCycleLR over epochs * len(loader) steps, which cycles momentum too"""
    return _scheduled(gpq, options, lambda o, n: OneCycleLR(o, 0.1, total_steps=EPOCHS * n))


@habit(right=True)
def one_cycle_epochs(gpq: Any, options: dict[str, Any]) -> Any:
    """OneCycleLR with epochs= and steps_per_epoch=len(loader)"""
    return _scheduled(gpq, options, lambda o, n: OneCycleLR(o, 0.1, epochs=EPOCHS, steps_per_epoch=n))


@habit(right=True)
def cosine(gpq: Any, options: dict[str, Any]) -> Any:
    """CosineAnnealingLR over epochs * len(loader) steps"""
    return _scheduled(gpq, options, lambda o, n: CosineAnnealingLR(o, EPOCHS * n))


@habit(right=True)
def warmup_lambda(gpq: Any, options: dict[str, Any]) -> Any:
    """LambdaLR: a warm-up of half an epoch of len(loader), then linear to zero"""
    return _scheduled(
        gpq, options, lambda o, n: LambdaLR(o, lambda at: min((at + 1) / (n / 2), (EPOCHS * n - at) / (EPOCHS * n)))
    )


@habit(right=True)
def warmup_sequential(gpq: Any, options: dict[str, Any]) -> Any:
    """SequentialLR of a warm-up and a cosine"""

    def make(optimizer: Any, steps: int) -> Any:
        parts = [LinearLR(optimizer, 0.1, total_iters=steps), CosineAnnealingLR(optimizer, 2 * steps)]
        return SequentialLR(optimizer, parts, milestones=[steps])

    return _scheduled(gpq, options, make)


@habit(right=True)
def cosine_per_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """CosineAnnealingLR stepped after each epoch"""
    return _scheduled(gpq, options, lambda o, _: CosineAnnealingLR(o, EPOCHS), per_epoch=True)


@habit(right=True)
def step_per_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """StepLR stepped after each epoch"""
    return _scheduled(gpq, options, lambda o, _: StepLR(o, 1, 0.5), per_epoch=True)


@habit()
def scheduler_forgotten(gpq: Any, options: dict[str, Any]) -> Any:
    """a cosine schedule that was not passed to prepare"""
    return _scheduled(gpq, options, lambda o, n: CosineAnnealingLR(o, 39), given=False)


@habit()
def scheduler_forgotten_per_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """a StepLR after each epoch that was not passed to prepare"""
    return _scheduled(gpq, options, lambda o, n: StepLR(o, 1, 0.5), per_epoch=True, given=False)


def _counted(gpq: Any, options: dict[str, Any], make: Any, advance: Any) -> Any:
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = sgd(model.parameters())
    model, optimizer, schedule = job.prepare(model, optimizer, make(optimizer))
    for epoch in job.epochs(EPOCHS):
        for index, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            advance(schedule, epoch, index, len(loader))
    return {"model": model, "rate": optimizer.param_groups[0]["lr"]}


@habit()
def restarts_by_place(gpq: Any, options: dict[str, Any]) -> Any:
    """CosineAnnealingWarmRestarts.step(epoch + index / len(loader)), as in its documentation"""
    return _counted(
        gpq, options, lambda o: CosineAnnealingWarmRestarts(o, 1), lambda s, epoch, index, n: s.step(epoch + index / n)
    )


@habit(stops=(6, 18))
def schedule_every_fourth(gpq: Any, options: dict[str, Any]) -> Any:
    """a schedule that steps after every fourth batch"""

    def advance(schedule: Any, epoch: int, index: int, steps: int) -> None:
        if index % 4 == 0:
            schedule.step()

    return _counted(gpq, options, lambda o: ExponentialLR(o, 0.8), advance)


def _plateau(gpq: Any, options: dict[str, Any], metric: str) -> Any:
    """The result has the best metric, because a wrong one need not change a rate."""
    job = gpq.init()
    data = Examples()
    loader = job.loader(data, batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = sgd(model.parameters())
    schedule = ReduceLROnPlateau(optimizer, factor=0.3, patience=9 if metric == "batch" else 0, threshold=0.45)
    model, optimizer, schedule = job.prepare(model, optimizer, schedule)
    for _ in job.epochs(2 * EPOCHS):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(x)
            if metric == "batch":
                schedule.step(loss.detach())
        with job.eval(), torch.no_grad():
            validation = float(mse_loss(model(data.x), data.y))
        if metric != "batch":
            schedule.step(validation if metric == "validation" else total / len(data))
    return {"model": model, "rate": optimizer.param_groups[0]["lr"], "best": schedule.best}


@habit()
def plateau(gpq: Any, options: dict[str, Any]) -> Any:
    """ReduceLROnPlateau on a validation loss"""
    return _plateau(gpq, options, "validation")


@habit()
def plateau_training_loss(gpq: Any, options: dict[str, Any]) -> Any:
    """ReduceLROnPlateau on the training loss summed in this process"""
    return _plateau(gpq, options, "training")


@habit()
def plateau_batch_loss(gpq: Any, options: dict[str, Any]) -> Any:
    """ReduceLROnPlateau on the loss of each batch"""
    return _plateau(gpq, options, "batch")


def _rated(gpq: Any, options: dict[str, Any], rate: Any) -> Any:
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = adamw(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    count = 0
    for epoch in job.epochs(EPOCHS):
        for index, (x, y) in enumerate(loader):
            for group in optimizer.param_groups:
                group["lr"] = rate(job, count, epoch * len(loader) + index)
            mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            count += 1
    return model


def _cosine(step: int) -> float:
    return 0.005 * (1 + math.cos(math.pi * step / 39))


@habit()
def rate_own_counter(gpq: Any, options: dict[str, Any]) -> Any:
    """sets the learning rate from a counter in the loop"""
    return _rated(gpq, options, lambda job, count, index: _cosine(count))


@habit()
def rate_epoch_index(gpq: Any, options: dict[str, Any]) -> Any:
    """sets the learning rate from epoch * len(loader) + index, as masked autoencoders do"""
    return _rated(gpq, options, lambda job, count, index: _cosine(index))


@habit(right=True)
def rate_job_step(gpq: Any, options: dict[str, Any]) -> Any:
    """sets the learning rate from job.step"""
    return _rated(gpq, options, lambda job, count, index: _cosine(job.step))


@habit()
def rate_decayed_by_hand(gpq: Any, options: dict[str, Any]) -> Any:
    """multiplies the learning rate by 0.95 after every step"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = sgd(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= 0.95
    return model


@habit(right=True)
def rate_halved_per_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """halves the learning rate in the optimizer's state after every epoch"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = sgd(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    return model
