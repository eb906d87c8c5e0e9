"""Follows every tensor operation of the first passes of a loop, for what the loop carries from one to the next by itself.

Tensors that one pass has made, which the next trains with, and which no checkpoint holds (a memory bank, a hidden state); numbers
that are another in every pass (the coefficient of a loss); and what is computed from a batch as a whole, before or beside the
graph, that its examples are trained with (its mean, a threshold). What is made in backward passes is not followed, nor a
compiled model. Changes nothing that is computed.
"""

# mypy: disable-error-code="no-untyped-call"

import random
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

import torch

from . import internals
from .internals import StorageWeakRef, TorchDispatchMode
from .rows import Rows

PASSES = 4  # that are followed
COMPARED = 3  # passes whose numbers are held against each other
OFTEN = 2  # what is made once, at first use, and kept (a table of angles, a mask) reaches one pass
OVERWRITES = ("zero_", "fill_", "copy_", "normal_", "uniform_", "_foreach_zero_", "_foreach_copy_")
ARITHMETIC = ("add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "pow", "lerp", "lerp_")
MOST_NUMBERS = 10000  # of a pass that are kept
CLOSE = 1e-9  # of a number, for being the same
MOST_WALKED = 10000  # objects that are followed to the tensors in them

# Of the examples of a batch together, along their dimension.
SUMS = (
    "sum",
    "mean",
    "std",
    "var",
    "std_mean",
    "var_mean",
    "norm",
    "linalg_vector_norm",
    "prod",
    "logsumexp",
    "_softmax",
)
ORDERS = ("max", "min", "amax", "amin", "median", "nanmedian", "kthvalue", "topk", "sort", "cumsum")
TURNS = ("roll", "flip")  # examples meet others of their batch
# Bits of what tensors are made of. DATA: of what no earlier pass has met; DRAWN: by a generator of the script's own.
CARRIED, OF_A_BATCH, DATA, DRAWN, PART = 1, 2, 4, 8, 16  # PART: of examples picked by their places
NUMBERS = 5  # bits before those of the numbers

Number = Tuple[str, float, bool]  # operation, value, is it whole?


class Found(NamedTuple):
    """What the passes that were followed have shown."""

    tensor: bool  # one pass trains with what an earlier one has made
    number: bool  # a number is another in each
    batch: bool  # they train with what is of a batch as a whole
    generator: bool  # they train with what a generator of the script's own has drawn


NOTHING = Found(tensor=False, number=False, batch=False, generator=False)


class Following(TorchDispatchMode):
    """One per job. The engine tells it of bodies and backward passes; `paused` says when what runs is no business of the loop's.

    `known` gives the tensors that checkpoints hold, and `trained` the parameters. What tensors are made of is kept by the
    memory that they are in, so a write to a part counts for the whole.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        paused: Callable[[], bool],
        known: Callable[[], Iterable[torch.Tensor]],
        trained: Callable[[], Iterable[torch.Tensor]],
    ) -> None:
        super().__init__()
        self._paused = paused
        self._known_tensors = known
        self._trained = trained
        self._bodies = 0
        self._inside = False  # on the stack of modes
        self._holds: List[StorageWeakRef] = []  # so that no other memory comes to bear the number of one that is let go
        self._known: Set[int] = set()
        self._written: Dict[int, StorageWeakRef] = {}  # in this body
        self._carried: Dict[int, StorageWeakRef] = {}  # written in the one before
        # What storages of this body are computed from: CARRIED, and a bit for each number.
        self._made_of: Dict[int, int] = {}
        self._met: Dict[int, StorageWeakRef] = {}  # read in earlier bodies: constants
        self._read: Dict[int, StorageWeakRef] = {}  # in this one
        self._targets: Set[int] = set()  # parameters, and gradients of this body
        self._examples = 0  # of this body
        self._rows = Rows(0, 0)  # of this body
        self._shapes: Set[Tuple[int, ...]] = set()  # of parameters
        self._trains_with = 0  # what this one trains with, in the same bits
        self._used: List[int] = []  # of each body, those
        self._sizes: List[int] = []  # and its examples
        # By its number: the first body that drew from it, itself (so that no other comes to bear its number), its seed.
        self._generators: Dict[int, Tuple[int, torch.Generator, int]] = {}
        self._numbers: List[List[Number]] = []  # of each body
        self._has_read = False  # this body has read a number off a tensor: those to come may be made of it
        self._seeds: Any = None
        self._excused = False  # in one of the bodies numbers may change

    @property
    def over(self) -> bool:
        return self._bodies >= PASSES

    def begin(self, examples: int, whole: int = 0) -> None:
        """The script is about to be given a micro-batch of so many, of a step of `whole`; 0: of nobody knows what."""
        if self.over or self._inside or is_compiled():
            self._bodies = PASSES
            return
        self._examples = examples
        self._holds = []
        self._known = {self._hold(item) for item in self._known_tensors()}
        self._targets = {self._hold(item) for item in self._trained()}
        self._shapes = {tuple(item.shape) for item in self._trained()}
        self._rows = Rows(examples, whole)
        self._written, self._made_of, self._read = {}, {}, {}
        self._trains_with = 0
        self._numbers.append([])
        self._has_read = False
        self._seeds = _seeds()
        self._enter()

    def before_backward(self, roots: Sequence[Any]) -> None:
        """A backward pass of this body begins: what it makes is not followed."""
        if not self._inside:
            return
        self._leave()
        for item in roots:
            if isinstance(item, torch.Tensor):
                self._trains_with |= self._origins(item)

    def after_backward(self) -> None:
        """It is over, and has left gradients that belong to this body."""
        if not self._seeds or self._inside:
            return
        for item in self._trained():
            if item.grad is None or item.grad.is_sparse:
                continue
            storage = self._hold(item.grad)
            self._targets.add(storage)
            self._carried.pop(storage, None)
            self._made_of.pop(storage, None)
        self._enter()

    def end(self, *, excused: bool) -> Found:
        """The body is over. `excused`: it has said what its numbers follow. Returns what has shown so far."""
        if not self._seeds:
            return NOTHING
        if self._inside:
            self._leave()
        self._excused |= excused or self._seeds != _seeds()
        self._seeds = None
        for item in self._trained():  # a script may keep them by other names
            if item.grad is not None and not item.grad.is_sparse:
                self._note(item.grad)
        self._met.update(self._read)
        self._met.update(self._written)
        self._carried = {key: reference for key, reference in self._written.items() if not reference.expired()}
        if self._trains_with & PART and self._rows.left_out:
            self._trains_with |= OF_A_BATCH
        self._rows = Rows(0, 0)
        self._used.append(self._trains_with)
        self._sizes.append(self._examples)
        self._bodies += 1
        number = self._bodies == COMPARED and not self._excused and _changes(self._numbers, self._used, self._sizes)
        return Found(self._often(CARRIED), number, self._often(OF_A_BATCH), self._often(DRAWN))

    def forget(self) -> None:
        """The body is made anew: what was seen of it does not count."""
        self._bodies = 0
        self._numbers = []
        self._used, self._sizes = [], []
        self._carried = {}

    def _often(self, origin: int) -> bool:
        return sum(bool(used & origin) for used in self._used) >= OFTEN

    # -- inside --------------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        self._inside = True
        self.__enter__()

    def _leave(self) -> None:
        """A mode that the script has entered since, and not left, would be taken for this one."""
        if internals.current_dispatch_mode() is self:
            self.__exit__(None, None, None)
            self._inside = False
        else:
            self._bodies = PASSES

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        schema = internals.schema_of(func)
        if schema is not None and not self.over and not self._paused():
            self._follow(func, schema, args, kwargs, result)
        return result

    def _follow(self, func: Any, schema: Any, args: Sequence[Any], kwargs: Dict[str, Any], result: Any) -> None:
        name = func.overloadpacket.__name__
        if name.startswith("_amp_update"):  # the scale of a GradScaler, which is looked for by itself
            return
        origins = self._read_numbers(name, args, kwargs, result)
        changed: List[torch.Tensor] = []
        taken: List[torch.Tensor] = []
        for place, argument in enumerate(schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            info = argument.alias_info
            (changed if info is not None and info.is_write else taken).extend(_tensors(value))
        divided = name in ("div", "div_") and len(taken) == 2 and taken[0].requires_grad and taken[1].numel() == 1
        for place, item in enumerate(taken):
            # By what a loss is divided the graph tells, and whether that is alike for each part of a batch.
            origins |= self._origins(item) & (~OF_A_BATCH if divided and place == 1 else -1)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator) and self._is_kept(value):
                origins |= DRAWN
        if taken and self._is_of_all(name, taken[0], schema, args, kwargs):
            origins |= OF_A_BATCH
        if (
            origins & DATA
            and internals.is_backward()
            and any(self._is_of_parameters(item) for item in _tensors(result))
        ):
            origins |= OF_A_BATCH  # a gradient that torch.autograd.grad() returns: summed over the batch
        if name == "slice":
            self._rows.sliced(_storage(taken[0]), result, *args[:4])
        picks = [] if _is_view(schema) else self._rows.read([_storage(item) for item in taken], taken)
        if any(pick is not None for pick in picks):
            origins |= PART
        if self._rows.mixes(name, picks):
            origins |= OF_A_BATCH
        if not (name in OVERWRITES and all(_is_whole(item) for item in changed)):
            for item in changed:
                origins |= self._origins(item)
        # Views of these are no news; what is lifted is a number that has become a tensor.
        same = set() if name == "lift_fresh" else {_storage(item) for item in taken}
        for item in (*changed, *(each for each in _tensors(result) if _storage(each) not in same)):
            self._write(item, origins)
            self._rows.made(_storage(item), item, picks)

    def _is_of_all(
        self, name: str, item: torch.Tensor, schema: Any, args: Sequence[Any], kwargs: Dict[str, Any]
    ) -> bool:
        """Does the operation put the examples of this tensor together, where gradients do not go? The graph tells the rest."""
        if name in TURNS:
            turned = args[-1] if len(args) > 1 else kwargs.get("dims")
            first = isinstance(turned, (list, tuple)) and any(dim in (0, -item.dim()) for dim in turned)
            return first and item.dim() > 0 and item.shape[0] == self._examples > 1 and bool(self._origins(item) & DATA)
        if name not in SUMS and name not in ORDERS:
            return False
        if not item.is_floating_point():  # counts and lengths: what is divided by these the graph tells
            return False
        if item.requires_grad or not self._origins(item) & DATA or not self._has_examples(tuple(item.shape)):
            return False
        dim = None
        for place, argument in enumerate(schema.arguments):
            if argument.name == "dim":
                dim = args[place] if place < len(args) else kwargs.get("dim", argument.default_value)
        if dim is None or dim == []:
            return True
        dims = dim if isinstance(dim, (list, tuple)) else [dim]
        return any(each in (0, -item.dim()) for each in dims)

    def _is_of_parameters(self, item: torch.Tensor) -> bool:
        shape = tuple(item.shape)
        return shape in self._shapes and not self._has_examples(shape)

    def _note_rows(self, item: torch.Tensor) -> None:
        if item.dim() and item.shape[0] == self._examples and self._has_examples(tuple(item.shape)):
            self._rows.note(_storage(item), item)

    def _has_examples(self, shape: Tuple[int, ...]) -> bool:
        """Along the first dimension, perhaps several rows of each. Sequences may have them behind the time."""
        if self._examples < 2 or not shape or shape[0] == 0:
            return False
        return shape[0] % self._examples == 0 and not (len(shape) > 2 and shape[1] == self._examples)

    def _is_kept(self, generator: torch.Generator) -> bool:
        """Has an earlier body drawn from it, and has nobody seeded it since? torch's own are seeded by the step."""
        if is_torchs(generator):
            return False
        number, seed = internals.number_of(generator), generator.initial_seed()
        body, _, known = self._generators.setdefault(number, (self._bodies, generator, seed))
        self._generators[number] = (body, generator, seed)
        return body < self._bodies and known == seed

    def _origins(self, item: torch.Tensor) -> int:
        """What it is computed from."""
        storage = _storage(item)
        if storage in self._made_of:
            return self._made_of[storage]
        if storage in self._known or storage in self._targets or not storage:
            return 0
        if _holds(self._carried, storage):
            return CARRIED
        if storage not in self._read:
            self._read[storage] = StorageWeakRef(item.untyped_storage())
        if _holds(self._met, storage):
            return 0
        self._note_rows(item)
        return DATA

    def _write(self, item: torch.Tensor, origins: int) -> None:
        storage = _storage(item)
        if storage in self._targets:
            self._trains_with |= origins
        if storage not in self._known:
            self._made_of[storage] = origins
            self._note(item)
            if origins & DATA:
                self._note_rows(item)

    def _hold(self, item: torch.Tensor) -> int:
        storage = _storage(item)
        if storage:
            self._holds.append(StorageWeakRef(item.untyped_storage()))
        return storage

    def _note(self, item: torch.Tensor) -> None:
        storage = _storage(item)
        if storage and storage not in self._written:
            self._written[storage] = StorageWeakRef(item.untyped_storage())

    def _read_numbers(self, name: str, args: Sequence[Any], kwargs: Dict[str, Any], result: Any) -> int:
        """Take down the numbers that an operation is given. Returns their bits."""
        numbers = self._numbers[-1]
        if name == "_local_scalar_dense" and isinstance(result, float):
            self._has_read = True
        begin = len(numbers)
        if self._has_read or begin >= MOST_NUMBERS:
            return 0
        for value in (*args, *kwargs.values()):
            if isinstance(value, float) and value == value:
                numbers.append((name, value, False))
            elif name in ARITHMETIC and type(value) is int:
                numbers.append((name, float(value), True))
        if name == "lift_fresh" and _is_one_number(result):
            with internals.without_dispatch():
                numbers.append((name, float(result), False))
        return sum(1 << (NUMBERS + place) for place in range(begin, len(numbers)))


def _changes(bodies: List[List[Number]], used: List[int], sizes: List[int]) -> bool:
    """Is one of the numbers that the bodies train with another in each? A whole one counts up."""
    if len({tuple(name for name, _, _ in numbers) for numbers in bodies}) != 1:
        return False  # the bodies do not do the same
    for place, values in enumerate(zip(*bodies)):
        if not all(reached & (1 << (NUMBERS + place)) for reached in used):
            continue
        found = [value for _, value, _ in values]
        if _follows(found, sizes):
            continue
        pairs = [(found[at - 1], found[at]) for at in range(1, len(found))]
        counts = all(later == earlier + 1.0 for earlier, later in pairs) if values[0][2] else True
        if counts and all(later != earlier for earlier, later in pairs):
            return True
    return False


def _follows(numbers: List[float], sizes: List[int]) -> bool:
    """Are they made of the lengths of the batches?"""
    if 0 in sizes:
        return False
    ratios = [[number * size, number / size] for number, size in zip(numbers, sizes)]
    return any(all(abs(each - few[0]) <= CLOSE * abs(few[0]) for each in few) for few in zip(*ratios))


def tensors_within(parts: Iterable[Any]) -> List[torch.Tensor]:
    """Those that checkpoints hold of what was given to job.prepare() and job.state(). Of modules: parameters and buffers that
    persist; a tensor that a module keeps as a plain attribute is in no checkpoint."""
    found: List[torch.Tensor] = []
    seen: Set[int] = set()
    waiting = list(parts)
    while waiting and len(seen) < MOST_WALKED:
        item = waiting.pop()
        if isinstance(item, torch.Tensor):
            found.append(item)
            continue
        if id(item) in seen or isinstance(item, (type, str, int, float)):
            continue
        seen.add(id(item))
        if isinstance(item, torch.nn.Module):
            for module in item.modules():
                found += internals.kept_tensors(module)
        elif isinstance(item, dict):
            waiting += [item[key] for key in list(item)]
        elif isinstance(item, (list, tuple, set)):
            waiting += list(item)
        elif isinstance(getattr(item, "__dict__", None), dict):
            waiting += list(vars(item).values())
    return [item for item in found if item is not None]


def _holds(references: Dict[int, StorageWeakRef], storage: int) -> bool:
    """Is this memory one of those, and not another that has come to lie in its place?"""
    reference = references.get(storage)
    return reference is not None and not reference.expired()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _is_one_number(item: Any) -> bool:
    """Of those whose value can be had without waiting for a device."""
    single = isinstance(item, torch.Tensor) and item.numel() == 1 and item.device.type == "cpu"
    return bool(single and item.is_floating_point())


def _storage(item: torch.Tensor) -> int:
    """What memory it is in; 0 where that cannot be said."""
    try:
        return internals.memory_of(item)
    except (RuntimeError, NotImplementedError):  # sparse ones and their like
        return 0


def _is_view(schema: Any) -> bool:
    """Does the operation read nothing?"""
    aliases = [each.alias_info for each in schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _is_whole(item: torch.Tensor) -> bool:
    """Does it cover the memory that it is in?"""
    try:
        return item.numel() * item.element_size() == item.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return False


def _seeds() -> Tuple[Any, ...]:
    """Where the generators of random numbers stand that give plain ones."""
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state()[1:3] if numpy is not None else ()
    return (random.getstate(), *(bytes(part) if hasattr(part, "tobytes") else part for part in drawn))


def is_torchs(generator: torch.Generator) -> bool:
    """One of those that draw where none is given: gpq seeds them by the step."""
    ours = (torch.default_generator, *getattr(torch.cuda, "default_generators", ()))
    return internals.number_of(generator) in map(internals.number_of, ours)


def is_compiled() -> bool:
    """Does the script use torch.compile, or what is made for it? That may run otherwise under a mode, or not at all."""
    if "torch.nn.attention.flex_attention" in sys.modules:
        return True
    return internals.is_compiling()
