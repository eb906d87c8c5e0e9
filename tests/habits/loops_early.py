"""Habits that only show later or after a restart: leaving by a score, islice and zip, code at the head of an epoch."""

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
from .material import EPOCHS, SIZE, Examples, adamw, net, usual
from .shapes import BATCH

# -- wrappers between the loop and the loader --------------------------------------------------------------------------

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
    """islice(loader, len(loader)), which cuts nothing"""
    return _pieces(gpq, options, lambda job, loader: itertools.islice(loader, len(loader)))


@habit(right=True)
def islice_endless(gpq: Any, options: dict[str, Any]) -> Any:
    """islice(loader, None), as with a limit that is not set"""
    return _pieces(gpq, options, lambda job, loader: itertools.islice(loader, None))


@habit()
def islice_enumerate(gpq: Any, options: dict[str, Any]) -> Any:
    """the first eight items of islice(enumerate(loader))"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for _, (x, y) in itertools.islice(enumerate(loader), 8):
            _train(model, optimizer, [(x, y)])
    return model


@habit()
def takewhile_counts(gpq: Any, options: dict[str, Any]) -> Any:
    """takewhile over the loader with its own counter"""

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
    """zip(itertools.count(), loader) and zip(range(1000), loader), only to number the batches"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for epoch in job.epochs(EPOCHS):
        for _, batch in zip(range(1000) if epoch % 2 else itertools.count(), loader):  # noqa: B905
            _train(model, optimizer, [batch])
    return model


@habit(right=True)
def map_moves(gpq: Any, options: dict[str, Any]) -> Any:
    """map over the loader, through a generator and enumerate()"""

    def passed_on(batches: Any) -> Any:
        yield from batches

    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for _, (x, y) in enumerate(map(list, passed_on(loader))):
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
    return _with_others(gpq, options, lambda one, other: zip(one, itertools.cycle(other)))


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


@habit(right=True)
def zip_by_step(gpq: Any, options: dict[str, Any]) -> Any:
    """another batch picked by job.step in the loop, not by zip, whose loss is not part of the batch's own loss"""
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
    """One example from each of two sources."""

    def __init__(self) -> None:
        self.one, self.other = Examples(), Examples(OTHERS)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        at = index % len(self.other)
        return *self.one[index], self.other.x[at], self.other.y[at]


@habit(right=True)
def zip_cured(gpq: Any, options: dict[str, Any]) -> Any:
    """one data set that returns an example of both sources (the cure for zip)"""
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
    """Calls `head(job, epoch, inner, optimizer, schedule)` at the head of every epoch."""
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
    """resets the last layer in every epoch after the first"""

    def head(job: Any, epoch: int, model: Any, optimizer: Any, _: Any) -> None:
        if epoch > 0:
            torch.manual_seed(epoch)
            model[-1].reset_parameters()

    return _headed(gpq, options, head)


@habit()
def head_adds_noise(gpq: Any, options: dict[str, Any]) -> Any:
    """adds noise to all weights at the head of every epoch"""
    return _headed(gpq, options, lambda job, epoch, model, optimizer, _: _add_noise(model, epoch))


@habit()
def head_steps_schedule(gpq: Any, options: dict[str, Any]) -> Any:
    """schedule.step() at the head of every epoch"""
    return _headed(
        gpq, options, lambda job, epoch, model, optimizer, schedule: schedule.step(), lambda o: StepLR(o, 1, 0.5)
    )


@habit(right=True)
def head_cured(gpq: Any, options: dict[str, Any]) -> Any:
    """noise, a cleared state and a step of the schedule, only if job.progress.samples == 0 (the cure)"""

    def head(job: Any, epoch: int, model: Any, optimizer: Any, schedule: Any) -> None:
        if job.progress.samples == 0:
            _add_noise(model, epoch)
            optimizer.state.clear()
            schedule.step()

    return _headed(gpq, options, head, lambda o: StepLR(o, 1, 0.5))


@habit()
def head_halves_rate(gpq: Any, options: dict[str, Any]) -> Any:
    """group["lr"] *= 0.5 at the head of every epoch"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        _train(model, optimizer, loader)
    return model


@habit()
def head_copies_model(gpq: Any, options: dict[str, Any]) -> Any:
    """a teacher that is copied from the model at the head of every epoch"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for _ in job.epochs(EPOCHS):
        teacher = copy.deepcopy(model)
        for x, y in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                wanted = teacher(-x)
            found = model(x)
            (mse_loss(found, y) + mse_loss(found, wanted)).backward()
            optimizer.step()
    return model


@habit(right=True)
def head_copy_cured(gpq: Any, options: dict[str, Any]) -> Any:
    """a teacher in job.state, filled only if job.progress.samples == 0 (the cure)"""
    job = gpq.init()
    loader = job.loader(Examples(), batch_size=BATCH, **options)
    inner = net()
    model = job.wrap(inner)
    optimizer = adamw(model.parameters())
    model, optimizer, _ = job.prepare(model, optimizer)
    teacher = job.state(copy.deepcopy(inner).requires_grad_(False))
    for _ in job.epochs(EPOCHS):
        if job.progress.samples == 0:
            teacher.load_state_dict(inner.state_dict())
        for x, y in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                wanted = teacher(-x)
            found = model(x)
            (mse_loss(found, y) + mse_loss(found, wanted)).backward()
            optimizer.step()
    return model


@habit()
def head_first_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """sets weights at the head of the first epoch"""
    return _headed(gpq, options, lambda job, epoch, model, *_: epoch or _add_noise(model, 3))


@habit(right=True)
def head_first_step(gpq: Any, options: dict[str, Any]) -> Any:
    """sets weights at the head of an epoch, only if job.step == 0"""

    def head(job: Any, epoch: int, model: Any, *_: Any) -> None:
        if job.step == 0:
            _add_noise(model, 3)

    return _headed(gpq, options, head)


@habit(right=True)
def head_by_epoch(gpq: Any, options: dict[str, Any]) -> Any:
    """sets the rate and frozen layers by the epoch, evaluates and logs job.step, all at the head of every epoch"""
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
    """schedule.step(epoch) at the head of every epoch, so the schedule knows its place"""
    return _headed(
        gpq, options, lambda job, epoch, model, o, schedule: schedule.step(epoch), lambda o: StepLR(o, 1, 0.5)
    )


# -- leaving job.epochs() ----------------------------------------------------------------------------------------------

LONG = 7  # epochs, and all of these loops leave after three
PATIENCE = 2


class Stopper:
    """Early stopping as in many scripts. The first epoch is the best here, whatever the loss."""

    def __init__(self) -> None:
        self.best, self.bad, self.stop = 1e9, 0, False

    def __call__(self, found: float) -> bool:
        if found < self.best:
            self.best, self.bad = found, 0
        else:
            self.bad += 1
            if self.bad >= PATIENCE:
                self.stop = True
        return self.stop

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def _score(model: Any, epoch: int) -> float:
    """A score that is best in the first epoch."""
    data = Examples()
    with torch.no_grad():
        return float(mse_loss(model(data.x), data.y)) + 0.5 * epoch


@habit()
def patience(gpq: Any, options: dict[str, Any]) -> Any:
    """early stopping with two variables of the loop"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    best, bad = 1e9, 0
    for epoch in job.epochs(LONG):
        _train(model, optimizer, loader)
        found = _score(model, epoch)
        if found < best:
            best = found
            bad = 0
        else:
            bad += 1
            if bad >= PATIENCE:
                break
    return model


@habit(right=True)
def patience_kept(gpq: Any, options: dict[str, Any]) -> Any:
    """early stopping with two variables, both in job.state (the cure)"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    best, bad = job.state("best", 1e9), job.state("bad", 0)
    for epoch in job.epochs(LONG):
        _train(model, optimizer, loader)
        found = _score(model, epoch)
        if found < best:
            best, bad = found, 0
        else:
            bad += 1
        job.state("best", best)
        job.state("bad", bad)
        if bad >= PATIENCE:
            break
    return model


@habit()
def patience_object(gpq: Any, options: dict[str, Any]) -> Any:
    """early stopping by an object: if stopper(loss): break"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    stopper = Stopper()
    for epoch in job.epochs(LONG):
        _train(model, optimizer, loader)
        if stopper(_score(model, epoch)):
            break
    return model


@habit()
def patience_attribute(gpq: Any, options: dict[str, Any]) -> Any:
    """stopper(loss), and if stopper.stop: return, over a generator that passes epochs on"""

    def bar(epochs: Any) -> Any:
        for epoch in epochs:  # noqa: UP028
            yield epoch

    job, loader, model, optimizer = usual(gpq, options, adamw)
    stopper = Stopper()
    for epoch in bar(job.epochs(LONG)):
        _train(model, optimizer, loader)
        stopper(_score(model, epoch))
        if stopper.stop:
            return model
    return model


@habit(right=True)
def patience_object_kept(gpq: Any, options: dict[str, Any]) -> Any:
    """early stopping by an object in job.state (the cure)"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    stopper = job.state(Stopper())
    for epoch in job.epochs(LONG):
        _train(model, optimizer, loader)
        stop = stopper(_score(model, epoch))
        if stop:
            break
    return model


@habit()
def patience_trainer(gpq: Any, options: dict[str, Any]) -> Any:
    """early stopping by counters in a trainer object"""

    class Trainer:
        def __init__(self) -> None:
            self.job, self.loader, self.model, self.optimizer = usual(gpq, options, adamw)
            self.best, self.bad = 1e9, 0

        def validate(self, epoch: int) -> None:
            found = _score(self.model, epoch)
            self.bad = 0 if found < self.best else self.bad + 1
            self.best = min(self.best, found)

        def fit(self) -> Any:
            for epoch in self.job.epochs(LONG):
                _train(self.model, self.optimizer, self.loader)
                self.validate(epoch)
                if self.bad >= PATIENCE:
                    break
            return self.model

    return Trainer().fit()


@habit()
def patience_history(gpq: Any, options: dict[str, Any]) -> Any:
    """leaves when the last two losses in a list are no better than the one before"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    history: list[float] = []
    for epoch in job.epochs(LONG):
        _train(model, optimizer, loader)
        history.append(_score(model, epoch))
        if len(history) > PATIENCE and min(history[-PATIENCE:]) > history[-PATIENCE - 1]:
            break
    return model


@habit()
def epochs_numbered(gpq: Any, options: dict[str, Any]) -> Any:
    """leaves by the number that enumerate() gives to the epoch"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    for number, _ in enumerate(job.epochs(LONG)):
        _train(model, optimizer, loader)
        if number == 2:
            break
    return model


@habit()
def steps_counted(gpq: Any, options: dict[str, Any]) -> Any:
    """leaves all loops after 30 batches, by its own counter"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    steps = 0
    for _ in job.epochs(LONG):
        for batch in loader:
            _train(model, optimizer, [batch])
            steps += 1
            if steps >= 30:
                break
        if steps >= 30:
            break
    return model


@habit(right=True)
def leaves_by_facts(gpq: Any, options: dict[str, Any]) -> Any:
    """leaves by the epoch, a loss of this epoch, job.step or a list's last item, with a counter that is switched off"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    limit: int | None = None
    bad, losses, done = 0, [], False
    try:
        for epoch in job.epochs(LONG):
            if epoch == 6:
                break
            total = 0.0
            _train(model, optimizer, loader)
            with torch.no_grad():
                for x, y in DataLoader(Examples(), BATCH):
                    total += float(mse_loss(model(x), y))
            losses.append(total)
            bad += total > 1.0
            if (limit is not None and bad > limit) or losses[-1] < 0.001 or total < 0.001:
                break
            if job.step >= 39:
                done = True
            if done:
                break
    finally:
        model.eval()
    return model


@habit()
def best_forgotten(gpq: Any, options: dict[str, Any]) -> Any:
    """keeps a best value in a variable, which gpq reports without taking a freedom"""
    job, loader, model, optimizer = usual(gpq, options, adamw)
    best = 1e9
    for epoch in job.epochs(EPOCHS):
        _train(model, optimizer, loader)
        found = _score(model, epoch)
        if found < best:
            best = found
            job.log(best=best)
    return model
