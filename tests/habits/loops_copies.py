"""Habits of copies next to the model: averages of it, scalers, best values. Some are forgotten, some are in job.state."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .catalogue import habit
from .material import EPOCHS, Examples, adamw, net, usual
from .shapes import BATCH


def _averaged(gpq: Any, options: dict[str, Any], given: bool, guarded: bool) -> Any:
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    inner = net()
    model = job.wrap(inner)
    optimizer = adamw(model.parameters())
    average = AveragedModel(inner, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    if given:
        job.state(average)
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            if not guarded or job.at_step:
                average.update_parameters(inner)
    return {"model": model, "average": average}


@habit()
def ema_forgotten(gpq: Any, options: dict[str, Any]) -> Any:
    """an AveragedModel that is not in job.state"""
    return _averaged(gpq, options, given=False, guarded=False)


@habit()
def ema_unguarded(gpq: Any, options: dict[str, Any]) -> Any:
    """an AveragedModel in job.state, updated in every pass of the loop"""
    return _averaged(gpq, options, given=True, guarded=False)


@habit(right=True)
def ema_guarded(gpq: Any, options: dict[str, Any]) -> Any:
    """an AveragedModel in job.state, updated when job.at_step is true"""
    return _averaged(gpq, options, given=True, guarded=True)


@habit()
def ema_deepcopy(gpq: Any, options: dict[str, Any]) -> Any:
    """an average in a deep copy of the model that is not in job.state"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    average = copy.deepcopy(model)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for own, parameter in zip(average.parameters(), model.parameters(), strict=True):
                    own.lerp_(parameter, 0.05)
    return {"model": model, "average": average}


@habit()
def ema_dict(gpq: Any, options: dict[str, Any]) -> Any:
    """an average in a dict of tensors by name that is not in job.state"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            for name, parameter in model.named_parameters():
                shadow[name] = 0.95 * shadow[name] + 0.05 * parameter.detach()
    return {"model": model, "average": list(shadow.values())}


@habit()
def ema_list(gpq: Any, options: dict[str, Any]) -> Any:
    """an average in a list of clones, changed in place, that is not in job.state"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    shadow = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            torch._foreach_lerp_(shadow, [parameter.detach() for parameter in model.parameters()], 0.05)
    return {"model": model, "average": shadow}


@habit()
def mean_teacher(gpq: Any, options: dict[str, Any]) -> Any:
    """a teacher that averages the student, that the student's loss needs and that is not in job.state"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    inner = net()
    teacher = copy.deepcopy(inner).requires_grad_(False)
    model = job.wrap(inner)
    optimizer = adamw(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            (mse_loss(found, y) + mse_loss(found, teacher(-x))).backward()
            optimizer.step()
            for own, parameter in zip(teacher.parameters(), inner.parameters(), strict=True):
                own.mul_(0.95).add_(parameter.detach(), alpha=0.05)
    return {"model": model, "teacher": teacher}


@habit(right=True)
def swa_per_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """a stochastic weight average in job.state, updated after each epoch"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    inner = net()
    model = job.wrap(inner)
    optimizer = adamw(model.parameters())
    average = job.state(AveragedModel(inner))
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
        average.update_parameters(inner)
    return {"model": model, "average": average}


@habit()
def scaler_forgotten(gpq: Any, options: dict[str, Any]) -> Any:
    """a GradScaler that was not passed to prepare"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            scaler.scale(mse_loss(model(x), y)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
    return {"model": model, "scale": scaler.get_scale()}


def _best(gpq: Any, options: dict[str, Any], on_training: bool) -> Any:
    job = gpq.init()
    data = Examples()
    loader = job.loader(data, batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = adamw(model.parameters(), 0.02)
    model, optimizer, _ = job.prepare(model, optimizer)
    best, norm = job.state("best", 1e9), job.state("norm", 0.0)
    for epoch in job.epochs(EPOCHS):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(x)
        with job.eval(), torch.no_grad():
            validation = float(mse_loss(model(data.x), data.y))
        found = (total / len(data) if on_training else validation) + 0.5 * epoch  # the first epoch is the best
        if found < best:
            best = job.state("best", found)
            norm = job.state("norm", float(sum(p.detach().norm() for p in model.parameters())))
    return {"model": model, "best": best, "norm": norm}


@habit(right=True)
def best_value(gpq: Any, options: dict[str, Any]) -> Any:
    """the best validation loss and the norm of its weights, as plain values in job.state"""
    return _best(gpq, options, on_training=False)


@habit()
def best_training_loss(gpq: Any, options: dict[str, Any]) -> Any:
    """the lowest training loss, summed in this process, and the norm of its weights, both in job.state"""
    return _best(gpq, options, on_training=True)
