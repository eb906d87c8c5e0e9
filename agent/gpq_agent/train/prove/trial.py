"""Computes a few examples of an attempt twice, in other batches, and compares their gradients.

A mean over the examples of a batch comes out the same. A mean over a varying number of targets does
not, nor does anything else that needs the batch as a whole. The body of the loop runs as usual, but
without a step. Tensors that it changes in place and variables of the loop are restored.
"""

import contextlib
import copy
import ctypes
import inspect
import math
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Set, Tuple

import torch
from torch.utils.data import DataLoader, default_collate

from gpq_agent.train import internals
from gpq_agent.train.data.batches import FEWEST, Micro, by_row, ceil_div, split_evenly
from gpq_agent.train.data.fingerprint import reading_options

from .determinism import fixed_seed
from .keyed import Keyed
from .sketch import COUNT, Sketcher

if TYPE_CHECKING:
    from gpq_agent.train.loop.engine import Engine

FEW = 8  # examples that a trial has at least
PARTS = 3  # batches of the second way at least
# Gradients differ by more than rounding if their distance is above COARSE times the precision and
# the norm. Right losses came to 0.7 of that in half precision, and else to 1e-6 of the norm.
# TensorFloat-32 shows in no type, so no type counts as more precise.
COARSE, TENSOR_FLOAT = 2.0, 2.0**-10
UNTRIED = (
    "gpq cannot read examples to look at the loss, and training continues ({}: {}). gpq check "
    "shows whether micro-batches and several GPUs train the same"
)

Batches = List[List[int]]  # places of examples in the trial


def dealings(count: int, most: int, group: int = 0) -> Tuple[Batches, Batches]:
    """Two ways to deal examples to batches of at most `most`: neighbours to as few as possible, and
    others to at least PARTS. With a `group` of batch norm, deal at least two whole ones."""
    if group:
        few, many = dealings(count // group, most // group)
        return _expanded(few, group), _expanded(many, group)
    places, sizes = iter(range(count)), split_evenly(count, ceil_div(count, most))
    neighbours = [[next(places) for _ in range(size)] for size in sizes]
    parts = min(max(PARTS, len(neighbours)), count)
    return neighbours, [list(range(first, count, parts)) for first in range(parts)]


def _expanded(batches: Batches, group: int) -> Batches:
    """From numbers of groups to places of examples."""
    rows = [[number * group + row for number in batch for row in range(group)] for batch in batches]
    return [by_row(places, group) for places in rows]


class Dealer:
    """A collate_fn that makes batches of the same examples. `batches`: their places. Returns them,
    and whether none drew a random number for a batch as a whole."""

    def __init__(self, collate: Any, batches: Batches) -> None:
        self._collate, self._batches = collate or default_collate, batches

    def __call__(self, examples: Any) -> Tuple[List[Any], bool]:
        if not isinstance(examples, (list, tuple)):
            return [], False  # the data set makes batches itself
        keyed, results, is_plain = Keyed(), [], True
        for places in self._batches:
            keyed.begin(0, 0, places)
            results.append(self._collate([copy.deepcopy(examples[place]) for place in places]))
            is_plain &= not keyed.end()
        return results, is_plain


class Trial:
    """One per loader, and one trial an attempt. `weight`: of the current batch. is_over: it was
    made."""

    def __init__(self, engine: "Engine", dataset: Any, options: Dict[str, Any]) -> None:
        """`options`: of the script's DataLoader."""
        self.weight = 0.0
        self._engine, self._dataset, self._options = engine, dataset, options
        self.is_over = self._is_decided = False
        self._passes = 0  # backward calls in the current batch
        self._sketch = Sketcher()
        self._projections = torch.zeros(())  # of the gradients of the current batch
        self._size = 0.0  # the largest norm of the gradient of a batch
        self._epsilon = TENSOR_FLOAT  # of the coarsest type
        self._earlier: List[Tuple[torch.nn.Parameter, Any]] = []  # gradients before a batch

    def is_due(self) -> bool:
        """Asked between two steps. Steps in pieces have shown other habits by then. The same on
        every replica."""
        engine, loop, watch = self._engine, self._engine.loop, self._engine.boundaries.watch
        if engine.is_cleared or loop is None or watch is None or watch.is_off:
            return False
        runtime = engine.runtime
        if runtime.finished or runtime.recorder is not None or not runtime.environment.run_dir:
            return False
        is_in_pieces = runtime.replicas > 1 or loop.has_cut
        is_allowed = is_in_pieces and engine.shape.may_cut and not internals.is_compiled()
        return is_allowed and bool(self._indices())

    def batches(self) -> Iterator[Any]:
        """What the loop gets. Collective. Reports what comes out."""
        self.is_over = True
        engine = self._engine
        engine.shape.agree()  # on what the step before showed
        indices = self._indices() if engine.shape.may_cut else []
        if not indices:
            return
        most, group = engine.shape.configuration[0], engine.norms.groups.size
        ways = dealings(len(indices), most, group)
        batches, self._is_decided = self._fetch(indices, [*ways[0], *ways[1]])
        keyed, means, waiting = Keyed(), [], iter(batches)
        variables = Variables(sys._getframe(2))  # of the loop: the loader is between it and this
        for way in ways:
            total, weight = torch.zeros(()), 0.0
            for places, batch in zip(way, waiting):
                with self._without_trace(keyed, places):
                    yield batch
                total, weight = total + self.weight * self._projections, weight + self.weight
                self._is_decided &= self._passes == 1
            means.append(total / weight)
        variables.restore()
        if self._is_decided:
            distance = float((means[0] - means[1]).square().mean(dim=1).sum().sqrt())
            # More than rounding? Never if a gradient is not finite.
            if distance > COARSE * self._epsilon * self._size:
                engine.lose("mean")
        engine.shape.agree()

    def backward_begins(self) -> None:
        """Told by the loop."""
        self._passes += 1
        if self._passes == 1:
            parameters = self._engine.training_loop().parameters()
            self._earlier = [(item, item.grad) for item in parameters]
            for item in parameters:
                item.grad = None

    def backward_ends(self) -> None:
        rows, squares = [], 0.0
        for item, _ in self._earlier:
            fingerprint: List[Any] = [0.0] * (COUNT + 2)
            if item.grad is not None and item.grad.layout == torch.strided:
                fingerprint = self._sketch(item.grad)
            if fingerprint == [None]:
                fingerprint = [math.nan] * (COUNT + 2)
            squares += fingerprint[0] ** 2
            rows.append(fingerprint[2:])
        self._projections = torch.tensor(rows, dtype=torch.float64)
        self._size = max(self._size, math.sqrt(squares))

    def _indices(self) -> List[int]:
        """Of this replica's examples: as many as half of its next step if they fit at once. None if
        the epoch has too few left."""
        data, replicas = self._engine.shape.data, self._engine.runtime.replicas
        assert data is not None
        sampler, configuration = data.sampler, data.sampler.configuration
        most = configuration.atomic_batch
        count = max(FEW, min(configuration.total // replicas // 2, most))
        if sampler.group:
            count = max(2, count // sampler.group) * sampler.group
            if most < 2 * sampler.group:
                return []  # groups come one by one in any way
        begin = sampler.cursor.consumed
        if most < FEWEST or begin + replicas * count > sampler.size:
            return []
        begin += sampler.rank * count
        indices: List[int] = sampler.order()[begin : begin + count].tolist()
        return indices

    def _fetch(self, indices: List[int], batches: Batches) -> Tuple[List[Any], bool]:
        """The batches, and whether they are the same examples in any case."""
        options = {**reading_options(self._options), "timeout": 0}
        options["collate_fn"] = Dealer(self._options.get("collate_fn"), batches)
        options["generator"] = torch.Generator()  # the loader draws from no other
        data: Any = DataLoader(self._dataset, batch_sampler=[indices], **options)
        try:
            with fixed_seed(0):
                result: Tuple[List[Any], bool] = next(iter(data))
        except Exception as error:
            self._engine.runtime.notice(UNTRIED.format(type(error).__name__, error))
            return [], False
        return result

    @contextlib.contextmanager
    def _without_trace(self, keyed: Keyed, places: List[int]) -> Iterator[None]:
        """Around a body of the loop."""
        loop = self._engine.training_loop()
        self.weight, self._passes, self._earlier = float(len(places)), 0, []
        keyed.begin(0, 0, places)
        undo, left_early = Undo(), True
        try:
            with undo:
                loop.begin_trial(self, Micro(0, False, True, 1.0, places, places))
                yield
            left_early = False
        finally:
            loop.end_trial(left_early=left_early)
            self._is_decided &= not keyed.end()
            undo.restore()
            if any(map(undo.has_restored, loop.parameters())):
                self._engine.lose("hand-step")
            self._epsilon = max(self._epsilon, undo.epsilon)
            for item, gradient in self._earlier:
                item.grad = gradient


class Undo(internals.TorchDispatchMode):
    """Inside, a tensor that is older than the mode is copied to the host before the first write to
    it. `restore` puts the copies back.

    epsilon: of the coarsest type that was computed in.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.epsilon = 0.0
        self._own: Set[int] = set()  # addresses of the storages that were made inside
        # A tensor over each storage that was written to, and its bytes before that.
        self._kept: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}

    def restore(self) -> None:
        """After the mode has ended."""
        for tensor, content in self._kept.values():
            tensor.copy_(content)

    def has_restored(self, tensor: torch.Tensor) -> bool:
        return _address(tensor) in self._kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = internals.schema_of(func)
        if schema is None:  # an operator of other operators, which are seen themselves
            return func(*args, **kwargs)
        for place, argument in enumerate(schema.arguments):
            alias = argument.alias_info
            if alias is not None and alias.is_write:
                value = args[place] if args[place:] else kwargs.get(argument.name)
                for tensor in _tensors(value):
                    number = _address(tensor)
                    if number not in self._own and number not in self._kept:
                        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                        whole.set_(tensor.untyped_storage())
                        self._kept[number] = whole, whole.to("cpu", copy=True)
        result = func(*args, **kwargs)
        results = result if len(schema.returns) > 1 else (result,)
        for output, value in zip(schema.returns, results):
            for tensor in _tensors(value):
                if tensor.is_floating_point():
                    self.epsilon = max(self.epsilon, torch.finfo(tensor.dtype).eps)
                if output.alias_info is None:
                    self._own.add(_address(tensor))
        return result


class Variables:
    """Of the function that runs a loop, and of generators between it and the loader. `restore`
    gives them the values that they have now. What is in an object or a list stays."""

    def __init__(self, frame: Any) -> None:
        """`frame`: of the function that asks the loader for a batch."""
        self._values: List[Tuple[Any, Dict[str, Any]]] = []
        while frame is not None:
            self._values.append((frame, dict(frame.f_locals)))
            is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
            frame = frame.f_back if is_generator else None

    def restore(self) -> None:
        for frame, values in self._values:
            frame.f_locals.update(values)
            # Before Python 3.13 these are a copy.
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those with memory of their own, in a value or a list."""
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, torch.Tensor) and item.layout == torch.strided:
            yield item


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
