"""Loads checkpoints without running code.

It loads tensors, plain data, numpy arrays, and the classes that the script allows with
torch.serialization.add_safe_globals. Otherwise anybody who can write to a checkpoint folder, on any
server of the job, could run any code as the job's user.
"""

import _codecs
import collections
import datetime
import decimal
import fractions
import io
import pathlib
import pickle
import re
import uuid
from typing import Any, Dict, List, Optional

import torch

from gpq_agent.train.errors import GpqTrainError

PLAIN = (
    set, frozenset, complex, bytearray, slice, range, collections.OrderedDict, collections.Counter,
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone,
    decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PosixPath, pathlib.PurePosixPath,
    torch.Size, torch.dtype, torch.device,
)  # fmt: skip
PLAINER = "give job.state() only numbers, text, lists, dictionaries and tensors"
GLOBAL = re.compile(r"(?:GLOBAL|class|global:?) `?([A-Za-z_][\w.]*\.[\w.]+)")


def read_state(source: Any) -> Dict[str, Any]:
    """Load a state from a path (mapped) or a binary stream, with tensors on the CPU. Raises
    GpqTrainError for anything that may run code."""
    state = _load(source)
    if not isinstance(state, dict):
        raise ValueError("a checkpoint must hold a dictionary")
    return state


def _load(source: Any) -> Any:
    use_mmap = True if isinstance(source, str) else None
    try:
        with torch.serialization.safe_globals([*PLAIN, *_of_numpy()]):
            return torch.load(source, map_location="cpu", mmap=use_mmap, weights_only=True)
    except pickle.UnpicklingError as error:
        name = GLOBAL.search(str(error))
        if name is None:
            reason = str(error).rpartition("WeightsUnpickler error:")[2].strip()
            words = "the checkpoint holds something that gpq does not load: {}"
            raise GpqTrainError(words.format(reason.partition("\n")[0][:200]), PLAINER) from error
        words = "the checkpoint holds a {}, which gpq does not load because that could run any code"
        hint = "to allow it, call torch.serialization.add_safe_globals([{}]) before gpq.init()"
        kind = name.group(1).rpartition(".")[2]
        raise GpqTrainError(words.format(name.group(1)), hint.format(kind)) from error


def refusal(source: Any) -> str:
    """Why the next attempt would refuse this checkpoint, or ""."""
    try:
        _load(source)
    except GpqTrainError as error:
        return "{} ({})".format(error.message, error.hint)
    return ""


def refuse_unloadable(state: Any) -> None:
    """Raises GpqTrainError for a state that could not be loaded again once saved."""
    stream = io.BytesIO()
    if not unsavable(state, stream):  # otherwise job.prepare() reports it if it is still so
        stream.seek(0)
        _load(stream)


def unsavable(state: Any, stream: Optional[io.BytesIO] = None) -> str:
    """Why it cannot be saved as it is now, or "". It is saved to `stream`, without the content of
    its tensors."""
    try:
        torch.save(_light(state), stream or io.BytesIO())
    except Exception as error:  # any error of a class of the script
        return " ".join("{}: {}".format(type(error).__name__, error).split())
    return ""


def _light(value: Any) -> Any:
    """Save it without the content of its tensors."""
    if type(value) is torch.Tensor:
        return torch.empty(0)
    if type(value) in (dict, collections.OrderedDict):
        return type(value)((name, _light(item)) for name, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(_light(item) for item in value)
    return value


def _of_numpy() -> List[Any]:
    """The classes that numpy arrays and numbers consist of. Empty without numpy."""
    try:
        import numpy
    except ImportError:
        return []
    constructors = [numpy.array([0]).__reduce__()[0], numpy.float64(0).__reduce__()[0]]
    kinds = [type(numpy.dtype(code)) for code in "?bhilqBHILQefdgFDGSUVMm"]
    return [numpy.ndarray, numpy.dtype, *constructors, *kinds, _codecs.encode]
