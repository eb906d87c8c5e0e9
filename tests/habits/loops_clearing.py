"""Habits of clearing gradients: where, when and how."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import mse_loss

from .catalogue import habit
from .material import EPOCHS, adamw, usual


@habit(right=True)
def zero_model_before(gpq: Any, options: dict[str, Any]) -> Any:
    """model.zero_grad() before the forward pass"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            model.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(right=True)
def zero_model_after(gpq: Any, options: dict[str, Any]) -> Any:
    """model.zero_grad() after the step"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            optimizer.step()
            model.zero_grad()
    return model


@habit(right=True)
def zero_before_backward(gpq: Any, options: dict[str, Any]) -> Any:
    """optimizer.zero_grad() between the forward and the backward pass"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            loss = mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


@habit(right=True)
def zero_not_none(gpq: Any, options: dict[str, Any]) -> Any:
    """optimizer.zero_grad(set_to_none=False), after the step"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return model


@habit(right=True)
def zero_none_by_hand(gpq: Any, options: dict[str, Any]) -> Any:
    """p.grad = None for every parameter, as karpathy's loops do"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            for parameter in model.parameters():
                parameter.grad = None
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(right=True)
def zero_by_hand(gpq: Any, options: dict[str, Any]) -> Any:
    """p.grad.zero_() for every parameter, after the step"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad.zero_()
    return model


@habit()
def zero_never(gpq: Any, options: dict[str, Any]) -> Any:
    """no zero_grad at all, so every step adds to the gradients of all earlier steps"""
    job, loader, model, optimizer = usual(gpq, options, lambda parameters: adamw(parameters, lr=0.002))
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(stops=(4, 18))
def zero_every_second(gpq: Any, options: dict[str, Any]) -> Any:
    """optimizer.zero_grad() only after every second step"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for index, (x, y) in enumerate(loader):
            mse_loss(model(x), y).backward()
            optimizer.step()
            if index % 2:
                optimizer.zero_grad()
    return model


@habit(right=True)
def zero_data_before(gpq: Any, options: dict[str, Any]) -> Any:
    """p.grad.data.zero_() before backward(), as in old code"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.data.zero_()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(right=True)
def zero_data_after(gpq: Any, options: dict[str, Any]) -> Any:
    """p.grad.data.zero_() after the step"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad.data.zero_()
    return model


@habit(right=True)
def zero_detached(gpq: Any, options: dict[str, Any]) -> Any:
    """p.grad.detach_() and p.grad.zero_(), as an older zero_grad() did it"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach_()
                    parameter.grad.zero_()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(right=True)
def zero_data_at_step(gpq: Any, options: dict[str, Any]) -> Any:
    """p.grad.data.zero_() after each step, if job.at_step is true"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            if job.at_step:
                optimizer.step()
                for parameter in model.parameters():
                    parameter.grad.data.zero_()
    return model


@habit(right=True)
def zero_numpy(gpq: Any, options: dict[str, Any]) -> Any:
    """fills gradients with zeros through NumPy"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad.numpy().fill(0.0)
    return model
