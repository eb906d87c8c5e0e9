"""Habits of clipping. All of them must be right without changes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import mse_loss

from .catalogue import habit
from .material import EPOCHS, Examples, adamw, net, sgd, usual
from .shapes import BATCH


def _clipped(gpq: Any, options: dict[str, Any], make: Any) -> Any:
    job, loader, model, optimizer = usual(gpq, options, make)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
    return model


@habit(right=True)
def clip_sgd(gpq: Any, options: dict[str, Any]) -> Any:
    """clip_grad_norm_ with SGD"""
    return _clipped(gpq, options, sgd)


@habit(right=True)
def clip_adamw(gpq: Any, options: dict[str, Any]) -> Any:
    """clip_grad_norm_ with AdamW, the commonest loop"""
    return _clipped(gpq, options, adamw)


@habit(right=True, dtype="float32")
def clip_adamw_float32(gpq: Any, options: dict[str, Any]) -> Any:
    """clip_grad_norm_ with AdamW, in single precision"""
    return _clipped(gpq, options, adamw)


@habit(right=True)
def clip_value(gpq: Any, options: dict[str, Any]) -> Any:
    """clip_grad_value_"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.02)
            optimizer.step()
            optimizer.zero_grad()
    return model


@habit(right=True)
def clip_gpq(gpq: Any, options: dict[str, Any]) -> Any:
    """job.clip_grad_norm_, which scripts for earlier versions call"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            job.clip_grad_norm_(0.3)
            optimizer.step()
            optimizer.zero_grad()
    return model


def _scaled(gpq: Any, options: dict[str, Any], clip: bool, spikes: float = 1.0) -> Any:
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = adamw(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    model, optimizer, _ = job.prepare(model, optimizer, scaler=scaler)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            weights = torch.where(x[:, 5:] > 2.0, spikes, 1.0)
            loss = ((model(x) - y).square() * weights).mean()
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
    return {"model": model, "scale": scaler.get_scale()}


@habit(right=True)
def scaler(gpq: Any, options: dict[str, Any]) -> Any:
    """GradScaler whose scale grows every fourth step"""
    return _scaled(gpq, options, clip=False)


@habit(right=True)
def scaler_clip(gpq: Any, options: dict[str, Any]) -> Any:
    """GradScaler, unscale_ and clip_grad_norm_"""
    return _scaled(gpq, options, clip=True)


@habit(right=True)
def scaler_skips(gpq: Any, options: dict[str, Any]) -> Any:
    """GradScaler that meets infinite gradients and skips those steps"""
    return _scaled(gpq, options, clip=True, spikes=float("inf"))


@habit()
def clip_adamw_fused(gpq: Any, options: dict[str, Any]) -> Any:
    """clip_grad_norm_ with a fused AdamW"""
    return _clipped(gpq, options, lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True))
