"""A restarted script trains on the same data as before. Otherwise it trains nothing and says why."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from gpq_agent.train.data.fingerprint import Fingerprint, likeness
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.process.agreement import Agreement, Proposal
from gpq_agent.train.process.rng import script_seed, seed_all

from .driver import DEADLINE, TrainingJob
from .test_launch import environment

Make = Callable[..., TrainingJob]


def refusals(job: TrainingJob) -> list[str]:
    return [path.read_text() for path in sorted(job.out.glob("refused.*"))]


@pytest.mark.parametrize("data", ["split", "chosen", "labelled"])
def test_different_data_after_a_restart_stops_the_job_before_a_step(training: Make, data: str) -> None:
    job = training(data=data, pace=0.02)
    job.start(1, brake=4).after_micros(3).stop()
    assert job.start(1).wait() == [1]
    (line,) = refusals(job)
    assert line.startswith("the training data has changed since the previous attempt: ")
    assert job.attempts[1].micros() == []


def test_different_data_on_two_replicas_stops_both_before_a_step(training: Make) -> None:
    job = training(data="chosen")
    assert job.start(2).wait() == [1, 1]
    lines = refusals(job)
    assert len(lines) == 2
    assert all(line.startswith("replica 1 has different training data from replica 0: ") for line in lines)
    assert not any(job.attempts[0].micros(rank) for rank in (0, 1))


def test_a_deliberate_change_of_the_data_is_allowed(training: Make) -> None:
    job = training(data="split", pace=0.02, options={"data_may_change": True})
    job.start(1, brake=4).after_micros(3).stop()
    job.run(1)


@pytest.mark.parametrize(("data", "notices"), [("rounded", 0), ("flipped", 0), ("jittered", 1)])
def test_random_or_rounded_data_does_not_count_as_different(training: Make, data: str, notices: int) -> None:
    """`flipped` draws from the global generators. `jittered` draws from its own, which nobody can seed."""
    job = training(data=data, pace=0.02)
    job.start(1, brake=4).after_micros(3).stop()
    resumed = job.run(2)
    lines = [line for line in resumed.reports("notice") if "gpq cannot compare" in json.dumps(line)]
    assert len(lines) == notices


def test_the_comparison_draws_from_no_generator_and_reads_where_training_reads(training: Make) -> None:
    job = training(data="flipped", size=64, epochs=1, options={"num_workers": 1})
    job.run(1)
    finished = json.loads((job.out / "finished.1.0").read_text())
    assert finished["reads"] == 0

    drawn = []
    for compares in (False, True):
        seed_all(5)
        if compares:
            kept, lines = compared(Readable(lambda _: random.random() + float(torch.rand(1)) + numpy.random.rand()))
            assert (len(kept.examples), lines) == (9, [])
        drawn.append((float(torch.rand(1)), float(numpy.random.rand()), random.random()))
    assert drawn[0] == drawn[1]


def test_a_worker_is_prepared_as_the_script_says_before_it_reads() -> None:
    opened: list[int] = []
    data = Readable(lambda index: opened[0] + index)
    kept, lines = compared(data, num_workers=2, worker_init_fn=opened.append)
    assert (len(kept.examples), lines, opened) == (9, [], [])


def test_a_generator_of_the_datas_own_that_the_comparison_moves_on_is_told() -> None:
    own = torch.Generator().manual_seed(0)
    before = own.get_state()
    for workers, is_moved in ((1, False), (0, True)):
        _, lines = compared(Readable(lambda _: torch.rand(1, generator=own)), num_workers=workers)
        (line,) = lines
        assert ("has moved their own generator on" in line) == is_moved
        assert torch.equal(own.get_state(), before) != is_moved


SPLIT = """
import sys
import torch
from torch.utils.data import TensorDataset, random_split
FIRST
train, held = random_split(TensorDataset(torch.arange(64.0).reshape(64, 1)), [48, 16])
import gpq_agent.train as gpq
job = gpq.init(checkpoint_dir=sys.argv[1])
loader = job.loader(train, batch_size=16)
model = job.wrap(torch.nn.Linear(1, 1))
model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in job.epochs(int(sys.argv[2])):
    for (x,) in loader:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print(sorted(held.indices))
"""


def run_split(folder: Path, first: str, epochs: int) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", SPLIT.replace("FIRST", first), str(folder), str(epochs)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=DEADLINE, check=False)


def test_a_split_before_init_is_the_same_after_the_import_and_refused_at_the_first_start_before_it(
    tmp_path: Path,
) -> None:
    refused = run_split(tmp_path, "", 1)
    assert refused.returncode == 1
    assert "GpqTrainError: the indices of a Subset were drawn without a seed, before gpq_agent.train" in refused.stderr
    first, again = (run_split(tmp_path, "import gpq_agent.train", epochs) for epochs in (1, 2))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert first.stdout == again.stdout
    seeded = run_split(tmp_path / "seeded", "torch.manual_seed(3)", 1)
    assert seeded.returncode == 0, seeded.stderr
    assert seeded.stdout != first.stdout


class Readable(torch.utils.data.Dataset[Any]):
    def __init__(self, read: Callable[[int], Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


def compared(data: Any, state: dict[str, Any] | None = None, **options: Any) -> tuple[Fingerprint, list[str]]:
    """Compare with `state` if it is given. Also returns the lines that the user sees."""
    lines: list[str] = []
    fingerprint = Fingerprint(data, len(data), options)
    fingerprint.compare(Agreement(None, 0, Proposal), lines.append)
    if state is not None:
        fingerprint.load_state_dict(state)
    return fingerprint, lines


def crash(index: int) -> Any:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def fail(index: int) -> Any:
    raise KeyError(index)


@pytest.mark.parametrize(
    ("read", "workers", "reason"),
    [(fail, 0, "(KeyError: 0)"), (fail, 1, "(KeyError: 0)"), (crash, 1, "(RuntimeError: DataLoader worker")],
)
def test_an_unreadable_data_set_gives_a_notice_instead_of_a_comparison(
    read: Callable[[int], Any], workers: int, reason: str
) -> None:
    _, lines = compared(Readable(read), num_workers=workers)
    (line,) = lines
    assert line.startswith("gpq cannot compare 9 of 9 examples with those of the next attempt (")
    assert reason in line


class Record:
    """An example of a user's class, with contents that differ in each process."""

    def __init__(self, value: Any) -> None:
        self.value, self.lock, self.itself, self.path = value, object(), self, Path("/run/attempt-1/a.png")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (0.5, 0.6),
        ("cat", "dog"),
        (b"x", b"y"),
        ([1, 2, 3], [3, 2, 1]),
        ({"x": 1.0, "y": 3}, {"x": 1.0, "y": 4}),
        (torch.tensor(100_000), torch.tensor(100_001)),
        (torch.tensor(200, dtype=torch.uint8), torch.tensor(201, dtype=torch.uint8)),
        (numpy.int64(7), numpy.int64(8)),
        (numpy.array(["a", "b"]), numpy.array(["b", "a"])),
        (numpy.array([1, "a"], dtype=object), numpy.array([1, "b"], dtype=object)),
        (torch.eye(3), torch.eye(3).tril() * 1.01),
        (torch.eye(3).to_sparse(), 2 * torch.eye(3).to_sparse()),
        ((torch.ones(3), [{"label": {1, 2}}]), (torch.ones(3), [{"label": {1, 3}}])),
        (Record(1), Record(2)),
    ],
)
def test_different_examples_have_different_fingerprints(one: Any, other: Any) -> None:
    assert likeness(one).resembles(likeness(one))
    assert not likeness(one).resembles(likeness(other))


def test_differences_between_processes_do_not_count() -> None:
    one, other = Record(torch.ones(3)), Record(torch.ones(3) * (1 + 1e-6))
    other.path = Path("/run/attempt-2/a.png")
    assert likeness(one).resembles(likeness(other))


def test_the_indices_of_a_subset_are_compared_one_by_one() -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(1000, 1))  # all examples are equal
    places = list(range(900))
    kept, _ = compared(torch.utils.data.Subset(data, places))
    with pytest.raises(GpqTrainError, match="the indices of its Subset differ"):
        compared(torch.utils.data.Subset(data, [*places[:-1], 999]), kept.state_dict())


def test_all_generators_get_the_same_seed_each_time() -> None:
    drawn = []
    for _ in range(2):
        seed_all(7)
        drawn.append((float(torch.rand(1)), float(numpy.random.rand()), random.random()))
    assert drawn[0] == drawn[1]


def test_a_seed_from_the_script_is_kept() -> None:
    torch.manual_seed(3)
    assert script_seed() == 3
    torch.seed()  # not given by the script
    assert script_seed() == 0
