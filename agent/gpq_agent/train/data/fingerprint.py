"""Checks that every replica and every attempt trains on the same data.

A script starts again at any time, and on several replicas. A split drawn without a seed, or labels
in the order of a listing, differ every time. So the checkpoint keeps a few examples, which are
compared before the first step: types, shapes, integers and text, and of other numbers the mean and
the deviation.
"""

import functools
import hashlib
import itertools
import os
import time
import warnings
from collections.abc import Mapping, Set
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch.utils.data import DataLoader, Subset

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.process.agreement import Agreement
from gpq_agent.train.process.rng import (
    generator_states,
    is_unseeded,
    seed_host,
    set_generators,
    stable_seed,
)

DRAWS = 8  # examples to compare, in addition to the first and the last
READING_SECONDS = 10.0  # seconds after which no other example is read
PATIENCE = 30.0  # seconds for a worker whose data set hangs
TOLERANCE = 1e-3  # of mean and deviation: rounding, or another decoder, stays far below it
MOST_LEAVES = 500  # values read from one example
DEEPEST = 8  # containers within containers
PLAIN = (str, bytes, int, os.PathLike, type(None))
ARRAYS = ("__array__", "__array_interface__")
SEED = 0  # of everything that an example draws
HINT = (
    "seed every random choice (random_state=0, generator=torch.Generator().manual_seed(0)), "
    "sort file lists, or draw after gpq.init(), which seeds torch, numpy and random. If the "
    "data is meant to change: job.loader(data_may_change=True)"
)


class Likeness(NamedTuple):
    """An example in short. `digest`: of what must be equal. `moments`: mean and deviation of each
    tensor that rounding, or another version of a decoder, may change."""

    digest: str
    moments: List[List[float]]

    def resembles(self, likeness: "Likeness") -> bool:
        """Are both the same example, apart from rounding?"""
        if self.digest != likeness.digest or len(self.moments) != len(likeness.moments):
            return False
        for own, other in zip(self.moments, likeness.moments):
            allowance = TOLERANCE * max(sum(map(abs, own)), sum(map(abs, other)))
            if any(abs(number - value) > allowance for number, value in zip(own, other)):
                return False
        return True


def likeness(example: Any) -> Likeness:
    """The likeness of anything that a data set may return: tensors, arrays, images, numbers, text,
    containers, and plain objects of any of these."""
    leaves = list(itertools.islice(_leaves(example, 0), MOST_LEAVES))
    text = "\0".join(text for text, _ in leaves)
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return Likeness(digest, [moments for _, moments in leaves if moments])


def _leaves(value: Any, depth: int) -> Iterator[Tuple[str, List[float]]]:
    """The text and the moments of each value in it."""
    name = type(value).__name__
    if isinstance(value, float):
        value = torch.tensor(value)
    elif not isinstance(value, torch.Tensor) and any(hasattr(value, array) for array in ARRAYS):
        import numpy

        content = numpy.ascontiguousarray(value)
        is_numeric = content.dtype.kind in "biufc"
        value = torch.as_tensor(content) if is_numeric else content.tolist()
    if isinstance(value, PLAIN):
        yield "{} {}".format(name, _text(value)), []
    elif isinstance(value, torch.Tensor):
        text = "{} {}".format(value.dtype, tuple(value.shape))
        tensor = value.detach().to_dense().cpu()
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if not tensor.numel():
            yield text, []
        elif tensor.is_floating_point() or tensor.dtype == torch.uint8:
            values = tensor.double().nan_to_num(nan=0.5, posinf=2.0, neginf=-2.0)
            yield text, [float(values.mean()), float(values.std(unbiased=False))]
        else:
            data = tensor.contiguous().numpy().tobytes()
            yield "{} {}".format(text, hashlib.blake2b(data, digest_size=8).hexdigest()), []
    elif depth == DEEPEST or isinstance(value, (type, ModuleType)) or callable(value):
        yield name, []
    elif isinstance(value, (Mapping, list, tuple)):
        yield "{} of {}".format(name, len(value)), []
        if isinstance(value, Mapping):
            value = sorted(value.items(), key=lambda pair: _text(pair[0]))
        for item in value:
            yield from _leaves(item, depth + 1)
    elif isinstance(value, Set):
        yield "{} {}".format(name, sorted(map(_text, value))), []
    else:
        yield from _leaves(dict(getattr(value, "__dict__", {})), depth + 1)


def _text(value: Any) -> str:
    """Without what changes between processes: object addresses, and the job's folder."""
    if isinstance(value, os.PathLike) or (isinstance(value, str) and value.startswith("/")):
        return os.path.basename(os.fspath(value))
    return repr(value) if isinstance(value, PLAIN) else type(value).__name__


def read_twice(
    dataset: Any, places: List[int], options: Dict[str, Any]
) -> Tuple[List[Likeness], str]:
    """Two likenesses of each place under one seed, in order, and why the rest is missing, or "".

    `options`: those of torch's DataLoader that the script gives. Reads where training reads: in
    this process, or in a worker if the script has workers. So a file that a data set opens when it
    is first read stays in a worker. A generator of the data set's own moves on if there is none.
    """
    examples: Any = DataLoader(
        dataset,
        batch_size=None,
        sampler=[place for place in places for _ in range(2)],
        collate_fn=_describe,
        generator=torch.Generator(torch.empty(0).device),  # the loader draws from no other
        **reading_options(options),
    )
    readings: List[Likeness] = []
    states = generator_states()
    seed_host(SEED)
    begin = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own loader warns of the same
            for reading in examples:
                readings.append(reading)
                if time.monotonic() > begin + READING_SECONDS:
                    return readings, "reading them takes more than {:.0f} s".format(READING_SECONDS)
    except Exception as error:
        # A worker puts its traceback into the message, which ends with the cause.
        lines = str(error).strip().split("\n")
        if "Original Traceback" in str(error):
            return readings, lines[-1]
        return readings, "{}: {}".format(type(error).__name__, lines[0])
    finally:
        set_generators(states)
    return readings, ""


def reading_options(options: Dict[str, Any]) -> Dict[str, Any]:
    """Those of a DataLoader that reads a few examples where training reads. `options`: the
    script's."""
    if not options.get("num_workers"):
        return {}
    return {
        "num_workers": 1,
        "timeout": PATIENCE,
        "multiprocessing_context": options.get("multiprocessing_context"),
        "worker_init_fn": functools.partial(_begin, options.get("worker_init_fn")),
    }


def _begin(init: Optional[Callable[[int], None]], worker: int) -> None:
    """Runs in a worker before it reads."""
    if init is not None:
        init(worker)
    seed_host(SEED)


def _describe(example: Any) -> Likeness:
    content = likeness(example)
    seed_host(SEED)  # for the next one
    return content


class Fingerprint:
    """A part of checkpoints: likenesses of a few examples by place, and of the choice of
    subsets."""

    def __init__(self, dataset: Any, size: int, options: Dict[str, Any]) -> None:
        """`options`: of the script's DataLoader. Raises GpqTrainError for a Subset whose indices
        differ in each attempt."""
        self.examples: Dict[str, Likeness] = {}
        # Of each Subset within another: its length, and a digest of its indices.
        self.subsets: List[List[Any]] = []
        subset: Any = dataset
        while isinstance(subset, Subset):
            inner: Any = subset.dataset
            if len(subset.indices) and is_unseeded(subset.indices, len(inner)):
                raise GpqTrainError(
                    "the indices of a Subset were drawn without a seed, before gpq_agent.train was "
                    "imported, so the next attempt would train on other data",
                    HINT,
                )
            content = likeness(torch.as_tensor([int(place) for place in subset.indices]))
            self.subsets.append([len(subset.indices), content.digest])
            subset = inner
        places = [stable_seed(size, number) % size for number in range(DRAWS)]
        self._places = sorted({0, size - 1, *places})
        self._dataset, self._options = dataset, options

    def compare(self, agreement: Agreement, notice: Callable[[str], None]) -> None:
        """Compare with rank 0, and raise GpqTrainError on every replica if a replica has other
        data. Collective."""
        readings, reason = read_twice(self._dataset, self._places, self._options)
        for place, first, second in zip(self._places, readings[::2], readings[1::2]):
            if first.resembles(second):
                self.examples[str(place)] = first
        missing = len(self._places) - len(self.examples)
        if missing and not reason:
            reason = "they are random even under the same seed"
            if not self._options.get("num_workers"):
                reason += ", so gpq's reading has moved their own generator on"
        if missing:
            words = (
                "gpq cannot compare {} of {} examples with those of the next attempt ({}). Make "
                "sure that the script trains on the same data every time"
            )
            notice(words.format(missing, len(self._places), reason))
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
        # A checkpoint of an earlier version has likenesses of another kind, by another name.
        others = state.get("likenesses", {})
        other_examples = {place: Likeness(*content) for place, content in others.items()}
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
        likenesses = {place: list(content) for place, content in self.examples.items()}
        return {"likenesses": likenesses, "subsets": self.subsets}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Raises GpqTrainError if the checkpoint was trained on other data."""
        difference = self.difference(state)
        if difference:
            words = "the training data has changed since the previous attempt: {}"
            raise GpqTrainError(words.format(difference), HINT)
