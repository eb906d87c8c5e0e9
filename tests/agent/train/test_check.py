"""How a run of `gpq check` differs from a job: its shape, and the randomness that it removes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.data.batches import Limits, starting
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.process.environment import Environment
from gpq_agent.train.prove.determinism import EpochIndexSampler, SeededData, generators, has_moved
from gpq_agent.train.prove.recorder import Recorder
from torch.utils.data import DataLoader, Dataset


class Lucky(Dataset):  # type: ignore[type-arg]
    """Each example draws new numbers from every generator."""

    name = "lucky"

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.rand(()), random.random(), numpy.random.rand()], dtype=torch.float64)

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        raise AssertionError("this one knows no epoch")


def loaded(epoch: int, replicas: int, *, workers: int = 0, reverse: bool = False) -> torch.Tensor:
    """All examples of an epoch, in ascending order."""
    found = []
    for rank in range(replicas):
        limits = Limits(4, 4, 4 // replicas, replicas)
        sampler = GlobalSampler(10, starting(limits), replicas=replicas, rank=rank, seed=3, shuffle=True)
        sampler.seek(epoch)
        found += list(
            DataLoader(SeededData(Lucky()), batch_sampler=EpochIndexSampler(sampler, reverse), num_workers=workers)
        )
    return torch.unique(torch.cat(found), dim=0)  # a replica without examples repeats some


def test_an_example_depends_only_on_its_index_and_the_epoch() -> None:
    whole = loaded(0, 1)
    assert whole[:, 0].tolist() == list(range(10))
    for other in (loaded(0, 2), loaded(0, 1, reverse=True), loaded(0, 1, workers=1)):
        assert torch.equal(whole, other)
    assert not (whole == loaded(1, 1))[:, 1:].any()
    data = SeededData(Lucky())
    assert (data.name, len(data), hasattr(data, "__getitems__")) == ("lucky", 10, False)


def test_the_generators_of_the_script_stay_unchanged() -> None:
    before = generators()
    assert SeededData(Lucky())[0, 1][0] == 1
    assert not has_moved(before, generators())
    for draw in (lambda: torch.rand(()), random.random, numpy.random.rand):
        before = generators()
        draw()
        assert has_moved(before, generators())


@pytest.mark.parametrize(("replicas", "batch", "micros"), [(1, 33, 1), (2, 33, 1), (2, 35, 3), (1, 7, 3)])
def test_a_sampled_step_leaves_nothing_out(tmp_path: Path, replicas: int, batch: int, micros: int) -> None:
    seen = []
    for rank in range(replicas):
        recorder = Recorder.__new__(Recorder)  # without the hooks, because those stay until the process ends
        recorder.order = wire.CheckOrder(str(tmp_path), 8, epoch_steps=4, micros=micros)
        recorder._replicas, recorder._rank, recorder._facts = replicas, rank, {}
        size = recorder.size(1000, batch)
        limits = recorder.limits(Limits(batch, batch, batch, replicas))
        sampler = GlobalSampler(size, starting(limits), replicas=replicas, rank=rank, seed=0, shuffle=True)
        sampler.sample_every = 2
        recorder.sampler(Lucky(), sampler)
        issued = [index for indices in sampler for index in indices]
        steps = list(iter(sampler.next_step, None))
        assert {step.total for step in steps} == {batch, size - 3 * batch}
        assert any(step.sampled for step in steps)
        seen += issued
    assert sorted(seen) == list(range(size))


def test_an_epoch_is_shortened_and_never_lengthened(tmp_path: Path) -> None:
    recorder = Recorder.__new__(Recorder)
    recorder.order, recorder._facts = wire.CheckOrder(str(tmp_path), 8, epoch_steps=4), {}
    assert recorder.size(1000, 32) == 3 * 32 + 17
    assert recorder.size(50, 32) == 50
    assert Environment().rank == 0
