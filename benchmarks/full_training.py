"""Whole trainings whose batch grows 4, 8 and 16 times, next to the same script in plain PyTorch.

    python benchmarks/full_training.py    # exits with 1 if a schedule does not end at its last
                                          # step, or an accuracy differs by more than BAR

    python benchmarks/full_training.py --passes --growths 16    # job.epochs(n, passes=True)

Each training reads the digits of scikit-learn, with SGD or AdamW, and with one of three schedules.
With gpq it starts on one replica at the base batch. The batch then grows in two steps, without a
restart. Then the job stops and goes on with two replicas, and later with one that accumulates.
Five seeds each.

The process of rank 0 writes the orders, in the file that the agent would write. A training takes
seconds here, so gpq looks for orders in every step.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # for the replicas
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from gpq_agent import wire  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from tests.support.ports import free_port  # noqa: E402

EXAMPLES, BATCH, EPOCHS = 1000, 8, 16
STEPS = EPOCHS * EXAMPLES // BATCH
GROWTHS = (4, 8, 16)
RATES = {"SGD": 0.02, "AdamW": 0.002}
SCHEDULES = ("cosine", "OneCycle", "per epoch")
SEEDS = 5
# Standard deviations of a seed between two means. Of 18 differences of means of five seeds, chance
# takes one beyond this in one table of twenty.
BAR = 2.2


@dataclass(frozen=True)
class Case:
    optimizer: str
    schedule: str
    seed: int
    growth: int = 0  # 0: without gpq
    passes: bool = False  # an epoch is a pass over the data


@dataclass(frozen=True)
class Order:
    """One order, given once so much of the training is done."""

    fraction: float
    atomic_batch: int = 0
    accum_steps: int = 0
    stop: bool = False


@dataclass(frozen=True)
class Result:
    """What a training was at its end. Batches and passes are of gpq alone."""

    accuracy: float
    last_epoch: int  # of the schedule
    evaluations: int
    steps: int
    passes: int = EPOCHS
    exact_passes: int = EPOCHS
    largest_batch: int = BATCH


def data() -> tuple[TensorDataset, tuple[torch.Tensor, torch.Tensor]]:
    """The training data, and what is held out."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
    labels = torch.tensor(digits.target)[order]
    training = TensorDataset(images[:EXAMPLES], labels[:EXAMPLES])
    return training, (images[EXAMPLES:], labels[EXAMPLES:])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def optimizer_of(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    rate = RATES[case.optimizer]
    if case.optimizer == "SGD":
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=rate)


def schedule_of(case: Case, optimizer: torch.optim.Optimizer) -> Any:
    if case.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    if case.schedule == "OneCycle":
        most = 2 * RATES[case.optimizer]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=most, total_steps=STEPS)
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=EPOCHS // 3, gamma=0.2)


@torch.no_grad()
def accuracy(model: nn.Module, held_out: tuple[torch.Tensor, torch.Tensor]) -> float:
    images, labels = held_out
    return float((model(images).argmax(1) == labels).float().mean())


def train_alone(case: Case) -> Result:
    """The script without gpq."""
    torch.set_num_threads(1)
    torch.manual_seed(case.seed)
    training, held_out = data()
    loader = DataLoader(training, batch_size=BATCH, shuffle=True)
    model = network()
    optimizer = optimizer_of(case, model)
    schedule = schedule_of(case, optimizer)
    scores = []
    for _ in range(EPOCHS):
        for images, labels in loader:
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if case.schedule != "per epoch":
                schedule.step()
        if case.schedule == "per epoch":
            schedule.step()
        scores.append(accuracy(model, held_out))
    return Result(scores[-1], schedule.last_epoch, len(scores), EPOCHS * len(loader))


def train_with_gpq(case: Case, orders: Sequence[Order], out: Path) -> None:
    """The same script with gpq, in one replica of one attempt."""
    import gpq_agent.train as gpq
    from gpq_agent.train.loop import boundary

    boundary.AGREE_SECONDS = 0.0
    torch.set_num_threads(1)
    job = gpq.init(seed=case.seed)
    training, held_out = data()
    most = BATCH * case.growth
    loader = job.loader(training, batch_size=BATCH, max_batch_size=most, max_local_batch=most)
    plain = network()
    model = job.wrap(plain)
    optimizer = optimizer_of(case, model)
    schedule = schedule_of(case, optimizer)
    model, optimizer, schedule = job.prepare(model, optimizer, schedule)
    for _ in job.epochs(EPOCHS, passes=case.passes):
        for images, labels in loader:
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if case.schedule != "per epoch":
                schedule.step()
            if job.rank == 0 and orders and job.progress.fraction >= orders[0].fraction:
                give(orders[0], Path(os.environ[wire.ENV_RUN_DIR]), job.attempt)
                orders = orders[1:]
        if case.schedule == "per epoch":
            schedule.step()
        if job.rank == 0:
            with (out / "evaluations").open("a") as rows:
                row = accuracy(plain, held_out), schedule.last_epoch, job.progress.step
                rows.write(json.dumps(row) + "\n")


def give(order: Order, folder: Path, attempt: int) -> None:
    """Write an order for this attempt. They are numbered by what they say."""
    number = 1 + round(100 * order.fraction)
    control = wire.Control(attempt, number, order.stop, order.atomic_batch, order.accum_steps)
    wire.write_json(str(folder / wire.CONTROL), control._asdict())


def replica(environment: dict[str, str], case: Case, orders: Sequence[Order], out: Path) -> None:
    """The main function of a forked process."""
    os.environ.update(environment)
    train_with_gpq(case, orders, out)


def attempts(growth: int) -> list[tuple[int, list[Order]]]:
    """(replicas, orders) of each. An order at 0 is there from its start."""
    most = BATCH * growth
    return [
        (1, [Order(0.05, most // 2), Order(0.15, most), Order(0.35, stop=True)]),
        (2, [Order(0.0, most // 2), Order(0.6, stop=True)]),
        (1, [Order(0.0, most // 2, accum_steps=1)]),
    ]


def run_with_gpq(case: Case, folder: Path) -> Result:
    """All attempts of one job."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "gpq_agent.train", "sklearn.datasets"])
    reports: list[dict[str, Any]] = []
    replicas_of_reports: list[int] = []
    for number, (replicas, orders) in enumerate(attempts(case.growth), start=1):
        run = folder / str(number)
        run.mkdir()
        if orders[0].fraction == 0.0:
            give(orders.pop(0), run, number)
        environment = {
            wire.ENV_RUN_DIR: str(run),
            wire.ENV_CHECKPOINT_DIR: str(folder / "checkpoints"),
            wire.ENV_ATTEMPT: str(number),
            "WORLD_SIZE": str(replicas),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        processes = []
        for rank in range(replicas):
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(context.Process(target=replica, args=(own, case, orders, folder)))
            processes[-1].start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"attempt {number} of {case} failed")
        lines = (run / wire.REPORT).read_bytes().splitlines(keepends=True)
        reports += map(wire.decode, lines)
        replicas_of_reports += [replicas] * len(lines)
    rows = [json.loads(row) for row in (folder / "evaluations").read_text().splitlines()]
    values: dict[str, float] = {}
    for report in reports:
        if report["kind"] == "metrics":
            values.update(report["values"])
    batches = [
        replicas * report["atomic_batch"] * (report["accum_steps"] + 1)
        for replicas, report in zip(replicas_of_reports, reports, strict=True)
        if report["kind"] == "retuned"
    ]
    score, last_epoch, steps = rows[-1]
    passes, exact = int(values["gpq_passes"]), int(values["gpq_passes_exact"])
    return Result(score, last_epoch, len(rows), steps, passes, exact, max(batches))


def run(case: Case) -> Result:
    if not case.growth:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(train_alone, (case,))
    with tempfile.TemporaryDirectory() as folder:
        return run_with_gpq(case, Path(folder))


def run_all(cases: Sequence[Case], kept: Path | None, jobs: int) -> dict[Case, Result]:
    """The results by case. `kept`: those that are in this file are not measured again."""
    results: dict[Case, Result] = {}
    if kept is not None and kept.exists():
        for line in kept.read_text().splitlines():
            case, result = json.loads(line)
            results[Case(**case)] = Result(**result)
    missing = [case for case in cases if case not in results]
    with ThreadPoolExecutor(jobs) as pool:
        for case, result in zip(missing, pool.map(run, missing), strict=True):
            results[case] = result
            print(case, result, file=sys.stderr, flush=True)
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps([asdict(case), asdict(result)]) + "\n")
    return {case: results[case] for case in cases}


def cells_of(results: Mapping[Case, Result]) -> dict[tuple[str, str, int], list[Result]]:
    """The results of all seeds, by optimizer, schedule and growth."""
    cells: dict[tuple[str, str, int], list[Result]] = {}
    for case, result in results.items():
        cells.setdefault((case.optimizer, case.schedule, case.growth), []).append(result)
    return cells


def table(results: Mapping[Case, Result]) -> tuple[list[str], bool]:
    """Lines of Markdown, and whether all is as it should be."""
    lines = [
        "| optimizer | schedule | batch | schedule ended at | optimizer steps | passes "
        "| accuracy alone | with gpq | difference, in sd of a seed |",
        "|---" * 9 + "|",
    ]
    good, cells = True, cells_of(results)
    for (optimizer, schedule, growth), cell in cells.items():
        if not growth:
            continue
        alone = [result.accuracy for result in cells[optimizer, schedule, 0]]
        own = [result.accuracy for result in cell]
        difference = statistics.mean(own) - statistics.mean(alone)
        deviation = deviation_of(cells, optimizer, schedule)
        end = EPOCHS if schedule == "per epoch" else STEPS
        ends = sorted({result.last_epoch for result in cell})
        good &= ends == [end] and abs(difference) <= BAR * deviation
        good &= all(
            result.evaluations == EPOCHS
            and result.passes == result.exact_passes
            and result.largest_batch == growth * BATCH
            for result in cell
        )
        lines.append(
            f"| {optimizer} | {schedule} | x {growth} | {', '.join(map(str, ends))} of {end} "
            f"| {statistics.mean(result.steps for result in cell):.0f} of {STEPS} "
            f"| {statistics.mean(result.passes for result in cell):.1f} "
            f"| {spread(alone)} | {spread(own)} | {difference / deviation:+.1f} |"
        )
    return lines, good


def deviation_of(
    cells: Mapping[tuple[str, str, int], list[Result]], optimizer: str, schedule: str
) -> float:
    """The standard deviation of one seed, from all cells of this script."""
    variances = [
        statistics.variance(result.accuracy for result in cell)
        for (name, kind, _), cell in cells.items()
        if (name, kind) == (optimizer, schedule)
    ]
    return float(statistics.mean(variances) ** 0.5)


def spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2%} +- {statistics.stdev(values):.2%}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", action="store_true", help="count passes over the data")
    parser.add_argument("--growths", type=int, nargs="+", default=list(GROWTHS))
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--keep", type=Path, help="file of results, to go on from")
    options = parser.parse_args()
    cases = [
        Case(optimizer, schedule, seed, growth, options.passes and growth > 0)
        for seed, growth in product(range(SEEDS), (0, *options.growths))
        for optimizer, schedule in product(RATES, SCHEDULES)
    ]
    lines, good = table(run_all(cases, options.keep, options.jobs))
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
