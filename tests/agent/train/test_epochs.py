"""An epoch of `job.epochs()` trains as much as alone, whatever the batch size."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.progress import ROUNDING
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment

SIZE, BATCH, EPOCHS = 100, 10, 4


class Examples(torch.utils.data.Dataset[Any]):
    """Each with its index."""

    def __init__(self) -> None:
        self.x = torch.randn(SIZE, 5, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return index, self.x[index], self.x[index].sum().reshape(1)


class Run:
    """One attempt of a training whose batch is `grown` times as large, with a gain of two thirds of that."""

    def __init__(self, folder: Path, grown: int, *, sampler: Any = None) -> None:
        self.job = Job(Environment(checkpoint_dir=str(folder)), torch.device("cpu"), 0, {})
        options = {"max_batch_size": BATCH * grown, "max_local_batch": BATCH * grown, "sampler": sampler}
        self.loader = self.job.loader(Examples(), batch_size=BATCH, **options)
        self.model = torch.nn.Linear(5, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        steps = len(self.loader) * EPOCHS
        self.by_step = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=steps)
        self.by_epoch = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.9)
        self.job.prepare(self.model, self.optimizer, [self.by_step, self.by_epoch])
        self.engine = self.job._engine
        self.meter, sampler = self.engine.runtime.meter, self.loader.sampler
        sampler.configure(sampler.configuration._replace(atomic_batch=BATCH * grown, total=BATCH * grown))
        self.engine.statistics.measures, sampler.sample_every = False, 0  # no step is split
        self.job._data.noise.gain = lambda total: max(1.0, total / BATCH / 1.5)  # type: ignore[method-assign]
        self.seen: list[tuple[int, list[int]]] = []  # the epoch and the examples of each step

    def step(self, epoch: int, batch: Any) -> None:
        index, x, y = batch
        torch.nn.functional.mse_loss(self.model(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.by_step.step()
        self.seen.append((epoch, index.tolist()))

    def train(self, *, passes: bool = False, stop: int = 0) -> None:
        """`stop`: save in this step of the attempt, and leave."""
        for epoch in self.job.epochs(EPOCHS, passes=passes):
            for batch in self.loader:
                if stop and len(self.seen) == stop:
                    self.engine.boundaries._audit()
                    self.engine.checkpointer.save("stop")
                    return
                self.step(epoch, batch)
            self.by_epoch.step()

    @property
    def ledger(self) -> tuple[int, int]:
        return self.engine.boundaries.ledger.passes, self.engine.boundaries.ledger.exact


@pytest.mark.parametrize("grown", [1, 2, 3, 7])
def test_epochs_and_schedules_end_with_their_base_steps(tmp_path: Path, grown: int) -> None:
    run = Run(tmp_path, grown)
    run.train()
    total = EPOCHS * SIZE // BATCH
    assert run.meter.base_steps == pytest.approx(total, abs=ROUNDING)
    assert (run.by_step.last_epoch, run.by_epoch.last_epoch) == (total, EPOCHS)
    assert [epoch for epoch, _ in run.seen] == sorted(epoch for epoch, _ in run.seen)
    assert {epoch for epoch, _ in run.seen} == set(range(EPOCHS))
    used = [index for _, examples in run.seen for index in examples]
    for start in range(0, len(used), SIZE):
        part = used[start : start + SIZE]
        assert len(set(part)) == len(part), "each example once per pass"
    passes = -(-len(used) // SIZE)
    assert run.ledger == (passes, passes)
    assert run.job.progress.fraction == 1.0


def test_passes_count_passes_over_the_data(tmp_path: Path) -> None:
    run = Run(tmp_path, 3)
    run.train(passes=True)
    assert [len(run.seen), *run.ledger] == [EPOCHS * 4, EPOCHS, EPOCHS]
    assert sorted(index for epoch, examples in run.seen if epoch == 1 for index in examples) == list(range(SIZE))
    assert run.meter.base_steps < EPOCHS * SIZE // BATCH


@pytest.mark.parametrize("stop", [1, 4, 9, 13, 18])
def test_a_job_that_resumes_takes_the_steps_it_would_have_taken(tmp_path: Path, stop: int) -> None:
    whole, first = Run(tmp_path / "whole", 3), Run(tmp_path / "parts", 3)
    whole.train()
    first.train(stop=stop)
    second = Run(tmp_path / "parts", 3)
    assert (second.meter.epoch, second.meter.samples) == (first.meter.epoch, first.meter.samples)
    second.train()
    assert first.seen + second.seen == whole.seen
    assert (second.by_step.last_epoch, second.by_epoch.last_epoch) == (whole.by_step.last_epoch, EPOCHS)
    assert second.ledger == whole.ledger


def test_an_epoch_that_the_script_leaves_early_is_over_and_the_next_begins_a_new_pass(tmp_path: Path) -> None:
    run = Run(tmp_path, 3)
    for epoch in run.job.epochs(EPOCHS):
        for batch in run.loader:
            run.step(epoch, batch)
            if epoch == 1:
                break
        progress = run.job.progress
        assert (progress.epoch, progress.fraction) == (
            epoch,
            pytest.approx((epoch + (1, 0.27)[epoch == 1]) / 4, abs=0.1),
        )
    assert [epoch for epoch, _ in run.seen].count(1) == 1
    third = [index for epoch, examples in run.seen if epoch == 2 for index in examples]
    assert sorted(third[:SIZE]) == list(range(SIZE))
    passes, exact = run.ledger
    assert exact == passes - 1


def test_a_second_loop_in_an_epoch_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, 3)
    epoch = next(run.job.epochs(EPOCHS))
    for batch in run.loader:
        run.step(epoch, batch)
    with pytest.raises(GpqTrainError, match="a second loop over the loader in one epoch"):
        next(iter(run.loader))


class Halves:
    """Every second epoch has half of the examples."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter(range(SIZE // 2 if self.epoch % 2 else SIZE))


def test_epochs_of_an_own_sampler_are_its_passes_at_the_usual_batch(tmp_path: Path) -> None:
    run = Run(tmp_path, 1, sampler=Halves())
    run.train()
    steps = [[epoch for epoch, _ in run.seen].count(number) for number in range(EPOCHS)]
    assert steps == [10, 5, 10, 5]
    assert run.ledger == (EPOCHS, EPOCHS)


def test_a_checkpoint_from_before_resumes_at_its_place_in_the_data(tmp_path: Path) -> None:
    first = Run(tmp_path, 1)
    plain = first.meter.state_dict
    first.meter.state_dict = lambda: {  # type: ignore[method-assign]
        name: value for name, value in plain().items() if name != "place"
    }
    first.train(stop=23)
    second = Run(tmp_path, 1)
    second.train()
    assert len(first.seen + second.seen) == 40
    assert second.ledger == (EPOCHS, EPOCHS)
