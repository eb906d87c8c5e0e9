"""What a checkpoint holds, and how it returns: named parts, loaded without running code.

gpq loads tensors, plain data, numpy arrays, and the classes that the script allows with
torch.serialization.add_safe_globals. Otherwise anybody who can write to a checkpoint folder, on any
server of the job, could run any code as the job's user.
"""

import _codecs
import collections
import contextlib
import datetime
import decimal
import fractions
import io
import pathlib
import pickle
import re
import uuid
from itertools import chain, repeat
from typing import Any, Dict, List, NamedTuple, Optional, Set

import torch
from torch.nn.parallel import DistributedDataParallel

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.internals import uncompiled_module

PLAIN = (
    set, frozenset, complex, bytearray, slice, range, collections.OrderedDict, collections.Counter,
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone,
    decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PosixPath, pathlib.PurePosixPath,
    torch.Size, torch.dtype, torch.device,
)  # fmt: skip
PLAINER = "give job.state() only numbers, text, lists, dictionaries and tensors"
GLOBAL = re.compile(r"(?:GLOBAL|class|global:?) `?([A-Za-z_][\w.]*\.[\w.]+)")

USER = "user:"  # prefix of the names of parts that the script registered


def read_state(source: Any) -> Dict[str, Any]:
    """Load a state from a path (mapped) or a binary stream, with tensors on the CPU. Raises
    GpqTrainError for anything that may run code."""
    state = _load_plainly(source)
    if not isinstance(state, dict):
        raise ValueError("a checkpoint must hold a dictionary")
    return state


def _load_plainly(source: Any) -> Any:
    use_mmap = True if isinstance(source, str) else None
    allowed: List[Any] = list(PLAIN)
    with contextlib.suppress(ImportError):
        import numpy

        allowed += [numpy.array([0]).__reduce__()[0], numpy.float64(0).__reduce__()[0]]
        allowed += [type(numpy.dtype(code)) for code in "?bhilqBHILQefdgFDGSUVMm"]
        allowed += [numpy.ndarray, numpy.dtype, _codecs.encode]
    try:
        with torch.serialization.safe_globals(allowed):
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
        _load_plainly(source)
    except GpqTrainError as error:
        return "{} ({})".format(error.message, error.hint)
    return ""


def refuse_unloadable(state: Any) -> None:
    """Raises GpqTrainError for a state that could not be loaded again once saved."""
    stream = io.BytesIO()
    if not unsavable(state, stream):  # otherwise job.prepare() reports it if it is still so
        stream.seek(0)
        _load_plainly(stream)


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


class ModelPair(NamedTuple):
    """A model and its wrapper.

    wrapper: the DistributedDataParallel if there is one, else the model.
    inner: the user's own module.
    """

    wrapper: torch.nn.Module
    inner: torch.nn.Module


def unwrap(model: torch.nn.Module) -> ModelPair:
    """Look through torch.compile and DistributedDataParallel, in any order."""
    wrapper = uncompiled_module(model)
    inner = wrapper.module if isinstance(wrapper, DistributedDataParallel) else wrapper
    return ModelPair(wrapper, uncompiled_module(inner))


class Parts:
    """Everything that a checkpoint holds, by name. A part registered after `restore` is restored at
    that moment."""

    def __init__(self) -> None:
        self._parts: Dict[str, Any] = {}
        self._unclaimed_states: Dict[str, Any] = {}
        self._is_restored = False
        self._loaded_names: Set[str] = set()  # in the order of registration
        self._script_parts = 0  # calls with which the script registered something
        self._values: Dict[str, PlainValue] = {}

    def add(self, name: str, part: Any, *, at_once: bool = False) -> None:
        """Add a part with state_dict() and load_state_dict(). `at_once`: restore it even before the
        others. Raises GpqTrainError if it lacks them, or if the name is in use."""
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            problem = "{} has no state_dict() and load_state_dict()".format(type(part).__name__)
            hint = "job.state() keeps objects with state_dict() and load_state_dict()"
            raise GpqTrainError(problem, hint)
        if name in self._parts:
            raise GpqTrainError("the checkpoint already has a part named {!r}".format(name))
        if name.startswith(USER):
            refuse_unloadable(part.state_dict())
        self._parts[name] = part
        if name in self._unclaimed_states and (at_once or self._is_restored):
            self._loaded_names.add(name)
            _load(part, self._unclaimed_states.pop(name))

    def add_of_the_script(self, part: Any, name: Any = None) -> None:
        """As add, for a part of the script. `name`: by default the number of this call."""
        self._script_parts += 1
        self.add("{}{}".format(USER, name if name is not None else self._script_parts), part)

    def keep_value(self, name: str, value: Any) -> Any:
        """Keep a plain value of the script and return it. The first call for `name` returns the
        value from the checkpoint if there is one. Raises GpqTrainError if it is not plain."""
        if not is_plain(value):
            words = "job.state({!r}, ...) keeps numbers, strings and lists of them, not a {}"
            hint = "use job.state(part) for an object with state_dict() and load_state_dict()"
            raise GpqTrainError(words.format(name, type(value).__name__), hint)
        part = self._values.get(name)
        if part is not None:
            part.value = value
            return value
        part = self._values[name] = PlainValue(value)
        self.add(USER + name, part, at_once=True)
        return part.value

    def kinds(self) -> List[str]:
        """The types of the parts that have no name, by the number of the script's call."""
        numbers = range(1, self._script_parts + 1)
        return [type(self._parts.get("{}{}".format(USER, n))).__name__ for n in numbers]

    def by_name(self) -> Dict[str, Any]:
        """All of them, by name, including those registered later."""
        return self._parts

    def of_the_script(self) -> Dict[str, Any]:
        """What the script registered, by its own names."""
        return {
            name[len(USER) :]: part for name, part in self._parts.items() if name.startswith(USER)
        }

    def state(self) -> Dict[str, Any]:
        """One dictionary of all states. Keeps parts of an older checkpoint that nobody claimed."""
        state = dict(self._unclaimed_states)
        state.update({name: part.state_dict() for name, part in self._parts.items()})
        return state

    def refuse_unsavable(self) -> None:
        """Raises GpqTrainError for a part that no checkpoint could hold. This is better now than at
        the first checkpoint."""
        for name, part in self._parts.items():
            problem = unsavable(part.state_dict())
            if problem:
                own = name[len(USER) :] if name.startswith(USER) else name
                words = "the state of {} ({}) cannot be saved: {}"
                raise GpqTrainError(words.format(own, type(part).__name__, problem), PLAINER)

    def offer(self, state: Dict[str, Any]) -> None:
        """Offer the content of a checkpoint to parts that are registered later."""
        self._unclaimed_states = {
            name: part for name, part in state.items() if name not in self._parts
        }

    @property
    def is_awaited(self) -> bool:
        """Does a checkpoint offer the state of a part that is not registered yet?"""
        return bool(self._unclaimed_states)

    def restore(self, state: Dict[str, Any]) -> None:
        """Restore the registered parts that have no state yet. The rest waits for its part."""
        self._is_restored = True
        self.offer(state)
        for name, part in self._parts.items():
            if name in state and name not in self._loaded_names:
                self._unclaimed_states.pop(name, None)
                _load(part, state[name])


class PlainValue:
    """A part of checkpoints with one plain value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.value = state["value"]


def is_plain(value: Any) -> bool:
    """Is it None, a bool, a number, a string, or a list, tuple or dictionary of such values? The
    keys of a dictionary must be strings."""
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


def _load(part: Any, state: Any) -> None:
    # Modules copy into their own tensors. Other parts may keep what they get, which is mapped from
    # a file that a later checkpoint removes. So they get memory of their own, on the device where
    # they have the same tensor now. Optimizers move their state to a GPU, so only what stays on
    # the CPU is copied. One copy per replica of a server would be many times what a GPU holds.
    if isinstance(part, torch.nn.Module):
        part.load_state_dict(state)
    elif getattr(type(part), "load_state_dict", None) is torch.optim.Optimizer.load_state_dict:
        part.load_state_dict(state)
        for slots in (*part.state.values(), *part.param_groups):
            slots.update({name: _own(value) for name, value in slots.items() if name != "params"})
    else:
        own: Any = None
        with contextlib.suppress(Exception):  # a part may have no state before it is restored
            own = part.state_dict()
        part.load_state_dict(_own(state, own))


def _own(value: Any, own: Any = None) -> Any:
    """A copy of a state. `own`: the part's state now, whose tensors say on which devices."""
    if isinstance(value, torch.Tensor):
        device = own.device if isinstance(own, torch.Tensor) else value.device
        return value.clone() if value.device.type == device.type == "cpu" else value.to(device)
    if isinstance(value, dict):
        own_items = own if isinstance(own, dict) else {}
        return {name: _own(item, own_items.get(name)) for name, item in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        own_list = own if isinstance(own, (list, tuple)) else ()
        return type(value)(map(_own, value, chain(own_list, repeat(None))))
    return value
