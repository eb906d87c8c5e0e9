"""What a checkpoint holds and how it comes back: named parts, the choice of the file on all replicas, and the seeds.

Works without a shared file system: replicas whose node lacks the chosen file get it from rank 0.
"""

import io
import os
import random
import sys
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpq_agent import records

from .checkpoint import CheckpointStore
from .errors import GpqTrainError
from .internals import uncompiled
from .loading import PLAINER, read_state, refuse_unloadable, unsavable
from .sampler import stable_seed

LARGEST_SEED = 1 << 32  # numpy takes no larger one, so scripts give none
USER = "user:"  # before the names of parts that the script has registered


class Unwrapped(NamedTuple):
    """`wrapper`: the DistributedDataParallel if there is one, else the model; `inner`: the user's own module."""

    wrapper: torch.nn.Module
    inner: torch.nn.Module


def unwrapped(model: torch.nn.Module) -> Unwrapped:
    """Look through torch.compile and DistributedDataParallel, in any order."""
    wrapper = uncompiled(model)
    inner = wrapper.module if isinstance(wrapper, DistributedDataParallel) else wrapper
    return Unwrapped(wrapper, uncompiled(inner))


class Parts:
    """Everything that a checkpoint holds, by name. A part registered after the checkpoint was read is restored then."""

    def __init__(self) -> None:
        self._parts: Dict[str, Any] = {}
        self._waiting: Dict[str, Any] = {}
        self._held: List[Any] = []
        self._loaded: Set[str] = set()  # as they were registered

    def add(self, name: str, part: Any) -> None:
        """`part` has state_dict() and load_state_dict(). Raises GpqTrainError if not, or if the name is taken."""
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise GpqTrainError(
                "{} has no state_dict() and load_state_dict()".format(type(part).__name__),
                "job.state() keeps objects that can save and load themselves",
            )
        if name in self._parts:
            raise GpqTrainError("there is already a part named {!r} in the checkpoint".format(name))
        if name.startswith(USER):
            refuse_unloadable(part.state_dict())
        self._parts[name] = part
        self._held.append(part)
        if name in self._waiting:
            self._loaded.add(name)
            _load(part, self._waiting.pop(name))

    def held(self) -> List[Any]:
        """The parts themselves; those that come later are in it too."""
        return self._held

    def of_the_script(self) -> Dict[str, Any]:
        """What the script has registered, by the name that it gave."""
        return {name[len(USER) :]: part for name, part in self._parts.items() if name.startswith(USER)}

    def state(self) -> Dict[str, Any]:
        """One dictionary of all states. Parts that an older checkpoint holds and nobody claimed are kept."""
        state = dict(self._waiting)
        state.update({name: part.state_dict() for name, part in self._parts.items()})
        return state

    def refuse_unsavable(self) -> None:
        """Raises GpqTrainError for a part that no checkpoint could hold: better now than at the first one."""
        for name, part in self._parts.items():
            problem = unsavable(part.state_dict())
            if problem:
                raise GpqTrainError(
                    "the state of {} ({}) cannot be saved: {}".format(
                        name[len(USER) :] if name.startswith(USER) else name, type(part).__name__, problem
                    ),
                    PLAINER,
                )

    def offer(self, state: Dict[str, Any]) -> None:
        """What a checkpoint holds, for parts that are yet to be registered."""
        self._waiting = {name: part for name, part in state.items() if name not in self._parts}

    def restore(self, state: Dict[str, Any]) -> None:
        """Load what is registered and did not get its state then; the rest waits for its part."""
        self.offer(state)
        for name, part in self._parts.items():
            if name in state and name not in self._loaded:
                self._waiting.pop(name, None)
                _load(part, state[name])


class Outside:
    """In checkpoints: parameters of optimizers that no model holds, as those of a criterion, in the order of the groups."""

    def __init__(self, parameters: List[torch.nn.Parameter]) -> None:
        self._parameters = parameters

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def state_dict(self) -> Dict[str, Any]:
        return {"parameters": [item.detach() for item in self._parameters]}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        saved = state["parameters"]
        if [item.shape for item in saved] != [item.shape for item in self._parameters]:
            raise ValueError("an optimizer has other parameters outside the model than the checkpoint")
        with torch.no_grad():
            for item, value in zip(self._parameters, saved):
                item.copy_(value)


class Trained:
    """In checkpoints: which parameters of the optimizers are trained. A loop that thaws some in one epoch does not say so
    again in the next attempt."""

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._optimizers = list(optimizers)

    def state_dict(self) -> Dict[str, Any]:
        return {"trained": [item.requires_grad for item in self._parameters()]}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for item, trained in zip(self._parameters(), state["trained"]):
            item.requires_grad_(bool(trained))

    def _parameters(self) -> List[torch.nn.Parameter]:
        return [item for each in self._optimizers for group in each.param_groups for item in group["params"]]


def outside_parameters(models: Iterable[torch.nn.Module], optimizers: Iterable[Any]) -> Outside:
    """What the optimizers train that the models do not hold."""
    inside = {id(item) for model in models for item in model.parameters()}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    found = {id(item): item for group in groups for item in group["params"] if id(item) not in inside}
    return Outside(list(found.values()))


def _load(part: Any, state: Any) -> None:
    # Modules copy into their own tensors. Others may keep what they are given, which is mapped from a file that a later
    # checkpoint removes: give them memory of their own. Optimizers move theirs to a GPU, so only what stays is copied: one
    # copy for each replica of a server would be many times what a GPU holds.
    if isinstance(part, torch.nn.Module):
        part.load_state_dict(state)
    elif getattr(type(part), "load_state_dict", None) is torch.optim.Optimizer.load_state_dict:
        part.load_state_dict(state)
        for slots in (*part.state.values(), *part.param_groups):
            slots.update({name: _owned(value) for name, value in slots.items() if name != "params"})
    else:
        part.load_state_dict(_owned(state))


def _owned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone() if value.device.type == "cpu" else value
    if isinstance(value, dict):
        return {name: _owned(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_owned(item) for item in value]
    if type(value) is tuple:
        return tuple(_owned(item) for item in value)
    return value


def choose_state(
    store: Optional[CheckpointStore], group: Optional[dist.ProcessGroup], rank: int, notice: Callable[[str], None]
) -> Optional[Dict[str, Any]]:
    """The newest whole checkpoint that rank 0 can see, the same on every replica; None if there is none."""
    if store is None:
        return None
    name = (store.newest(notice) or "") if rank == 0 else ""
    if group is None:
        return store.read(name) if name else None
    choice: List[Any] = [name, store.manifest(name) if name else {}]
    dist.broadcast_object_list(choice, src=0, group=group)
    name, manifest = choice
    if not name:
        return None
    # The manifest holds the digest: another node may have another attempt's checkpoint of the same step.
    here = torch.tensor([int(store.manifest(name) == manifest)])
    dist.all_reduce(here, op=dist.ReduceOp.MIN, group=group)
    if here.item():
        return store.read(name)
    content = torch.empty(manifest["bytes"], dtype=torch.uint8)
    if rank == 0:
        with os.fdopen(records.open_plain(store.path(name)), "rb") as stream:
            content = torch.frombuffer(bytearray(stream.read()), dtype=torch.uint8)
    dist.broadcast(content, src=0, group=group)
    return read_state(io.BytesIO(content.numpy().tobytes()))


def given_seed() -> int:
    """The seed that the script gave to torch, 0 where it gave none: then torch has drawn one of 53 bits by itself."""
    seed = torch.initial_seed()
    return seed if seed < LARGEST_SEED else 0


def begin(seed: int) -> None:
    """Seed every generator, for what a script draws before its first step."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")  # torch imports it
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def reseed(seed: int, step: int, rank: int) -> None:
    """Seed every generator in use for this replica at this step, so that an attempt repeats if its history does."""
    value = stable_seed(seed, step, rank)
    torch.manual_seed(value)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value % 2**32)


def generator_states() -> List[Tuple[Callable[[Any], Any], Any]]:
    """Of every generator in use: how to set it, and to what."""
    found: List[Tuple[Callable[[Any], Any], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found.append((torch.cuda.set_rng_state, torch.cuda.get_rng_state()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found.append((numpy.random.set_state, numpy.random.get_state()))
    return found


def set_generators(states: List[Tuple[Callable[[Any], Any], Any]]) -> None:
    """Put them back."""
    for put, state in states:
        put(state)
