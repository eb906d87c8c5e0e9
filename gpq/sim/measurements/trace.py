"""The truth of a simulation: public measurements of real applications, read from a folder. Invents
no number.

Layouts: that of the Pollux artifact (OSDI'21) and that of the Sia artifact (SOSP'23), which adds a
type to file names.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpq.core.model.units import Seconds
from gpq.errors import UsageError
from gpq.sim.measurements.timings import Counts, StepTimes
from gpq.sim.measurements.training import Training

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


class Application:
    """What one application really does. Batch sizes are in examples: `atomic` on one GPU in one
    pass, `total` in a whole step.

    `types` are the GPU types of its files, () if they name none. Epochs count from 0 while they
    run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name
        matches = (PLACEMENTS_FILE.fullmatch(path.name) for path in folder.iterdir())
        self._files = sorted(match[1] or "" for match in matches if match)
        self.types = tuple(sorted(PLAIN_NAMES.get(kind, kind) for kind in self._files if kind))
        self.training = Training(folder, EPOCHS.get(self.name, 0))
        self.base_batch, self.max_batch = self.training.sizes[0], self.training.sizes[-1]
        self.epochs = self.training.epochs
        self.work = self.training.progress(self.epochs)  # base steps
        self.fixed_batch = FIXED_BATCH.get(self.name, 0)
        self.most_replicas = MOST_REPLICAS.get(self.name, 0)
        self._resolved: dict[str, StepTimes] = {}
        self._by_file: dict[str, StepTimes] = {}
        self.min_atomic, self.max_atomic = self._widest_limits()
        self._check_fixed_batch()

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

    def stats(self, total_batch: float, epoch: int) -> tuple[float, float]:
        """(|G|^2, tr(Cov)) of the gradient of a base batch during `epoch`, trained at
        `total_batch`."""
        return self.training.stats(total_batch, epoch)

    def progress(self, epoch: int) -> float:
        """Base steps after `epoch` epochs."""
        return self.training.progress(epoch)

    def iterations(self, total_batch: float, epoch: int) -> float:
        """Steps at `total_batch` that `epoch` epochs take."""
        return self.training.iterations(total_batch, epoch)

    def metric(self, total_batch: float, epoch: int) -> tuple[float, bool]:
        """(the best validation metric of the first `epoch` epochs, is a larger one better?)"""
        return self.training.metric(total_batch, epoch)

    def loss(self, total_batch: float, progress: float) -> float:
        """From 1 down to about 0: how far the metric still is from its best after `progress` base
        steps."""
        return self.training.loss(total_batch, progress)

    def _widest_limits(self) -> tuple[int, int]:
        """The smallest and the largest micro-batch on any type."""
        kinds = self._files
        if "" in kinds:
            kinds = [""]
        bounds = [self.limits(kind) for kind in kinds]
        return min(low for low, _ in bounds), max(high for _, high in bounds)

    def _check_fixed_batch(self) -> None:
        if self.fixed_batch and not self.base_batch <= self.fixed_batch <= self.max_batch:
            problem = (
                f"{self.name} runs at a batch size of {self.fixed_batch}, but was measured up to"
                f" {self.max_batch}"
            )
            hint = f"give another application in {self.folder.parent} another name"
            raise UsageError(problem, hint)

    def _times(self, gpu_type: str) -> StepTimes:
        times = self._resolved.get(gpu_type)
        if times is None:
            kind = self._file_type(gpu_type)
            if kind not in self._by_file:
                self._by_file[kind] = self._read_times(kind)
            times = self._resolved[gpu_type] = self._by_file[kind]
        return times

    def _read_times(self, kind: str) -> StepTimes:
        """`kind`: the type in the file names, "" if they have none."""
        name, suffix = self.name, ""
        if kind:
            name, suffix = f"{self.name} on {PLAIN_NAMES.get(kind, kind)}", f"-{kind}"
        placements = self.folder / f"placements{suffix}.csv"
        return StepTimes(name, placements, self.folder / f"scalability{suffix}.csv")

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
        self.names = tuple(
            sorted(
                path.name
                for path in self.folder.iterdir()
                if path.is_dir()
                and any(PLACEMENTS_FILE.fullmatch(file.name) for file in path.iterdir())
            )
        )
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
