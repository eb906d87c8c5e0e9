"""Checks that every replica and every attempt trains on the same data.

A script starts again at any time, and on several replicas. A split drawn without a seed, or labels
in the order of a listing, differ every time. So the checkpoint keeps a few examples, which are
compared before the first step. This module decides what is compared and how it is read.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import time
import warnings
from typing import Any, Callable, Dict, List, NoReturn, Optional

import torch
from torch.utils.data import Subset

from gpq_agent.train.data.likeness import Likeness, likeness
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.runtime.agreement import Agreement
from gpq_agent.train.runtime.rng import is_unseeded, reseed, stable_seed

DRAWS = 8  # examples to compare, in addition to the first and the last
READING_SECONDS = 10.0  # seconds after which no other example is read
PATIENCE = 30.0  # seconds for a reader whose data set hangs
PR_SET_PDEATHSIG = 1
HINT = (
    "seed every random choice (random_state=0, generator=torch.Generator().manual_seed(0)), "
    "sort file lists, or draw after gpq.init(), which seeds torch, numpy and random. If the "
    "data is meant to change: job.loader(data_may_change=True)"
)


class Reader:
    """A process that reads some examples.

    It is a fork, so what a data set opens, counts or draws during the reading stays there, as in a
    DataLoader's worker.
    """

    def __init__(self, dataset: Any, places: List[int]) -> None:
        self._deadline = time.monotonic() + PATIENCE
        self._descriptor, write_end = os.pipe()
        with warnings.catch_warnings():
            # Threads of this process do not run in the fork.
            warnings.simplefilter("ignore")
            self._process = os.fork()
        if not self._process:
            _read(dataset, places, write_end)
        os.close(write_end)

    def result(self) -> Dict[str, Any]:
        """By place: two likenesses of the example, or why there are none.

        Leaves out what was not read in time.
        """
        content = b""
        while True:
            seconds = self._deadline - time.monotonic()
            if seconds <= 0 or not select.select([self._descriptor], [], [], seconds)[0]:
                break
            piece = os.read(self._descriptor, 1 << 16)
            if not piece:
                break
            content += piece
        os.close(self._descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        lines = content.decode().split("\n")[:-1]
        return {str(place): readings for place, readings in map(json.loads, lines)}


def _read(dataset: Any, places: List[int], descriptor: int) -> NoReturn:
    """Runs in the fork. Never returns, and prints nothing."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(PATIENCE))
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        torch.set_num_threads(1)
        begin = time.monotonic()
        for place in places:
            line = json.dumps([place, _readings(dataset, place)]) + "\n"
            os.write(descriptor, line.encode())
            if time.monotonic() > begin + READING_SECONDS:
                break
    finally:
        os._exit(0)


def _readings(dataset: Any, place: int) -> Any:
    readings = []
    for _ in range(2):
        reseed(0, 0, 0)
        try:
            readings.append(likeness(dataset[place]))
        except Exception as error:
            return "{}: {}".format(type(error).__name__, str(error).partition("\n")[0])
    return readings


class Fingerprint:
    """A part of checkpoints: likenesses of a few examples by place, and of the choice of
    subsets."""

    def __init__(self, dataset: Any, size: int) -> None:
        self.examples: Dict[str, Likeness] = {}
        self.subsets = _subsets(dataset)
        places = [stable_seed(size, number) % size for number in range(DRAWS)]
        self._places = sorted({0, size - 1, *places})
        self._reader: Optional[Reader] = Reader(dataset, self._places)

    def compare(self, agreement: Agreement, notice: Callable[[str], None]) -> None:
        """Compare with rank 0, and raise GpqTrainError on every replica if a replica has other
        data. Collective."""
        if self._reader is None:
            return
        readings, self._reader = self._reader.result(), None
        self._take(readings, notice)
        difference = self.difference(agreement.broadcast(self.state_dict()))
        rows = agreement.gather([float(bool(difference))])
        ranks = [rank for rank, row in enumerate(rows) if row[0]]
        if ranks:
            words = "replica {} has different training data from replica 0: {}"
            raise GpqTrainError(words.format(ranks[0], difference or "the examples differ"), HINT)

    def difference(self, state: Dict[str, Any]) -> str:
        """What differs from another `state_dict`, or ""."""
        for number, (own_subset, other_subset) in enumerate(zip(self.subsets, state["subsets"])):
            if own_subset != other_subset:
                depth = "" if number == 0 else " ({} levels down)".format(number)
                return "the indices of its Subset{} differ".format(depth)
        other_examples = {place: Likeness(*content) for place, content in state["examples"].items()}
        common = sorted(other_examples.keys() & self.examples.keys(), key=int)
        mismatches = [
            place for place in common if not self.examples[place].resembles(other_examples[place])
        ]
        if not mismatches:
            return ""
        return "{} of {} compared examples differ (number {})".format(
            len(mismatches), len(common), ", ".join(mismatches[:3])
        )

    def state_dict(self) -> Dict[str, Any]:
        examples = {
            place: [content.digest, content.numbers] for place, content in self.examples.items()
        }
        return {"examples": examples, "subsets": self.subsets}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Raises GpqTrainError if the checkpoint was trained on other data."""
        difference = self.difference(state)
        if difference:
            raise GpqTrainError(
                "the training data has changed since the previous attempt: {}".format(difference),
                HINT,
            )

    def _take(self, readings: Dict[str, Any], notice: Callable[[str], None]) -> None:
        """Keep the examples that were read the same twice, and say why the rest was not."""
        reasons = []
        for place in map(str, self._places):
            reading = readings.get(
                place, "reading them crashes or takes more than {:.0f} s".format(READING_SECONDS)
            )
            if isinstance(reading, str):
                reasons.append(reading)
                continue
            first, second = (Likeness(*content) for content in reading)
            if first.resembles(second):
                self.examples[place] = first
            else:
                reasons.append("they are random even under the same seed")
        if reasons:
            count = len(self._places)
            notice(
                "gpq cannot compare {} of {} examples with those of the next attempt ({}). "
                "Make sure that the script trains on the same data every time".format(
                    len(reasons), count, reasons[0]
                )
            )


def _subsets(dataset: Any) -> List[List[Any]]:
    """For each Subset within another: its length, and a digest of its indices. Raises GpqTrainError
    for indices that differ in each attempt."""
    levels = []
    while isinstance(dataset, Subset):
        inner: Any = dataset.dataset
        if len(dataset.indices) and is_unseeded(dataset.indices, len(inner)):
            raise GpqTrainError(
                "the indices of a Subset were drawn without a seed, before gpq_agent.train was "
                "imported, so the next attempt would train on other data",
                HINT,
            )
        content = likeness(torch.as_tensor([int(place) for place in dataset.indices]))
        levels.append([len(dataset.indices), content.digest])
        dataset = inner
    return levels
