"""Only for `gpq check`: random numbers of a loop body belong to examples, wherever those are in a
batch that is cut.

The rows of an example come from generators seeded by step, draw and example. Draws without rows of
examples (a permutation, a scalar) are the same in every part of a step, on every replica. Outside
bodies nothing changes.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from gpq_agent.train import internals
from gpq_agent.train.process.rng import generator_states, set_generators, stable_seed
from gpq_agent.train.prove.determinism import (
    generators,
    has_moved,
    put_back_torch,
    seed,
    seed_torch,
    torch_states,
)

NUMBERS = 1 << 62  # the name that tells draws apart
# Parts of names of draws whose parts are not draws: they return more than rows, or mix them.
WHOLE = ("attention", "randperm", "rnn", "lstm", "gru")
BY_ROW = ("multinomial", "_sample_dirichlet")  # a tensor with one dimension is one example

Shape = Tuple[int, ...]
Place = Tuple[Shape, int]  # a shape with rows of examples, and their dimension


class Keyed(internals.TorchDispatchMode):
    """One per process. `begin` and `end` enclose a body. The next `begin` ends a body that was left
    without `end`."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside = False  # on the stack of modes
        # Of the body, in the order of their rows. Without any, nothing is keyed.
        self._examples: List[int] = []
        self._outside: List[Any] = []  # states of the generators before the body, empty outside
        self._begun: List[Any] = []  # their states when it began
        self._draws, self._luck = 0, False
        # By the number of a draw: how many examples the first body with that draw had, and the
        # shape there.
        self._first: Dict[int, Tuple[int, Shape]] = {}

    def begin(self, epoch: int, start: int, examples: Sequence[int]) -> None:
        """Part of the step that starts at `start`. `examples`: of its rows, none if they do not
        count."""
        self.end()
        self._outside = generator_states()
        seed(stable_seed(epoch, start))
        self._begun = generators()
        self._examples, self._draws, self._luck = list(examples), 0, False
        if not self._inside and not internals.is_compiled():
            self._inside = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> bool:
        """Did the body draw something that belongs to no single example?"""
        if not self._outside:
            return False
        # A mode advances torch's CPU generator by what it tells draws apart by.
        watched = int(self._inside)
        has_drawn = self._luck or has_moved(self._begun[watched:], generators()[watched:])
        luck = bool(self._examples) and has_drawn
        set_generators(self._outside)
        self._outside, self._examples = [], []
        # A mode that the script has entered since, and not left, would be mistaken for this one.
        if self._inside and internals.current_dispatch_mode() is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._inside = False
        return luck

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_draw = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        if not self._examples or not is_draw:
            return func(*args, **kwargs)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator) and not internals.is_torchs(value):
                return func(*args, **kwargs)
        names = [argument.name for argument in internals.schema_of(func).arguments]
        arguments = {**dict(zip(names, args)), **kwargs}
        place = self._place(func.overloadpacket.__name__, arguments)
        # The generators advance by one number. Restoring them, as checkpointing does, repeats the
        # draw.
        number, states = int(torch.randint(NUMBERS, (), device="cpu")), torch_states()
        if place is not None:
            result = self._by_example(func, len(args), arguments, place, number)
        else:
            seed_torch(number)
            before = torch_states()
            result = func(*args, **kwargs)
            self._luck = self._luck or has_moved(before, torch_states())
        put_back_torch(states)
        return result

    def _place(self, name: str, arguments: Dict[str, Any]) -> Optional[Place]:
        """The dimension of the rows of examples, or None if the draw has none."""
        self._draws += 1
        shapes: List[Shape] = []  # of what may have rows of examples. A parameter has none
        for key, value in arguments.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                shapes.append(tuple(value.shape))
            elif key == "size":
                shapes.append(tuple(value))
        shapes = [shape for shape in shapes if shape and 0 not in shape]
        if not shapes or any(word in name for word in WHOLE):
            return None
        with_rows = [shape for shape in shapes if self._dimension(shape) is not None]
        shape = with_rows[0] if with_rows else shapes[0]
        now = len(self._examples)
        before, first = self._first.setdefault(self._draws, (now, shape))
        dimension = self._dimension(shape)
        if now != before and len(first) == len(shape):  # it is the dimension of the examples
            dimensions = range(2 if len(shape) > 2 else 1)
            fitting = [place for place in dimensions if shape[place] * before == first[place] * now]
            dimension = fitting[0] if fitting else None
        is_one_row = name in BY_ROW and len(shape) == 1
        is_elsewhere = "out" in arguments and tuple(arguments["out"].shape) != shape
        if is_one_row or is_elsewhere or dimension is None:
            return None
        return shape, dimension

    def _dimension(self, shape: Shape) -> Optional[int]:
        """The first, perhaps several rows of each. Sequences may have them after the time
        dimension."""
        count = len(self._examples)
        if len(shape) > 2 and shape[1] == count != shape[0]:
            return 1
        return 0 if shape[0] % count == 0 else None

    def _by_example(
        self, func: Any, positional: int, arguments: Dict[str, Any], place: Place, number: int
    ) -> Any:
        schema = internals.schema_of(func)
        written_names = [
            argument.name
            for argument in schema.arguments
            if argument.name in arguments and getattr(argument.alias_info, "is_write", False)
        ]
        shape, dimension = place
        rows = shape[dimension] // len(self._examples)
        results = []
        for example_place, example in enumerate(self._examples):
            seed_torch(stable_seed(number, example))
            parts = dict(arguments)
            own = dict(arguments)
            for name, value in arguments.items():
                if name == "size":
                    own[name] = [*value[:dimension], rows, *value[dimension + 1 :]]
                elif isinstance(value, torch.Tensor):
                    has_rows = value.dim() == len(shape)
                    if has_rows and value.shape[dimension] == shape[dimension]:
                        parts[name] = value.narrow(dimension, example_place * rows, rows)
                    # Drawn values follow the order in memory, which differs if a batch has one
                    # example.
                    own[name] = parts[name].contiguous()
            items = list(own.items())
            positionals = [value for _, value in items[:positional]]
            results.append(func(*positionals, **dict(items[positional:])))
            for name in written_names:
                parts[name].copy_(own[name])
        if any(output.alias_info is not None for output in schema.returns):
            if len(written_names) == 1:
                return arguments[written_names[0]]
            return tuple(arguments[name] for name in written_names)
        return _join(results, dimension)


def _join(results: Sequence[Any], dimension: int) -> Any:
    if isinstance(results[0], torch.Tensor):
        return torch.cat(list(results), dimension)
    return tuple(_join(part, dimension) for part in zip(*results))
