"""The loop body of one replica, in this process. Optimizer, schedulers, clipping and loss scaling act once per step."""

import copy
import gc
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.data.order import permutation
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment

Model = torch.nn.Module


class Examples(torch.utils.data.Dataset[Any]):
    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(size, 5, generator=generator)
        self.y = torch.randn(size, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


def network() -> Model:
    generator = torch.Generator().manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def job() -> Job:
    return Job(Environment(), torch.device("cpu"), 0, {})


def adam(model: Model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def plain(data: Examples, batch: int, epochs: int) -> Model:
    """The same training in plain PyTorch, with the same order of examples."""
    model = network()
    optimizer = adam(model)
    for epoch in range(epochs):
        order = permutation(0, epoch, len(data), shuffle=True)
        for start in range(0, len(data), batch):
            index = order[start : start + batch]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(data.x[index]), data.y[index]).backward()
            optimizer.step()
    return model


def same(first: Model, second: Model) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)


def prepared(this: Job) -> Any:
    model = network()
    return this.prepare(model, adam(model))


def clear_first(model: Model, optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def clear_last(model: Model, optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
    loss().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_gradients_are_zero_before_the_last_micro_batch_whatever_the_script_did_to_earlier_ones() -> None:
    """Even if the change leaves no trace. A gradient that the script keeps for itself is left alone."""
    data, this = Examples(96), job()
    loader = this.loader(data, batch_size=24, max_local_batch=12, fixed_batch=True)
    model = network()
    model, optimizer, _ = this.prepare(model, adam(model))
    weight = next(model.parameters())
    own = None
    for _ in this.epochs(2):
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            if not this.at_step:
                assert weight.grad is not None
                assert all(not item.grad.any() for item in model.parameters() if item.grad is not None)
                if own is None:
                    own = weight.grad.detach()
                    own.fill_(5.0)  # the memory of p.grad, which the script releases below
                weight.grad.data.add_(1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert own is not None
    assert torch.equal(own, torch.full_like(own, 6.0))
    assert same(model, plain(data, 24, 2))


def test_the_rate_is_scaled_only_during_the_step_and_the_scheduler_advances_by_the_gain() -> None:
    data, this = Examples(400), job()
    loader = this.loader(data, batch_size=10, max_batch_size=40, max_local_batch=40)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rates: list[float] = []
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: 1.0 if steps < 1000 else 0.1)
    model, optimizer, scheduler = this.prepare(model, optimizer, scheduler, rule="linear")
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    this._data.noise.observe(1.0, 0.5, batch=10, count=2)  # noise enough for a gain above 1
    loader.sampler.configure(loader.sampler.configuration._replace(atomic_batch=40, total=40))
    for _ in this.epochs(1):
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            assert optimizer.param_groups[0]["lr"] == 0.01
            optimizer.zero_grad()
            scheduler.step()
    assert rates == [pytest.approx(0.04)] * len(rates)
    assert 10 < len(rates) < 40
    assert scheduler.last_epoch == this.progress.base_steps == 40


@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")  # as torch says of a step at the start
@pytest.mark.parametrize(("consumed", "rates"), [(0, [0.5, 0.125]), (20, [1.0, 0.25])])
def test_a_resumed_epoch_does_not_repeat_the_schedule_step_at_its_start(consumed: int, rates: list[float]) -> None:
    this = job()
    loader = this.loader(Examples(50), batch_size=10)
    loader.sampler.seek(0, consumed)
    this._engine.runtime.meter.samples = consumed
    model = network()
    optimizer = adam(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    model, optimizer, schedule = this.prepare(model, optimizer, schedule)
    seen = []
    for _ in this.epochs(2):
        schedule.step()
        seen.append(optimizer.param_groups[0]["lr"] / 0.01)
        for x, y in loader:
            clear_last(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
        schedule.step()
    assert seen == pytest.approx(rates)


@pytest.mark.parametrize("names", [(), ("metrics",)])
def test_a_plateau_follows_the_metric_that_replicas_share(names: tuple[str, ...], monkeypatch: Any) -> None:
    this = job()
    this.loader(Examples(50), batch_size=10)
    model = network()
    optimizer = adam(model)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    this.prepare(model, optimizer, plateau)
    monkeypatch.setattr(this._engine.loop, "shared_metric", lambda own: own - 7.0)
    for own in (1.0, 2.0):
        plateau.step(*() if names else (own,), **dict.fromkeys(names, own))
    assert (plateau.best, plateau.num_bad_epochs) == (-6.0, 0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_a_schedule_that_skips_the_steps_a_scaler_skips_is_not_a_habit() -> None:
    """This is the usual guard against torch's warning. A schedule stepped by a count of batches is a habit."""
    for by_count in (False, True):
        this = job()
        loader = this.loader(Examples(60), batch_size=10, fixed_batch=True)
        model = network()
        optimizer = adam(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        model, optimizer, schedule = this.prepare(model, optimizer, schedule, scaler=scaler)
        count = 0
        for _ in this.epochs(1):
            for x, y in loader:
                count += 1
                loss = torch.nn.functional.mse_loss(model(x), y)
                scaler.scale(loss * (float("inf") if count in (1, 4) else 1.0)).backward()
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if (count % 2 == 0) if by_count else scaler.get_scale() >= before:
                    schedule.step()
        assert ("own-rate" in this._engine.shape.freedoms._agreed) == by_count


def test_a_generator_that_trains_is_a_loop_and_one_that_yields_batches_counts_as_its_caller() -> None:
    def training(this: Job, loader: Any) -> Any:
        model, optimizer, _ = prepared(this)
        for _ in this.epochs(1):
            for x, y in loader:
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                yield this.step

    def passing(loader: Any) -> Any:
        for batch in loader:
            kept = batch
            yield kept

    this = job()
    steps = training(this, this.loader(Examples(40), batch_size=10))
    assert next(steps) == 1
    assert "own-next" not in this._engine.shape.freedoms._agreed
    steps.close()  # otherwise its model looks like a copy in later tests
    for by_next in (False, True):
        that = job()
        loader = that.loader(Examples(40), batch_size=10)
        net, optimizer, _ = prepared(that)
        for _ in that.epochs(1):
            batches = passing(loader)
            for x, _ in [next(batches)] if by_next else batches:
                net(x).mean().backward()
                optimizer.step()
                break
            batches.close()
            break
        assert ("own-next" in that._engine.shape.freedoms.waiting) == by_next
    del this, steps, that, loader, batches, net, optimizer
    gc.collect()


def test_leaving_the_loop_early_leaves_an_ordinary_optimizer_behind() -> None:
    this = job()
    loader = this.loader(Examples(50), batch_size=10, max_local_batch=5)
    model = network()
    model, optimizer, _ = this.prepare(model, adam(model))
    for _ in this.epochs(2):
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            break  # in the first of two micro-batches
    before = copy.deepcopy(model)
    optimizer.step()
    assert not same(model, before)


def test_a_half_accumulated_step_does_not_leak_into_another() -> None:
    data, this = Examples(48), job()
    loader = this.loader(data, batch_size=24, max_local_batch=8, fixed_batch=True)
    model = network()
    model, optimizer, _ = this.prepare(model, adam(model))
    for epoch in this.epochs(2):
        for x, y in loader:
            clear_last(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
            if epoch == 0:
                break  # in the first of three micro-batches
    expected = network()
    reference = adam(expected)
    order = permutation(0, 1, 48, shuffle=True)
    for start in (0, 24):
        index = order[start : start + 24]
        clear_first(expected, reference, lambda: torch.nn.functional.mse_loss(expected(data.x[index]), data.y[index]))  # noqa: B023
    assert same(model, expected)
    assert (this._engine.boundaries.ledger.passes, this._engine.boundaries.ledger.exact) == (2, 1)


@pytest.mark.parametrize("total_steps", [40, 12])
def test_a_schedule_of_limited_length_does_not_end_early_with_larger_batches(total_steps: int) -> None:
    this = job()
    loader = this.loader(Examples(64), batch_size=8, max_batch_size=24, max_local_batch=24)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps)
    this.prepare(model, optimizer, scheduler, rule="linear")
    this._data.noise.observe(1.0, 0.5, batch=8, count=2)
    loader.sampler.configure(loader.sampler.configuration._replace(atomic_batch=24, total=24))
    for _ in this.epochs(5):
        for x, y in loader:
            clear_last(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
            scheduler.step()
    assert scheduler.last_epoch <= total_steps
    assert this.progress.base_steps > 12


def test_leaving_the_epochs_early_restores_the_sigterm_handler(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    this = Job(Environment(checkpoint_dir=str(tmp_path)), torch.device("cpu"), 0, {})
    loader = this.loader(Examples(20), batch_size=10)
    model = network()
    model, optimizer, _ = this.prepare(model, adam(model))
    for _ in this.epochs(5):
        for x, y in loader:
            clear_last(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
        assert signal.getsignal(signal.SIGTERM) != before
        break
    assert signal.getsignal(signal.SIGTERM) == before


def test_metrics_logged_after_the_last_epoch_are_reported(tmp_path: Path) -> None:
    this = Job(Environment(run_dir=str(tmp_path)), torch.device("cpu"), 0, {})
    loader = this.loader(Examples(20), batch_size=10)
    model = network()
    model, optimizer, _ = this.prepare(model, adam(model))
    for _ in this.epochs(1):
        for x, y in loader:
            clear_last(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    this.log(accuracy=torch.tensor([0.75]), diverged=float("nan"), steps=2)
    lines = [wire.decode(line) for line in (tmp_path / wire.REPORT).read_bytes().splitlines()]
    assert [line["values"] for line in lines if line["kind"] == "metrics"][-1] == {
        "accuracy": 0.75, "diverged": "nan", "steps": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda this: this.prepare(network(), None), "needs an optimizer"),
        (lambda this: [prepared(this), this.loader(Examples(4), batch_size=2)], "before job.loader"),
        (lambda this: prepared(this) and prepared(this), "called twice"),
        (lambda this: next(this.steps(3)), "before job.prepare"),
        (lambda this: this.state("best", object()), "keeps numbers, strings and lists"),
        (lambda this: this.loader(Examples(4), batch_size=0), "batch_size must be at least 1, not 0"),
        (
            lambda this: this.loader(Examples(4), batch_size=8, max_batch_size=4),
            "max_batch_size 4 is below batch_size 8",
        ),
        (lambda this: [this.loader(Examples(4), batch_size=2) for _ in range(2)], "called twice"),
        (lambda this: next(iter(this.loader(Examples(4), batch_size=2))), "before job.prepare"),
        (lambda this: this.loader(Stream(), batch_size=2), "IterableDataset"),
        (lambda this: this.loader(object(), batch_size=2), "without|has none"),
        (lambda this: next(this.epochs(3)), "needs job.loader"),
        (lambda this: this.state(object()), "no state_dict"),
        (lambda this: this.save_path, "no checkpoint directory"),
        (
            lambda this: this.log(loss=torch.zeros(2, 3)),
            r"log\(loss=...\) needs one number, not a Tensor of shape \(2, 3\)",
        ),
        (lambda this: this.log(phase="warm"), "needs one number, not a str"),
    ],
)
def test_misuse_gives_one_clear_line(misuse: Callable[[Job], Any], message: str) -> None:
    with pytest.raises(GpqTrainError, match=message) as caught:
        misuse(job())
    assert "\n" not in caught.value.message


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(10))


def test_an_unknown_rule_names_the_valid_ones() -> None:
    this = job()
    this.loader(Examples(10), batch_size=5)
    model = network()
    with pytest.raises(GpqTrainError, match="adam-sqrt"):
        this.prepare(model, adam(model), rule="cubic")


def test_a_checkpoint_of_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    def attempt(model: Model) -> None:
        this = Job(Environment(checkpoint_dir=str(tmp_path)), torch.device("cpu"), 0, {})
        loader = this.loader(Examples(20), batch_size=10)
        model, optimizer, _ = this.prepare(model, adam(model))
        for _ in this.epochs(1):
            for x, y in loader:
                clear_last(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023

    attempt(network())
    attempt(network())
    with pytest.raises(GpqTrainError, match="the checkpoint does not fit this script") as caught:
        attempt(torch.nn.Linear(5, 1))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize("batch", [10, 12])  # micro-batches of 4, 4 and 2 examples, and equal ones
def test_a_parameter_that_only_some_micro_batches_reach_gets_its_share(batch: int, clears: bool) -> None:
    """Sparse gradients, too, and what the script has not cleared stays a part of the gradient."""
    training = job()
    loader = training.loader(Examples(2 * batch), batch_size=batch, max_local_batch=4, fixed_batch=True)
    heads = torch.nn.ModuleList(torch.nn.Linear(5, 1) for _ in range(3))
    model = torch.nn.ModuleList([network(), heads, torch.nn.Embedding(3, 1, sparse=True)])
    model, optimizer, _ = training.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    expected: dict[torch.nn.Parameter, torch.Tensor] = {}

    for _ in training.epochs(1):
        for number, (x, y) in enumerate(loader):
            place = number % 3
            row = model[2](torch.tensor([place]))
            loss = torch.nn.functional.mse_loss(model[0](x) + heads[place](x) + row, y)
            trained = [*model[0].parameters(), *heads[place].parameters(), *model[2].parameters()]
            parts = torch.autograd.grad(loss, trained, retain_graph=True)
            for item, part in zip(trained, parts, strict=True):
                expected[item] = expected.get(item, 0.0) + len(x) / batch * part.to_dense()
            loss.backward()
            optimizer.step()
            if place == 2:
                for item in model.parameters():
                    assert item.grad is not None
                    torch.testing.assert_close(item.grad.to_dense(), expected[item])
            if clears:
                optimizer.zero_grad()
                expected = {} if place == 2 else expected
    assert number == 5
