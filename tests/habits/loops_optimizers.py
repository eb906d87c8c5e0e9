"""Habits of optimizers: which ones, how many, and what they receive."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from .catalogue import habit
from .material import EPOCHS, Examples, adamw, net, sgd, usual
from .own_optimizers import Lamb, Lion, Polyak, RelativeAdafactor
from .shapes import BATCH


def _simple(gpq: Any, options: dict[str, Any], make: Any) -> Any:
    job, loader, model, optimizer = usual(gpq, options, make)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(right=True)
def two_optimizers(gpq: Any, options: dict[str, Any]) -> Any:
    """SGD for the body and AdamW for the head, both passed to prepare"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    inner = net()
    model = job.wrap(inner)
    body, head = sgd(inner[:4].parameters()), adamw(inner[4].parameters())
    [model], [body, head], _ = job.prepare([model], [body, head])
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            body.zero_grad()
            head.zero_grad()
            mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            body.step()
            head.step()
    return model


@habit(right=True)
def two_optimizers_schedules(gpq: Any, options: dict[str, Any]) -> Any:
    """two optimizers, each with a cosine schedule of len(loader) steps per epoch"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    inner = net()
    model = job.wrap(inner)
    optimizers = [sgd(inner[:4].parameters()), adamw(inner[4].parameters())]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, EPOCHS * len(loader)) for each in optimizers]
    model, optimizers, schedules = job.prepare(model, optimizers, schedules)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
    return model


@habit(right=True)
def muon(gpq: Any, options: dict[str, Any]) -> Any:
    """Muon for matrices and AdamW for the rest"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    optimizers = [torch.optim.Muon(matrices, lr=0.02), adamw(others)]
    model, optimizers, _ = job.prepare(model, optimizers)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
    return model


def _gan(gpq: Any, options: dict[str, Any], detach: bool, freeze: bool = False) -> Any:
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    maker, judge = job.wrap(net(1, 6, 1)), job.wrap(net(2, 1, 1))
    of_maker, of_judge = adamw(maker.parameters(), 0.003), adamw(judge.parameters(), 0.003)
    [maker, judge], [of_maker, of_judge], _ = job.prepare([maker, judge], [of_maker, of_judge])
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)
            judge.requires_grad_(True)
            of_judge.zero_grad()
            binary_cross_entropy_with_logits(judge(y), ones).backward()
            made = maker(x)
            binary_cross_entropy_with_logits(judge(made.detach() if detach else made), zeros).backward()
            of_judge.step()
            of_maker.zero_grad()
            judge.requires_grad_(not freeze)
            if not detach:
                made = maker(x)
            binary_cross_entropy_with_logits(judge(made), ones).backward()
            of_maker.step()
    return {"maker": maker, "judge": judge}


@habit(right=("one", "two", "resize"))
def gan(gpq: Any, options: dict[str, Any]) -> Any:
    """a GAN as in dcgan: two models and optimizers, with a discriminator step between two backward passes"""
    return _gan(gpq, options, detach=True)


@habit(right=("one", "two", "resize"))
def gan_no_detach(gpq: Any, options: dict[str, Any]) -> Any:
    """a GAN without detach: the discriminator's pass leaves gradients in the generator, which zero_grad clears"""
    return _gan(gpq, options, detach=False)


@habit()
def gan_freezing(gpq: Any, options: dict[str, Any]) -> Any:
    """a GAN as in pix2pix: the discriminator is frozen during the generator's pass"""
    return _gan(gpq, options, detach=True, freeze=True)


@habit()
def optimizer_not_given(gpq: Any, options: dict[str, Any]) -> Any:
    """a second optimizer on the same model that was not passed to prepare"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    inner = net()
    model = job.wrap(inner)
    body, head = sgd(inner[:4].parameters()), adamw(inner[4].parameters())
    model, body, _ = job.prepare(model, body)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            model.zero_grad()
            mse_loss(model(x), y).backward()
            body.step()
            head.step()
    return model


@habit()
def lion(gpq: Any, options: dict[str, Any]) -> Any:
    """a copy of Lion in the script"""
    return _simple(gpq, options, Lion)


@habit()
def lamb(gpq: Any, options: dict[str, Any]) -> Any:
    """a copy of LAMB in the script"""
    return _simple(gpq, options, Lamb)


@habit()
def adafactor(gpq: Any, options: dict[str, Any]) -> Any:
    """torch.optim.Adafactor"""
    return _simple(gpq, options, lambda parameters: torch.optim.Adafactor(parameters, lr=0.03))


@habit()
def adafactor_relative(gpq: Any, options: dict[str, Any]) -> Any:
    """Adafactor with relative steps, as in transformers, whose learning rate is None"""
    return _simple(gpq, options, RelativeAdafactor)


@habit()
def rate_tensor(gpq: Any, options: dict[str, Any]) -> Any:
    """a learning rate that is a tensor, with a schedule that changes it in place"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * 13)
    model, optimizer, schedule = job.prepare(model, optimizer, schedule)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            schedule.step()
    return model


@habit()
def adam_closure(gpq: Any, options: dict[str, Any]) -> Any:
    """Adam whose step() takes a closure"""
    job, loader, model, optimizer = usual(gpq, options, lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    for _ in job.epochs(EPOCHS):
        for x, y in loader:

            def closure(x: Any = x, y: Any = y) -> Any:
                optimizer.zero_grad()
                loss = mse_loss(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    return model


@habit()
def lbfgs(gpq: Any, options: dict[str, Any]) -> Any:
    """LBFGS: several passes in the closure of every step"""

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3, history_size=4)

    job, loader, model, optimizer = usual(gpq, options, make)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:

            def closure(x: Any = x, y: Any = y) -> Any:
                optimizer.zero_grad()
                loss = mse_loss(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    return model


@habit()
def hand_step(gpq: Any, options: dict[str, Any]) -> Any:
    """its own steps: p -= rate * p.grad, where the optimizer only provides the rate"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            model.zero_grad()
            mse_loss(model(x), y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 2 * optimizer.param_groups[0]["lr"] * parameter.grad
    return model


@habit()
def hand_step_momentum(gpq: Any, options: dict[str, Any]) -> Any:
    """its own steps, with momentum in a list"""
    job, loader, model, _ = usual(gpq, options)
    speed = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
            with torch.no_grad():
                for parameter, own in zip(model.parameters(), speed, strict=True):
                    own.mul_(0.9).add_(parameter.grad)
                    parameter.sub_(own, alpha=0.02)
                    parameter.grad = None
    return model


@habit()
def hand_decay(gpq: Any, options: dict[str, Any]) -> Any:
    """its own decoupled weight decay after the step: p.mul_(0.99)"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.99)
    return model


@habit()
def weight_clamp(gpq: Any, options: dict[str, Any]) -> Any:
    """clamps the weights after every step, as a Wasserstein GAN does"""
    job, loader, model, optimizer = usual(gpq, options)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.data.clamp_(-0.3, 0.3)
    return model


@habit()
def optimizer_in_backward(gpq: Any, options: dict[str, Any]) -> Any:
    """one optimizer per parameter, and a hook that steps it as soon as its gradient is ready"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    model = job.wrap(net())
    own = {parameter: sgd([parameter]) for parameter in model.parameters()}

    def act(parameter: nn.Parameter) -> None:
        own[parameter].step()
        own[parameter].zero_grad()

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(act)
    job.prepare(model, list(own.values()))
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            mse_loss(model(x), y).backward()
    return model


@habit()
def polyak(gpq: Any, options: dict[str, Any]) -> Any:
    """an optimizer that takes its rate from the loss passed to step()"""
    job, loader, model, optimizer = usual(gpq, options, Polyak)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            optimizer.step(loss=loss)
    return model


@habit()
def decay_counted(gpq: Any, options: dict[str, Any]) -> Any:
    """a weight decay that grows with a counter of passes"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    count = 0
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            for group in optimizer.param_groups:
                group["weight_decay"] = min(1.0, 0.05 * count)
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            count += 1
    return model


@habit()
def momentum_counted(gpq: Any, options: dict[str, Any]) -> Any:
    """a momentum that grows with a counter of passes"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    for _ in job.epochs(EPOCHS):
        for count, (x, y) in enumerate(loader):
            optimizer.param_groups[0]["momentum"] = 0.5 + min(0.4, 0.05 * count)
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(right=True)
def decay_of_the_step(gpq: Any, options: dict[str, Any]) -> Any:
    """a weight decay that grows with job.step"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            optimizer.param_groups[0]["weight_decay"] = min(1.0, 0.05 * job.step)
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model


@habit(right=True)
def decay_of_the_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """sets another weight decay and momentum at the head of each epoch"""
    job, loader, model, optimizer = usual(gpq, options, sgd)
    for epoch in job.epochs(EPOCHS):
        optimizer.param_groups[0].update(weight_decay=0.1 * epoch, momentum=0.5 + 0.1 * epoch)
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return model
