"""Habits between backward() and step(): reading, editing and replacing gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import mse_loss

from .catalogue import habit
from .material import EPOCHS, adamw, net, usual


@habit(right=True)
def edit_noise(gpq: Any, options: dict[str, Any]) -> Any:
    """adds to every gradient a number that depends on it"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad += 0.01 * parameter.grad.sin() + 0.001
            optimizer.step()
    return model


@habit(right=True)
def edit_decay(gpq: Any, options: dict[str, Any]) -> Any:
    """its own weight decay: grad += 0.05 * parameter"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.grad.add_(parameter, alpha=0.05)
            optimizer.step()
    return model


@habit(right=True)
def edit_decay_data(gpq: Any, options: dict[str, Any]) -> Any:
    """its own weight decay as in old code: p.grad.data.add_(0.05 * p.data)"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad.data.add_(0.05 * parameter.data)
            optimizer.step()
    return model


@habit(right=True)
def edit_decay_data_zero_after(gpq: Any, options: dict[str, Any]) -> Any:
    """its own weight decay with momentum, and gradients set to zero after the step"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad.data.add_(0.05 * parameter.data)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return model


@habit(right=True)
def edit_decay_data_at_step(gpq: Any, options: dict[str, Any]) -> Any:
    """its own weight decay in every pass of the loop, with gradients cleared when job.at_step is true"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad.data.add_(0.05 * parameter.data)
            if job.at_step:
                optimizer.step()
                optimizer.zero_grad()
    return model


@habit(right=True)
def edit_numpy(gpq: Any, options: dict[str, Any]) -> Any:
    """adds to gradients through NumPy, which torch does not see"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad.numpy()[...] += 0.05 * parameter.detach().numpy()
            optimizer.step()
            model.zero_grad()
    return model


@habit(right=True)
def edit_scale(gpq: Any, options: dict[str, Any]) -> Any:
    """scales the gradient of each layer by its own norm, in place"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad.div_(parameter.grad.norm() + 0.1)
            optimizer.step()
    return model


@habit(right=True)
def edit_sign(gpq: Any, options: dict[str, Any]) -> Any:
    """replaces the gradient by its sign: p.grad = p.grad.sign()"""
    job, loader, model, optimizer = usual(gpq, options, lambda parameters: torch.optim.SGD(parameters, lr=0.003))
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad = parameter.grad.sign()
            optimizer.step()
    return model


@habit(right=True)
def log_norms(gpq: Any, options: dict[str, Any]) -> Any:
    """keeps a moving average of the gradient's norm and clips to twice that"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            squares = sum(float(parameter.grad.norm() ** 2) for parameter in model.parameters())
            job.log(norm=squares**0.5)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5 * squares**0.25)
            optimizer.step()
    return model


@habit()
def clamp_activations(gpq: Any, options: dict[str, Any]) -> Any:
    """a hook on the outputs that clamps their gradients"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            found = model(x)
            found.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))
            mse_loss(found, y).backward()
            optimizer.step()
    return model


@habit()
def clamp_in_module(gpq: Any, options: dict[str, Any]) -> Any:
    """a full backward hook on a module that clamps gradients"""
    inner = net()
    inner[2].register_full_backward_hook(lambda module, given, _: tuple(each.clamp(-0.005, 0.005) for each in given))
    job, loader, model, optimizer = usual(gpq, options, adamw, inner)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit()
def norm_inverse(gpq: Any, options: dict[str, Any]) -> Any:
    """divides gradients by their norm as a number, and the norm is zero in a part of a batch"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            scale = 0.1 / norm.item()
            for parameter in model.parameters():
                parameter.grad.mul_(scale)
            optimizer.step()
    return model


@habit(right=True)
def scaled_by_hand(gpq: Any, options: dict[str, Any]) -> Any:
    """scales the loss itself: (loss * 1024).backward(), p.grad /= 1024"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            (mse_loss(model(x), y) * 1024).backward()
            for parameter in model.parameters():
                parameter.grad /= 1024
            optimizer.step()
    return model


@habit(right=True)
def taken_and_put_back(gpq: Any, options: dict[str, Any]) -> Any:
    """copies the gradients, clears them, and puts half of each back"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            taken = [parameter.grad.clone() for parameter in model.parameters()]
            optimizer.zero_grad()
            for parameter, gradient in zip(model.parameters(), taken, strict=True):
                parameter.grad = 0.5 * gradient
            optimizer.step()
            optimizer.zero_grad()
    return model


@habit(right=True)
def flat_clip(gpq: Any, options: dict[str, Any]) -> Any:
    """puts gradients into one vector, clips it, and copies it back"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            flat = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
            flat = flat / max(1.0, float(flat.norm()) / 0.3)
            sizes = [parameter.numel() for parameter in model.parameters()]
            for parameter, part in zip(model.parameters(), flat.split(sizes), strict=True):
                parameter.grad.copy_(part.view_as(parameter))
            optimizer.step()
    return model
