"""Orders arrive through one file and facts leave through another, whether or not anybody else is there."""

import os
from pathlib import Path

import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.data.batches import Configuration
from gpq_agent.train.gradients.ddp_buckets import averages
from gpq_agent.train.process.agreement import Agreement, Proposal
from gpq_agent.train.process.channels import ControlReader, Reporter
from gpq_agent.train.process.environment import read_environment
from gpq_agent.train.process.timing import WARM_UP, StepClock, StepTimes, sums, trim


def write(folder: Path, **content: object) -> None:
    wire.write_json(str(folder / wire.CONTROL), content)


def test_only_newer_orders_for_this_attempt_take_effect(tmp_path: Path) -> None:
    write(tmp_path, attempt=2, seq=1, atomic_batch=4)
    reader = ControlReader(str(tmp_path), attempt=2)
    assert reader.read() == wire.Control(attempt=2, seq=1, atomic_batch=4), "an order from before the start counts"
    for ignored in (
        {"attempt": 1, "seq": 9, "stop": True},
        {"attempt": 3, "seq": 9, "stop": True},
        {"attempt": 2, "seq": 1, "stop": True},
        {"attempt": 2, "seq": "nine", "stop": True},
        {"attempt": 2},
    ):
        write(tmp_path, **ignored)
        assert reader.read() == wire.Control(attempt=2, seq=1, atomic_batch=4), ignored
    for broken in (b'{"attempt": 2, "seq": 1e999}', b'{"attempt": 2, "seq": 9'):
        (tmp_path / wire.CONTROL).write_bytes(broken)
        assert reader.read() == wire.Control(attempt=2, seq=1, atomic_batch=4), broken
    write(tmp_path, attempt=2, seq=3, atomic_batch=8, accum_steps=1, later="unknown to this version")
    assert reader.read() == wire.Control(2, 3, False, 8, 1)
    (tmp_path / wire.CONTROL).unlink()
    assert reader.read() == wire.Control(2, 3, False, 8, 1), "the last order stays in force"


def test_a_single_replica_agrees_at_the_pace_that_it_proposes() -> None:
    proposals = iter([Proposal(seq=1, pause=3), Proposal(seq=2, pause=1), Proposal(seq=3, pause=1)])
    agreement = Agreement(None, 0, lambda: next(proposals))
    answers = [agreement.step() for _ in range(5)]
    assert [answer.seq if answer else None for answer in answers] == [1, None, None, 2, 3]


def test_reports_survive_a_disk_that_fails_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "not yet there" / wire.REPORT
    report = Reporter(str(path), {})
    report.notice("first")
    report.send("metrics", {"step": 1, "values": {"loss": float("nan")}})
    path.parent.mkdir()
    report.notice("third")
    lines = [wire.decode(line) for line in path.read_bytes().splitlines()]
    assert [line["kind"] for line in lines] == ["notice", "metrics", "notice"]
    assert lines[1]["values"] == {"loss": None}
    assert all(line["v"] == wire.VERSION for line in lines)


def test_without_a_run_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = Reporter("", {})
    report.notice("nobody is there")
    assert not report.active
    assert os.listdir(tmp_path) == []


def test_outliers_are_left_out_of_the_sums() -> None:
    steady = [0.10, 0.11, 0.10, 0.09, 0.10, 0.10, 0.11]
    assert trim([*steady, 2.5]) == steady
    assert sums([0.5, 0.5]) == (2, 1.0)
    assert sums([]) == (0, 0.0)
    assert trim([1.0, 1.0, 1.0, 1.0, 1.05]) == [1.0, 1.0, 1.0, 1.0, 1.05], "five per cent is not an outlier"


class Events(StepClock):
    """As on a GPU: a mark is an object, and the time when it was reached becomes known later."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.reached: list[float] = []
        self.known = 0
        self.mark = lambda: len(self.reached) - 1

    def ready(self, mark: int) -> bool:
        return mark < self.known

    def seconds(self, begin: int, end: int) -> float:
        return self.reached[end] - self.reached[begin]


def test_times_are_summed_when_their_events_are_reached_without_the_waits() -> None:
    clock = Events()
    times = StepTimes(clock)
    tails: list[bool | None] = [True] * (WARM_UP + 1) + [True, None, False]
    for number, tail in enumerate(tails):
        times.begin(Configuration(1, 8, 0, 16), first=True, usable=True)
        marks = []
        for moment in (0.0, 6.0, 8.0, 10.0):  # fetched, last gradient, synchronised, done
            clock.reached.append(100.0 * number + moment)
            marks.append(clock.mark())
            if moment == 0.0:
                times.start()
        waited = (marks[1], marks[2]) if tail else ()
        times.end(synchronised=True, tail=None if tail is None else waited)
    assert times.flush() == []
    clock.known = len(clock.reached)
    [(key, gradients, steps)] = times.flush()
    assert key == (8, 0)
    assert (steps.number, steps.total) == (4, 40.0)
    assert (gradients.number, gradients.total) == (3, 8.0 + 8.0 + 10.0)
    assert times.flush() == []


@pytest.mark.parametrize(
    ("backend", "device", "can"),
    [
        ("nccl", "cuda", True),
        ("cpu:gloo,cuda:nccl", "cuda", True),
        ("cpu:gloo,cuda:nccl", "cpu", False),
        ("gloo", "cuda", False),
        ("cpu:gloo,cuda:gloo", "cuda", False),
    ],
)
def test_nccl_averages_gradients_that_it_handles(backend: str, device: str, can: bool) -> None:
    assert averages(backend, device) == can


def test_the_environments_of_torchrun_and_gpq_are_read() -> None:
    assert read_environment({}) == read_environment({"WORLD_SIZE": "4"}), (
        "an incomplete launcher environment counts as none"
    )
    environment = read_environment(
        {
            "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1",
            wire.ENV_CORES: "0,1;2,3", wire.ENV_ATTEMPT: "7", wire.ENV_RESUME: "1", wire.ENV_RUN_DIR: "/run/7",
        }
    )  # fmt: skip
    assert (environment.rank, environment.replicas, environment.nodes, environment.cores) == (3, 4, 2, [2, 3])
    assert (environment.attempt, environment.resumed, environment.run_dir) == (7, True, "/run/7")
