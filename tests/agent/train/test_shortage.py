"""If a batch size that gpq chose runs out of memory, that is not the job's failure. Each attempt asks for less than the
last."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.checkpoints.store import CheckpointStore, MemoryRecord
from gpq_agent.train.data.batches import Configuration, Limits, Micro, Step
from gpq_agent.train.loop.engine import lessen
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment
from gpq_agent.train.process.shutdown import is_out_of_memory

SIXTEEN = Limits(base_batch=16, max_batch=64, max_local=64, replicas=1)


def step(*counts: int, sampled: bool = False) -> Step:
    micros = [
        Micro(place, place == len(counts) - 1, len(counts) > 1, 1.0, range(count), range(count))
        for place, count in enumerate(counts)
    ]
    return Step(0, 0, sum(counts), micros, Configuration(1, max(counts), len(counts) - 1, sum(counts)), sampled)


@pytest.fixture
def record(tmp_path: Path) -> MemoryRecord:
    CheckpointStore(str(tmp_path))
    return MemoryRecord(str(tmp_path))


@pytest.mark.parametrize(
    ("counts", "limits", "ours"),
    [
        ([16], SIXTEEN, False),
        ([32], SIXTEEN, True),
        ([8, 8], SIXTEEN, True),
        ([8, 8], SIXTEEN._replace(max_local=8), False),
        ([16], SIXTEEN._replace(replicas=2), True),
        ([8], SIXTEEN._replace(replicas=2), False),
    ],
    ids=["own", "larger", "split", "split by the script", "share of two", "own share of two"],
)
def test_gpq_knows_whether_it_chose_the_batch_size_itself(
    record: MemoryRecord, counts: list[int], limits: Limits, ours: bool
) -> None:
    shortage = lessen(record, step(*counts), limits, may_cut=True)
    assert shortage.is_ours is ours
    assert ("gpq chose this number" in shortage.line) is ours
    assert record.bound() == max(counts) * 3 // 4


def test_out_of_memory_first_ends_sampling_and_then_lowers_the_batch(record: MemoryRecord) -> None:
    assert lessen(record, step(8, 8, sampled=True), SIXTEEN, may_cut=True).is_ours
    assert (record.may_sample(), record.bound()) == (False, None)
    assert not lessen(record, step(16), SIXTEEN, may_cut=True).is_ours
    assert (record.may_sample(), record.bound()) == (False, 12)


def test_the_noise_scale_is_no_longer_measured_after_sampling_ran_out_of_memory(
    tmp_path: Path, record: MemoryRecord
) -> None:
    record.stop_sampling()
    job = Job(Environment(checkpoint_dir=str(tmp_path)), torch.device("cpu"), 0, {})
    assert job.loader(Examples(), batch_size=16, max_batch_size=64).sampler.sample_every == 0
    assert job._engine.boundaries.propose().sample_every == 0


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_failed_allocations_are_recognised(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one


def test_gpq_stops_trying_smaller_batches_in_the_end(record: MemoryRecord) -> None:
    """Each try of gpq is smaller, down to the size that the script itself asked for."""
    tried, blamed = 64, []
    while not blamed or blamed[-1]:
        blamed.append(lessen(record, step(tried), SIXTEEN, may_cut=True).is_ours)
        tried = record.bound() or 0
        assert len(blamed) < 20
    assert tried < 16


def test_a_group_of_batch_norm_is_the_least_that_gpq_tries(record: MemoryRecord) -> None:
    """A bound below it would refuse every later attempt."""
    grouped = SIXTEEN._replace(group=12)
    assert not lessen(record, step(14), grouped, may_cut=True).is_ours
    assert record.bound() == 12
    shortage = lessen(record, step(12), grouped, may_cut=True)
    assert shortage.line.endswith("12 examples at once, which batch_norm=12 keeps together. Use a smaller batch_norm")
    assert (shortage.is_ours, record.bound()) == (False, 12)


class Examples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(4)


def train(folder: Path, number: int, batch: int, most: int) -> None:
    """Run an attempt with an order for `batch` examples, on a device with room for `most`."""
    run = folder / f"run-{number}"
    run.mkdir()
    wire.write_json(str(run / wire.CONTROL), wire.Control(attempt=number, seq=1, atomic_batch=batch)._asdict())
    environment = Environment(checkpoint_dir=str(folder), run_dir=str(run), attempt=number)
    job = Job(environment, torch.device("cpu"), 0, {})
    loader = job.loader(Examples(), batch_size=16, max_batch_size=64, max_local_batch=64)
    model = torch.nn.Linear(4, 1)
    model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in job.epochs(1):
        for x in loader:
            if len(x) > most:
                raise torch.cuda.OutOfMemoryError(f"no room for {len(x)}")
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def is_excused(folder: Path, number: int, batch: int, most: int) -> bool:
    """Run an attempt that runs out of memory, and return whether it is excused."""
    before, sys.excepthook = sys.excepthook, lambda kind, error, trace: None
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            train(folder, number, batch, most)
        sys.excepthook(caught.type, caught.value, None)  # as the interpreter would
    finally:
        sys.excepthook = before
    return (folder / f"run-{number}" / wire.EXCUSED).exists()


def test_attempts_with_a_batch_size_from_gpq_are_excused_until_one_fits(tmp_path: Path) -> None:
    assert is_excused(tmp_path, 1, batch=48, most=30)
    assert is_excused(tmp_path, 2, batch=48, most=30)
    train(tmp_path, 3, batch=48, most=30)


def test_an_attempt_with_the_batch_size_of_the_script_is_not_excused(tmp_path: Path) -> None:
    assert not is_excused(tmp_path, 1, batch=16, most=10)
