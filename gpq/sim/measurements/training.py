"""How training of one application goes at each batch size: gradient noise, steps, metric, epoch by
epoch.

Between measured batch sizes everything is linear in the batch size. Outside them, and after the
last epoch, nothing is known.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpq.errors import UsageError
from gpq.sim.measurements.tables import Column, Table, read
from gpq.sim.measurements.timings import NotMeasured

COLUMNS = (
    Column("progress", least=0.0, above=True),
    Column("iteration", least=0.0, above=True),
    Column("metric"),
    Column("grad_sqr", least=0.0),
    Column("grad_var", least=0.0),
)
VALIDATION_FILE = re.compile(r"validation-([1-9][0-9]{0,9})\.csv", re.ASCII)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Run:
    """One training run at one batch size: values after 0, 1, 2... epochs, and the noise during
    epoch 0, 1, 2..."""

    progress: Floats  # base steps
    iteration: Floats
    best: Floats  # the best metric so far, before training the estimate of `_start`
    sqr: list[float]
    var: list[float]


class Training:
    """The runs in a folder. `sizes` are their batch sizes, the smallest (the base batch size)
    first."""

    def __init__(self, folder: Path, epochs: int) -> None:
        """`epochs` 0: as many as every run has."""
        self.name = folder.name
        files = _validation_files(folder)
        tables = [read(path, COLUMNS) for _, path in files]
        self.sizes = tuple(size for size, _ in files)
        self.epochs = epochs or min(map(len, tables))
        for table in tables:
            self._check(table)
        metrics = [table.numbers["metric"][: self.epochs] for table in tables]
        self.larger_is_better = bool(metrics[0][0] < metrics[0][-1])
        self.runs = [_run(table, self.epochs, self.larger_is_better) for table in tables]
        self._progress: list[float] = np.min([run.progress for run in self.runs], axis=0).tolist()
        self._goal, self._worst = self._extremes()

    def _extremes(self) -> tuple[float, float]:
        """(the best metric at the end of a run, the worst at the start of one)"""
        ends = [float(run.best[-1]) for run in self.runs]
        starts = [float(run.best[0]) for run in self.runs]
        if self.larger_is_better:
            return max(ends), min(starts)
        return min(ends), max(starts)

    def stats(self, total_batch: float, epoch: int) -> tuple[float, float]:
        """(|G|^2, tr(Cov)) of the gradient of a base batch during `epoch`, from 0."""
        self._within(epoch, 0, self.epochs - 1)
        low, high, part = self._bracket(total_batch)
        sqr = low.sqr[epoch] + part * (high.sqr[epoch] - low.sqr[epoch])
        return sqr, low.var[epoch] + part * (high.var[epoch] - low.var[epoch])

    def progress(self, epoch: int) -> float:
        """Base steps after `epoch` epochs, of the run that needs fewest."""
        self._within(epoch, 0, self.epochs)
        return self._progress[epoch]

    def iterations(self, total_batch: float, epoch: int) -> float:
        """Steps at `total_batch` that the first `epoch` epochs take."""
        self._within(epoch, 0, self.epochs)
        low, high, part = self._bracket(total_batch)
        return float(low.iteration[epoch] + part * (high.iteration[epoch] - low.iteration[epoch]))

    def metric(self, total_batch: float, epoch: int) -> tuple[float, bool]:
        """(the best metric of the first `epoch` epochs, is a larger one better?)"""
        self._within(epoch, 1, self.epochs)
        low, high, part = self._bracket(total_batch)
        return float(
            low.best[epoch] + part * (high.best[epoch] - low.best[epoch])
        ), self.larger_is_better

    def loss(self, total_batch: float, progress: float) -> float:
        """The share of the metric's way that is still ahead: 1 at the worst start, 0 at the best
        end of all runs. Linear in progress between epochs, constant after the last. It never
        grows."""
        if self._goal == self._worst:
            raise NotMeasured(
                f"the metric of {self.name} never gets better, so it has no loss curve",
                "use another policy",
            )
        low, high, part = self._bracket(total_batch)
        first = float(np.interp(progress, low.progress, low.best))
        best = first + part * (float(np.interp(progress, high.progress, high.best)) - first)
        return abs(best - self._goal) / abs(self._worst - self._goal)

    def _bracket(self, total_batch: float) -> tuple[Run, Run, float]:
        """The runs at the measured batch sizes on both sides, and how far it is from the first to
        the second."""
        sizes = self.sizes
        if not sizes[0] <= total_batch <= sizes[-1]:
            range_text = f"from {sizes[0]} to {sizes[-1]}"
            problem = f"{self.name} was not trained at a batch of {total_batch:g}"
            raise NotMeasured(problem, f"batches were measured {range_text}")
        right = bisect_left(sizes, total_batch)
        if sizes[right] == total_batch:
            return self.runs[right], self.runs[right], 0.0
        part = (total_batch - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return self.runs[right - 1], self.runs[right], part

    def _within(self, epoch: int, first: int, last: int) -> None:
        if not first <= epoch <= last:
            raise NotMeasured(
                f"{self.name} has {self.epochs} epochs, but {epoch} is outside {first} to {last}"
            )

    def _check(self, table: Table) -> None:
        if len(table) < self.epochs:
            problem = (
                f"{table.path.name} of {self.name} has {len(table)} epochs, expected {self.epochs}"
            )
            raise UsageError(problem, "complete the file, or give another application another name")
        for name in ("progress", "iteration"):
            setbacks = np.flatnonzero(np.diff(table.numbers[name]) <= 0)
            if setbacks.size:
                raise table.wrong(int(setbacks[0]) + 1, f"{name} must grow")


def _validation_files(folder: Path) -> list[tuple[int, Path]]:
    """(batch size, file), the smallest first."""
    files = sorted(
        (int(match[1]), path) for path in folder.iterdir() if (match := _validation(path))
    )
    if not files:
        raise UsageError(
            f"{folder} has no validation-BATCH.csv", "add one for each measured batch size"
        )
    return files


def _validation(path: Path) -> re.Match[str] | None:
    match = VALIDATION_FILE.fullmatch(path.name)
    if match is None and path.name.startswith("validation"):
        raise UsageError(
            f"{path.name} does not name a batch size",
            f"call {path} validation-BATCH.csv or remove it",
        )
    return match


def _run(table: Table, epochs: int, larger_is_better: bool) -> Run:
    numbers = {name: values[:epochs] for name, values in table.numbers.items()}
    best = (np.maximum if larger_is_better else np.minimum).accumulate(numbers["metric"])
    return Run(
        progress=np.concatenate(([0.0], numbers["progress"])),
        iteration=np.concatenate(([0.0], numbers["iteration"])),
        best=np.concatenate(([_start(best, larger_is_better)], best)),
        sqr=numbers["grad_sqr"].tolist(),
        var=numbers["grad_var"].tolist(),
    )


def _start(best: Floats, larger_is_better: bool) -> float:
    """The metric before training, which nobody measured. 0 for a quality (accuracy, F1, hit rate).
    For an error, as much above the first value as the second is below it."""
    if larger_is_better and best[0] >= 0:
        return 0.0
    return float(2 * best[0] - best[min(1, len(best) - 1)])
