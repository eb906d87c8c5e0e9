"""The truth of a simulation: public measurements of real applications, read from a folder. Invents
no number.

Layouts: that of the Pollux artifact (OSDI'21) and that of the Sia artifact (SOSP'23), which adds a
type to file names.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpq.core.model.units import Seconds
from gpq.errors import UsageError
from gpq.lab.measurements.tables import Column, Table, read
from gpq.lab.measurements.timings import Counts, NotMeasured, StepTimes

Floats = NDArray[np.float64]
# Not in the data, but in the artifacts' tables of applications: passes over the data to the final
# quality.
EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50}
FIXED_BATCH = {"ncf": 32768}  # OSDI'21: ncf has this batch size under every policy
MOST_REPLICAS = {"ncf": 1}
# By application and the type in the file's name: atomic batches that were measured but are not
# used.
MOST_ATOMIC = {("yolov3", ""): 8, ("deepspeech2", "rtx"): 57}
# What people call the types that the Sia artifact's file names mean.
FILE_TYPES = {"t4": "aws", "a100": "dgx-ext", "v100": "azure", "2080ti": "rtx", "rtx6000": "quad"}
OSDI_TYPE = "t4"  # for measurements without a type
PLAIN_NAMES = {"aws": "t4", "dgx-ext": "a100", "azure": "v100"}
PLACEMENTS_FILE = re.compile(r"placements(?:-(.+))?\.csv")
VALIDATION_FILE = re.compile(r"validation-([1-9][0-9]{0,9})\.csv", re.ASCII)
COLUMNS = (
    Column("progress", least=0.0, above=True),
    Column("iteration", least=0.0, above=True),
    Column("metric"),
    Column("grad_sqr", least=0.0),
    Column("grad_var", least=0.0),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One training run at one batch size: values after 0, 1, 2... epochs, and the noise during
    epoch 0, 1, 2..."""

    progress: Floats  # base steps
    iteration: Floats
    best: Floats  # the best metric so far, before training an estimate
    sqr: list[float]
    var: list[float]


class Training:
    """How training of one application goes at each batch size: gradient noise, steps, metric, epoch
    by epoch. `sizes` are the batch sizes of its runs, the smallest (the base batch size) first.

    Between measured batch sizes everything is linear in the batch size. Outside them, and after the
    last epoch, nothing is known.
    """

    def __init__(self, folder: Path, epochs: int) -> None:
        """`epochs` 0: as many as every run has."""
        self.name = folder.name
        files = _validation_files(folder)
        tables = [read(path, COLUMNS) for _, path in files]
        self.sizes = tuple(size for size, _ in files)
        self.epochs = epochs or min(map(len, tables))
        for table in tables:
            if len(table) < self.epochs:
                raise UsageError(
                    f"{table.path.name} of {self.name} has {len(table)} epochs, expected"
                    f" {self.epochs}",
                    "complete the file, or give another application another name",
                )
            for name in ("progress", "iteration"):
                setbacks = np.flatnonzero(np.diff(table.numbers[name]) <= 0)
                if setbacks.size:
                    raise table.wrong(int(setbacks[0]) + 1, f"{name} must grow")
        metrics = [table.numbers["metric"][: self.epochs] for table in tables]
        self.larger_is_better = bool(metrics[0][0] < metrics[0][-1])
        self.runs = [_run(table, self.epochs, self.larger_is_better) for table in tables]
        self._progress: list[float] = np.min([run.progress for run in self.runs], axis=0).tolist()
        # the best metric at the end of a run, the worst at the start of one
        ends = [float(run.best[-1]) for run in self.runs]
        starts = [float(run.best[0]) for run in self.runs]
        self._goal, self._worst = min(ends), max(starts)
        if self.larger_is_better:
            self._goal, self._worst = max(ends), min(starts)

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


class Application(Training):
    """What one application really does: how its training goes, and how long its steps take. Batch
    sizes are in examples: `atomic` on one GPU in one pass, `total` in a whole step.

    `types` are the GPU types of its files, () if they name none. Epochs count from 0 while they
    run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        matches = (PLACEMENTS_FILE.fullmatch(path.name) for path in folder.iterdir())
        self._files = sorted(match[1] or "" for match in matches if match)
        self.types = tuple(sorted(PLAIN_NAMES.get(kind, kind) for kind in self._files if kind))
        super().__init__(folder, EPOCHS.get(folder.name, 0))
        self.base_batch, self.max_batch = self.sizes[0], self.sizes[-1]
        self.work = self.progress(self.epochs)  # base steps
        self.fixed_batch = FIXED_BATCH.get(self.name, 0)
        self.most_replicas = MOST_REPLICAS.get(self.name, 0)
        self._resolved: dict[str, StepTimes] = {}
        self._by_file: dict[str, StepTimes] = {}
        kinds = [""] if "" in self._files else self._files
        least, most = zip(*map(self.limits, kinds), strict=True)
        self.min_atomic, self.max_atomic = min(least), max(most)  # on any type
        if self.fixed_batch and not self.base_batch <= self.fixed_batch <= self.max_batch:
            problem = (
                f"{self.name} runs at a batch size of {self.fixed_batch}, but was measured up to"
                f" {self.max_batch}"
            )
            hint = f"give another application in {self.folder.parent} another name"
            raise UsageError(problem, hint)

    def times(self, counts: Counts, atomic: float, gpu_type: str = "") -> tuple[Seconds, Seconds]:
        """(step, synchronisation within it) of one pass over `atomic` examples on each of `counts`
        GPUs by node."""
        return self._times(gpu_type).times(counts, atomic)

    def measured(self, counts: Counts, gpu_type: str = "") -> tuple[int, int]:
        """The smallest and largest micro-batch for which `times` has an answer on these GPUs,
        within the limits."""
        low, high = self._times(gpu_type).measured(counts)
        smallest, largest = self.limits(gpu_type)
        return max(low, smallest), min(high, largest)

    def limits(self, gpu_type: str = "") -> tuple[int, int]:
        """The smallest and the largest micro-batch on this type, which its memory limits."""
        times = self._times(gpu_type)
        most = MOST_ATOMIC.get((self.name, self._file_type(gpu_type)))
        largest = int(times.largest)
        if most is not None:
            largest = min(largest, most)
        return -int(-times.smallest // 1), largest

    def with_batch(self, batch: int) -> Application:
        """The same application, trained with one batch size under every policy (categories
        `scale-gpus` and `rigid`)."""
        twin = copy(self)
        twin.fixed_batch = batch
        return twin

    def share(self, parts: int) -> Application:
        """One of `parts` equal shares of this work: as many epochs, each with so many times fewer
        steps."""
        twin = copy(self)
        twin.runs = [
            replace(run, progress=run.progress / parts, iteration=run.iteration / parts)
            for run in self.runs
        ]
        twin._progress = [steps / parts for steps in self._progress]
        twin.work = self.work / parts
        return twin

    def _times(self, gpu_type: str) -> StepTimes:
        times = self._resolved.get(gpu_type)
        if times is None:
            kind = self._file_type(gpu_type)
            if kind not in self._by_file:
                name, suffix = self.name, ""
                if kind:
                    name, suffix = f"{self.name} on {PLAIN_NAMES.get(kind, kind)}", f"-{kind}"
                placements = self.folder / f"placements{suffix}.csv"
                scalability = self.folder / f"scalability{suffix}.csv"
                self._by_file[kind] = StepTimes(name, placements, scalability)
            times = self._resolved[gpu_type] = self._by_file[kind]
        return times

    def _file_type(self, gpu_type: str) -> str:
        """The type in the file name that matches the user's name for it."""
        type_name = gpu_type.lower()
        for kind in (type_name, FILE_TYPES.get(type_name, type_name)):
            if kind in self._files:
                return kind
        if type_name == OSDI_TYPE and "" in self._files:
            return ""
        content = ", ".join(self.types) or "measurements without a type"
        problem = "no measurements without a GPU type"
        if gpu_type:
            problem = f"no measurements on GPU type {gpu_type}"
        raise UsageError(f"{self.name} has {problem}", f"{self.folder} has {content}")


class Traces:
    """A folder of applications. Each is read at its first use."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UsageError(
                f"no folder {folder}",
                "give a folder that has one folder of measurements for each application",
            )
        files = self.folder.glob("*/placements*.csv")
        names = {path.parent.name for path in files if PLACEMENTS_FILE.fullmatch(path.name)}
        self.names = tuple(sorted(names))
        if not self.names:
            raise UsageError(
                f"{folder} has no measurements",
                "each application is a folder with a placements.csv",
            )
        self._loaded: dict[str, Application] = {}

    def application(self, name: str) -> Application:
        if name not in self.names:
            raise UsageError(
                f"there are no measurements of application {name}",
                f"there are {', '.join(self.names)}",
            )
        if name not in self._loaded:
            self._loaded[name] = Application(self.folder / name)
        return self._loaded[name]


def _validation_files(folder: Path) -> list[tuple[int, Path]]:
    """(batch size, file), the smallest first."""
    files = []
    for path in folder.iterdir():
        match = VALIDATION_FILE.fullmatch(path.name)
        if match is not None:
            files.append((int(match[1]), path))
        elif path.name.startswith("validation"):
            raise UsageError(
                f"{path.name} does not name a batch size",
                f"call {path} validation-BATCH.csv or remove it",
            )
    if not files:
        raise UsageError(
            f"{folder} has no validation-BATCH.csv", "add one for each measured batch size"
        )
    return sorted(files)


def _run(table: Table, epochs: int, larger_is_better: bool) -> Run:
    numbers = {name: values[:epochs] for name, values in table.numbers.items()}
    best = (np.maximum if larger_is_better else np.minimum).accumulate(numbers["metric"])
    # Nobody measured the metric before training. It is 0 for a quality (accuracy, F1, hit rate).
    # An error is as much above the first value as the second is below it.
    start = float(2 * best[0] - best[min(1, len(best) - 1)])
    if larger_is_better and best[0] >= 0:
        start = 0.0
    return Run(
        progress=np.concatenate(([0.0], numbers["progress"])),
        iteration=np.concatenate(([0.0], numbers["iteration"])),
        best=np.concatenate(([start], best)),
        sqr=numbers["grad_sqr"].tolist(),
        var=numbers["grad_var"].tolist(),
    )
