"""Habits that show only later, or only after a restart: leaving by a score, islice and zip, the head of an epoch."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

from .catalogue import habit
from .material import EPOCHS, SIZE, Examples, adamw, net, sgd, usual
from .shapes import BATCH

# -- what stands between the loop and the loader -----------------------------------------------------------------------

OTHERS = 64  # examples of another source: four batches, so that they come around often


def _train(model: Any, optimizer: Any, batches: Iterable[Any]) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()


def _pieces(gpq: Any, options: dict[str, Any], around: Any) -> Any:
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        _train(model, optimizer, around(job, loader))
    return model


@habit()
def islice_some(gpq: Any, options: dict[str, Any]) -> Any:
    """islice(loader, 8): epochs of eight batches"""
    return _pieces(gpq, options, lambda job, loader: itertools.islice(loader, 8))


@habit()
def islice_all(gpq: Any, options: dict[str, Any]) -> Any:
    """islice(loader, len(loader)): all of them, where nothing is cut"""
    return _pieces(gpq, options, lambda job, loader: itertools.islice(loader, len(loader)))


@habit(right=True)
def islice_endless(gpq: Any, options: dict[str, Any]) -> Any:
    """islice(loader, None), as of a limit that is not set"""
    return _pieces(gpq, options, lambda job, loader: itertools.islice(loader, None))


@habit()
def islice_enumerate(gpq: Any, options: dict[str, Any]) -> Any:
    """islice of enumerate of the loader, eight of it"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for _, (x, y) in itertools.islice(enumerate(loader), 8):
            _train(model, optimizer, [(x, y)])
    return model


@habit()
def takewhile_counts(gpq: Any, options: dict[str, Any]) -> Any:
    """takewhile over the loader by a count of its own"""

    def around(job: Any, loader: Any) -> Any:
        count = itertools.count()
        return itertools.takewhile(lambda batch: next(count) < 8, loader)

    return _pieces(gpq, options, around)


@habit()
def zip_range_short(gpq: Any, options: dict[str, Any]) -> Any:
    """zip(range(8), loader): epochs of eight batches"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for _, batch in zip(range(8), loader):  # noqa: B905
            _train(model, optimizer, [batch])
    return model


@habit(right=True)
def zip_counts(gpq: Any, options: dict[str, Any]) -> Any:
    """zip(itertools.count(), loader) and zip(range(1000), loader): only to number them"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for epoch in job.epochs(EPOCHS):
        for _, batch in zip(range(1000) if epoch % 2 else itertools.count(), loader):  # noqa: B905
            _train(model, optimizer, [batch])
    return model


@habit(right=True)
def map_moves(gpq: Any, options: dict[str, Any]) -> Any:
    """map(move to the device, loader), through a generator, enumerated"""

    def passed_on(batches: Any) -> Any:
        for batch in batches:
            yield batch

    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        moved = map(lambda batch: [each.to(job.device) for each in batch], passed_on(loader))
        for _, (x, y) in enumerate(moved):
            _train(model, optimizer, [(x, y)])
    return model


def _with_others(gpq: Any, options: dict[str, Any], around: Any) -> Any:
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for (x, y), (u, v) in around(loader, DataLoader(Examples(OTHERS), BATCH)):
            optimizer.zero_grad()
            (mse_loss(model(x), y) + 0.5 * mse_loss(model(u), v)).backward()
            optimizer.step()
    return model


@habit()
def zip_other_loader(gpq: Any, options: dict[str, Any]) -> Any:
    """zip(loader, cycle(other loader)): labelled and unlabelled batches"""
    return _with_others(gpq, options, lambda one, other: zip(one, itertools.cycle(other)))  # noqa: B905


@habit()
def zip_other_enumerate(gpq: Any, options: dict[str, Any]) -> Any:
    """enumerate(zip(other batches, loader))"""
    data = Examples(OTHERS)
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        others = [(data.x[at : at + 4], data.y[at : at + 4]) for at in range(0, 60, 4)]
        for _, ((u, v), (x, y)) in enumerate(zip(others, loader)):  # noqa: B905
            optimizer.zero_grad()
            (mse_loss(model(x), y) + 0.5 * mse_loss(model(u), v)).backward()
            optimizer.step()
    return model


@habit()
def zip_by_step(gpq: Any, options: dict[str, Any]) -> Any:
    """the other batch chosen by job.step in the loop, not by zip: its loss is not one of the examples of the batch"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    others = list(DataLoader(Examples(OTHERS), BATCH))
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            u, v = others[job.step % len(others)]
            optimizer.zero_grad()
            (mse_loss(model(x), y) + 0.5 * mse_loss(model(u), v)).backward()
            optimizer.step()
    return model


class Pairs(Dataset[Any]):
    """An example of each of two sources."""

    def __init__(self) -> None:
        self.one, self.other = Examples(), Examples(OTHERS)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        at = index % len(self.other)
        return *self.one[index], self.other.x[at], self.other.y[at]


@habit(right=True)
def zip_cured(gpq: Any, options: dict[str, Any]) -> Any:
    """one data set that gives both: the cure"""
    job = gpq.init()
    loader = job.loader(Pairs(), batch_size=BATCH, **options)
    model = job.wrap(net())
    optimizer = adamw(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    for _ in job.epochs(EPOCHS):
        for x, y, u, v in loader:
            optimizer.zero_grad()
            (mse_loss(model(x), y) + 0.5 * mse_loss(model(u), v)).backward()
            optimizer.step()
    return model


# -- the head of an epoch ----------------------------------------------------------------------------------------------


def _headed(gpq: Any, options: dict[str, Any], head: Any, schedule: Any = None) -> Any:
    """`head(job, epoch, inner, optimizer, schedule)` runs at the head of every epoch."""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    inner = net()
    model = job.wrap(inner)
    optimizer = adamw(model.parameters())
    model, optimizer, scheduled = job.prepare(model, optimizer, schedule and schedule(optimizer))
    for epoch in job.epochs(EPOCHS):
        head(job, epoch, inner, optimizer, scheduled)
        _train(model, optimizer, loader)
    return model


def _add_noise(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


@habit()
def head_clears_state(gpq: Any, options: dict[str, Any]) -> Any:
    """optimizer.state.clear() at the head of every epoch"""
    return _headed(gpq, options, lambda job, epoch, model, optimizer, schedule: optimizer.state.clear())


@habit()
def head_new_state(gpq: Any, options: dict[str, Any]) -> Any:
    """optimizer.state = defaultdict(dict) at the head of every epoch"""
    return _headed(gpq, options, lambda job, epoch, model, optimizer, _: setattr(optimizer, "state", defaultdict(dict)))


@habit()
def head_resets_layer(gpq: Any, options: dict[str, Any]) -> Any:
    """the last layer begins anew in every epoch but the first"""

    def head(job: Any, epoch: int, model: Any, optimizer: Any, _: Any) -> None:
        if epoch > 0:
            torch.manual_seed(epoch)
            model[-1].reset_parameters()

    return _headed(gpq, options, head)


@habit()
def head_adds_noise(gpq: Any, options: dict[str, Any]) -> Any:
    """noise on all weights at the head of every epoch"""
    return _headed(gpq, options, lambda job, epoch, model, optimizer, _: _add_noise(model, epoch))


@habit()
def head_steps_schedule(gpq: Any, options: dict[str, Any]) -> Any:
    """schedule.step() at the head of every epoch"""
    return _headed(
        gpq, options, lambda job, epoch, model, optimizer, schedule: schedule.step(), lambda o: StepLR(o, 1, 0.5)
    )


@habit(right=True)
def head_cured(gpq: Any, options: dict[str, Any]) -> Any:
    """noise, a cleared state and a step of the schedule, if job.progress.samples == 0: the cure"""

    def head(job: Any, epoch: int, model: Any, optimizer: Any, schedule: Any) -> None:
        if job.progress.samples == 0:
            _add_noise(model, epoch)
            optimizer.state.clear()
            schedule.step()

    return _headed(gpq, options, head, lambda o: StepLR(o, 1, 0.5))


@habit()
def head_first_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """weights are made at the head of the first epoch"""
    return _headed(gpq, options, lambda job, epoch, model, *_: epoch or _add_noise(model, 3))


@habit(right=True)
def head_first_step(gpq: Any, options: dict[str, Any]) -> Any:
    """weights are made at the head of an epoch, if job.step == 0"""

    def head(job: Any, epoch: int, model: Any, *_: Any) -> None:
        if job.step == 0:
            _add_noise(model, 3)

    return _headed(gpq, options, head)


@habit(right=True)
def head_by_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """rate and frozen layers by the epoch, an evaluation, and job.step in a line, at the head of every epoch"""
    data = Examples()

    def head(job: Any, epoch: int, model: Any, optimizer: Any, _: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * 0.5**epoch
        for parameter in model[0].parameters():
            parameter.requires_grad_(epoch > 0)
        model.eval()
        with torch.no_grad():
            job.log(validation=mse_loss(model(data.x), data.y), step=job.step)
        model.train()

    return _headed(gpq, options, head)


@habit(right=True)
def head_places_schedule(gpq: Any, options: dict[str, Any]) -> Any:
    """schedule.step(epoch) at the head of every epoch: told its place"""
    return _headed(
        gpq, options, lambda job, epoch, model, o, schedule: schedule.step(epoch), lambda o: StepLR(o, 1, 0.5)
    )
