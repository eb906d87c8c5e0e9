"""What job.loader() accepts: samplers, batch samplers and options of torch's DataLoader. Also its reported length."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpq_agent.train.data.order import OwnOrder, permutation
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.job import Job
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from .driver import TrainingJob, wait_until
from .script import BATCH_SAMPLERS, SAMPLERS, Settings
from .test_stepping import Examples, Stream, adam, clear_first, job, network, same

Training = Callable[..., TrainingJob]
Model = torch.nn.Module


def train(this: Job, loader: Any, epochs: int, rule: str = "auto") -> tuple[Model, int]:
    """Return the trained model and how often the loop body ran."""
    model, bodies = network(), 0
    model, optimizer, _ = this.prepare(model, adam(model), rule=rule)
    for _ in this.epochs(epochs):
        for x, y in loader:
            bodies += 1
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    return model, bodies


def plainly(data: Examples, batches: list[list[int]]) -> Model:
    """Train on these batches with plain PyTorch."""
    model = network()
    optimizer = adam(model)
    for index in batches:
        clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(data.x[index]), data.y[index]))  # noqa: B023
    return model


def cut(order: torch.Tensor, batch: int, *, drop_last: bool = False) -> list[list[int]]:
    batches = [order[at : at + batch].tolist() for at in range(0, len(order), batch)]
    return [each for each in batches if len(each) == batch or not drop_last]


@pytest.mark.parametrize(("drop_last", "expected"), [(False, 5), (True, 4)])
@pytest.mark.parametrize("local", [10, 4])
def test_the_loader_always_has_the_length_of_plain_training(local: int, drop_last: bool, expected: int) -> None:
    this = job()
    loader = this.loader(Examples(45), 10, 40, max_local_batch=local, drop_last=drop_last)
    loader.sampler.seek(0, 20)  # as after a resume in the middle of an epoch
    model = network()
    model, optimizer, _ = this.prepare(model, adam(model))
    for epoch in this.epochs(4):
        if epoch == 2:
            loader.sampler.configure(loader.sampler.configuration._replace(atomic_batch=40, total=40))
        for x, y in loader:
            assert len(loader) == loader.steps_per_epoch == expected
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    assert len(loader) == expected


@pytest.mark.parametrize("local", [16, 5])
def test_a_schedule_built_from_the_length_of_the_loader_ends_with_the_training(local: int) -> None:
    this = job()
    loader = this.loader(Examples(100), batch_size=16, max_local_batch=local, fixed_batch=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, epochs=3, steps_per_epoch=len(loader))
    this.prepare(model, optimizer, scheduler)
    total, counted = 0.0, 0
    for _ in this.epochs(3):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            total, counted = total + loss.item() * loader.counted, counted + loader.counted
    assert scheduler.last_epoch == 3 * len(loader) == scheduler.total_steps == this.step
    assert counted == 300, "total / counted is the mean loss of an example"
    assert total > 0


class Asked:
    """Records the epochs that it was asked for. Its epochs have 30, 31, 32... indices."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Any:
        return iter(range(30 + self.epochs[-1]))


def test_a_sampler_is_asked_once_per_epoch_and_not_after_the_last() -> None:
    data, this, sampler = Examples(60), job(), Asked()
    loader = this.loader(data, batch_size=16, sampler=sampler, fixed_batch=True)
    model, _ = train(this, loader, 3)
    assert sampler.epochs == [0, 1, 2]
    assert same(model, plainly(data, [each for epoch in range(3) for each in cut(torch.arange(30 + epoch), 16)]))
    assert this.progress.fraction == 1.0
    assert (this._engine.boundaries.ledger.passes, this._engine.boundaries.ledger.exact) == (3, 3)
    short = job().loader(Examples(4), batch_size=8, sampler=list(range(4)) * 5, drop_last=True)
    assert (len(short), short.sampler.size) == (2, 8), "an estimate until the sampler is read"
    assert [len(batch) for batch in short.sampler] == [8, 8]
    assert short.sampler.size == 16


@pytest.mark.parametrize(("local", "rule"), [(None, "linear"), (4, "auto"), (4, "linear")])
def test_the_batches_of_a_batch_sampler_are_the_steps_and_keep_the_rate(local: int | None, rule: str) -> None:
    batches = [[3, 1, 4], list(range(20, 39)), [5, 9], [2, 6, 7, 8], [11]]
    data, this = Examples(60), job()
    loader = this.loader(data, 4, max_local_batch=local, batch_sampler=batches)
    model, bodies = train(this, loader, 2, rule)
    assert len(loader) == 5
    assert same(model, plainly(data, batches * 2))
    assert this.step == 10
    assert bodies == (10 if local is None else 2 * (1 + 5 + 1 + 1 + 1)), (
        "batches are split only if the local limit demands it"
    )
    assert (this._engine.boundaries.ledger.passes, this._engine.boundaries.ledger.exact) == (2, 2)


def test_the_order_uses_the_seed_of_a_generator_and_leaves_the_generator_unchanged() -> None:
    def order(seed: int | None) -> torch.Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        loader = job().loader(Examples(40), batch_size=8, generator=generator)
        assert generator is None or torch.equal(generator.get_state(), torch.Generator().manual_seed(seed).get_state())
        return loader.sampler.order()

    assert torch.equal(order(7), permutation(7, 0, 40, shuffle=True))
    assert torch.equal(order(None), permutation(0, 0, 40, shuffle=True))
    assert not torch.equal(order(7), order(8))


def test_collate_fn_is_used_and_in_order_false_is_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    this = job()
    loader = this.loader(
        Examples(20), 10, collate_fn=lambda items: ("mine", len(items)), fixed_batch=True, in_order=False
    )
    model = network()
    this.prepare(model, adam(model))
    assert list(loader) == [("mine", 10)] * 2
    assert "in_order=False has no effect: gpq needs the batches in order" in capsys.readouterr().err


SEQUENCE = SequentialSampler(range(4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "job.loader\\(\\) needs batch_size"),
        ({"batch_size": 2.5}, "batch_size must be a whole number, not 2.5"),
        ({"batch_size": 2, "sampler": SEQUENCE, "shuffle": True}, "sampler= and shuffle= were both given"),
        ({"batch_sampler": [[1, 2]]}, "needs batch_size, because the batch sampler has no batch_size"),
        (
            {"batch_size": 3, "batch_sampler": BatchSampler(SEQUENCE, 2, False)},
            "batch_size 3 differs from the 2 of the batch sampler",
        ),
        (
            {"batch_size": 2, "batch_sampler": [[1, 2]], "sampler": SEQUENCE, "shuffle": True, "drop_last": True},
            "batch_sampler= and sampler=, shuffle=, drop_last= were both given",
        ),
        (
            {"batch_sampler": BatchSampler(SEQUENCE, 2, False), "max_batch_size": 8},
            "max_batch_size cannot be combined with batch_sampler=",
        ),
        ({"batch_size": 8, "drop_last": True}, "drop_last=True leaves nothing: an epoch has 4 examples and a batch 8"),
        (
            {"batch_size": 2, "sampler": DistributedSampler(range(4), 2, 0)},  # type: ignore[arg-type]
            "DistributedSampler splits the data over replicas",
        ),
        ({"batch_size": 2, "sampler": ["a"]}, "needs integer indices, but list yields a str"),
        ({"batch_size": 2, "timeout": -1}, "job.loader\\(\\): timeout option should be non-negative"),
        ({"batch_size": 2, "multiprocessing_context": "spawn"}, "multiprocessing_context can only be used with"),
        ({"batch_size": 2, "colour": "red"}, "job.loader\\(\\) has no option colour"),
    ],
)
def test_contradictory_arguments_give_one_clear_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(GpqTrainError, match=message) as caught:
        job().loader(Examples(4), **arguments).sampler.order()
    assert "\n" not in caught.value.message


def test_an_iterable_data_set_is_refused_with_advice() -> None:
    with pytest.raises(GpqTrainError, match="Stream is an IterableDataset") as caught:
        job().loader(Stream(), 4, sampler=RandomSampler(range(4)))
    assert "should_stop" in caught.value.hint


class Dated(Examples):
    """Each example is the epoch."""

    epoch = 0

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.epoch)


def test_persistent_workers_know_the_epoch_that_the_script_sets(capsys: pytest.CaptureFixture[str]) -> None:
    data, this = Dated(20), job()
    subset = torch.utils.data.Subset(data, range(20))
    loader = this.loader(subset, 10, fixed_batch=True, num_workers=1, persistent_workers=True)
    model = network()
    this.prepare(model, adam(model))
    epochs, workers = [], []
    for epoch in this.epochs(4):
        data.epoch = min(epoch, 2)
        epochs.append({int(value) for batch in loader for value in batch})
        workers += [process.pid for process in multiprocessing.active_children()]
    assert epochs == [{0}, {1}, {2}, {2}]
    assert len(set(workers)) == 3, "the last epoch keeps the workers of the one before"
    assert capsys.readouterr().err.count("the data set has changed since its persistent workers started") == 1


def test_a_sampler_does_not_change_the_random_numbers_of_the_script() -> None:
    def weights(sampler: Any) -> list[float]:
        torch.manual_seed(3)
        loader = job().loader(Examples(20), 4, sampler=sampler)
        loader.sampler.order()
        values: list[float] = torch.rand(3).tolist()
        return values

    assert weights(None) == weights(RandomSampler(range(20))) == weights(SequentialSampler(range(20)))


# -- real processes ----------------------------------------------------------------------------------------------------


def orders(settings: Settings) -> dict[int, list[list[int]]]:
    """The steps of every epoch as one process alone would take them."""
    result = {}
    for epoch in range(settings.epochs):
        if settings.sampler in BATCH_SAMPLERS:
            batched = OwnOrder(
                BATCH_SAMPLERS[settings.sampler](settings.size, settings.batch), settings.size, batched=True
            )
            indices, ends, _ = batched.draw(0, epoch)
            assert ends is not None
            result[epoch] = [indices[a:b].tolist() for a, b in zip([0, *ends], ends, strict=False)]
            continue
        order = permutation(0, epoch, settings.size, shuffle=True)
        if settings.sampler:
            order = (
                OwnOrder(SAMPLERS[settings.sampler](settings.size), settings.size, batched=False).draw(0, epoch).indices
            )
        result[epoch] = cut(order, settings.batch, drop_last=settings.drop_last)
    return result


def steps_seen(this: TrainingJob) -> dict[int, list[list[int]]]:
    """The examples of every step by epoch, over all attempts and replicas."""
    found: dict[tuple[int, int], list[int]] = {}
    for micro in this._micros():
        found.setdefault((micro["epoch"], micro["step"]), []).extend(micro["seen"])
    result: dict[int, list[list[int]]] = {}
    for epoch, step in sorted(found):
        result.setdefault(epoch, []).append(sorted(found[epoch, step]))
    return result


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler": "weighted", "workers": 1},
        {"sampler": "buckets", "max_batch": 16, "max_local": 16},
        {"drop_last": True, "norm": True, "batch": 4, "max_local": 4, "fixed": True},
        {"norm": True, "batch": 4, "max_local": 4, "size": 91, "fixed": True},
    ],
    ids=["weighted", "buckets", "drop-last", "batch-norm"],
)
def test_every_step_has_its_examples_despite_stops_and_resizes(training: Training, settings: dict[str, Any]) -> None:
    this = training(**{"size": 203, "epochs": 3, "batch": 16, "fixed": "max_batch" not in settings, **settings})
    for replicas in (3, 1, 2):
        attempt = this.start(replicas, brake=7).after_micros(7)
        wait_until(lambda: len(attempt.micros()) > 7 or not attempt.alive, "another step")  # noqa: B023
        assert attempt.stop() == [0] * replicas
    this.run(replicas=3)
    expected = {epoch: [sorted(each) for each in steps] for epoch, steps in orders(this.settings).items()}
    assert steps_seen(this) == expected


def test_replicas_with_different_samplers_stop_with_one_line(training: Training) -> None:
    this = training(sampler="another by rank", fixed=True)
    assert this.start(2).wait() == [1, 1]
    for rank in range(2):
        line = (this.out / f"refused.1.{rank}").read_text()
        assert line == "the sampler list yields a different order on each replica (epoch 0)"


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 60.0, "persistent_workers": True, "prefetch_factor": 3},
        {"multiprocessing_context": "spawn"},
        {"multiprocessing_context": "forkserver", "timeout": 60.0},
        {"pin_memory": True},
    ],
    ids=str,
)
def test_the_options_of_torchs_loader_work_across_a_resize(training: Training, options: dict[str, Any]) -> None:
    this = training(size=120, epochs=3, batch=12, max_local=12, fixed=True, workers=2, options=options)
    attempt = this.start(2, brake=6).after_micros(6)
    assert attempt.stop() == [0, 0]
    this.run(replicas=1)
    expected = {epoch: [sorted(each) for each in steps] for epoch, steps in orders(this.settings).items()}
    assert steps_seen(this) == expected
