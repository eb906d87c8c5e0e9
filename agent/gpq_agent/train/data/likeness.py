"""Describes an example by a text and a few numbers.

The description tells apart examples that differ, but ignores rounding. It knows tensors, arrays,
images, numbers, strings, containers, and plain objects of any of these.
"""

import hashlib
import os
from collections.abc import Mapping, Set
from types import ModuleType
from typing import Any, Iterator, List, NamedTuple, Tuple

import torch

# Of the mean absolute value. Rounding, and other versions of a decoder, stay far below it.
TOLERANCE = 1e-3
MOST_ELEMENTS = 1 << 16  # values read from one tensor
MOST_LEAVES = 500  # values read from one example
DEEPEST = 8  # containers within containers
PLAIN = (str, bytes, int, os.PathLike, type(None))
Leaf = Tuple[str, List[float]]  # what must be equal, and four numbers for what rounding may change


class Likeness(NamedTuple):
    """`digest`: of everything that must be equal. `numbers`: four per tensor that rounding may
    change."""

    digest: str
    numbers: List[float]

    def resembles(self, likeness: "Likeness") -> bool:
        """Are both the same example, apart from rounding?"""
        if self.digest != likeness.digest or len(self.numbers) != len(likeness.numbers):
            return False
        for start in range(0, len(self.numbers), 4):
            numbers = self.numbers[start : start + 4]
            other_numbers = likeness.numbers[start : start + 4]
            allowance = TOLERANCE * max(numbers[0], other_numbers[0])
            if any(
                abs(number - value) > allowance for number, value in zip(numbers, other_numbers)
            ):
                return False
        return True


def likeness(example: Any) -> Likeness:
    """The likeness of anything that a data set may return."""
    digest = hashlib.blake2b(digest_size=8)
    numbers: List[float] = []
    for number, (text, values) in enumerate(_leaves(example, 0)):
        if number == MOST_LEAVES:
            break
        digest.update(text.encode("utf-8", "replace") + b"\0")
        numbers += values
    return Likeness(digest.hexdigest(), numbers)


def _leaves(value: Any, depth: int) -> Iterator[Leaf]:
    name = type(value).__name__
    if isinstance(value, PLAIN):
        yield "{} {}".format(name, _text(value)), []
    elif isinstance(value, float):
        yield name, _moments(torch.tensor([value]))
    elif isinstance(value, torch.Tensor):
        yield _of_tensor(value.detach())
    elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        yield from _of_array(value, depth)
    elif depth == DEEPEST or isinstance(value, (type, ModuleType)) or callable(value):
        yield name, []
    elif isinstance(value, Mapping):
        yield "{} of {}".format(name, len(value)), []
        for key in sorted(value, key=_text):
            yield _text(key), []
            yield from _leaves(value[key], depth + 1)
    elif isinstance(value, Set):
        yield "{} {}".format(name, sorted(map(_text, value))), []
    elif isinstance(value, (list, tuple)):
        yield from _of_sequence(value, depth)
    else:
        yield name, []
        yield from _leaves(dict(getattr(value, "__dict__", {})), depth + 1)


def _text(value: Any) -> str:
    """Without what changes between processes: object addresses, and the job's folder."""
    if isinstance(value, os.PathLike) or (isinstance(value, str) and value.startswith("/")):
        return os.path.basename(os.fspath(value))
    return repr(value) if isinstance(value, PLAIN) else type(value).__name__


def _of_sequence(value: Any, depth: int) -> Iterator[Leaf]:
    yield "{} of {}".format(type(value).__name__, len(value)), []
    if value and all(type(item) is float for item in value):
        yield "floats", _moments(torch.tensor(value))
    elif all(type(item) is int for item in value):
        yield repr(value), []
    else:
        for item in value:
            yield from _leaves(item, depth + 1)


def _of_array(value: Any, depth: int) -> Iterator[Leaf]:
    import numpy

    array = numpy.asarray(value)
    if array.dtype.kind == "O":
        yield from _of_sequence(array.ravel().tolist(), depth)
    elif array.dtype.kind in "biufc":
        yield _of_tensor(torch.as_tensor(numpy.ascontiguousarray(array)))
    else:
        yield "{} {} {}".format(array.dtype, array.shape, _digest(array.tobytes())), []


def _of_tensor(tensor: torch.Tensor) -> Leaf:
    text = "{} {}".format(tensor.dtype, tuple(tensor.shape))
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    elif tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    flat = tensor.cpu().flatten()
    flat = flat[:: -(-max(len(flat), 1) // MOST_ELEMENTS)]
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    if flat.is_floating_point() or flat.dtype == torch.uint8:
        return text, _moments(flat)
    return "{} {}".format(text, _digest(flat.contiguous().numpy().tobytes())), []


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _moments(flat: torch.Tensor) -> List[float]:
    """Mean absolute value, mean, and two projections. [] if there is nothing."""
    if not len(flat):
        return []
    values = flat.double().nan_to_num(nan=0.5, posinf=2.0, neginf=-2.0)
    places = torch.arange(len(values), dtype=torch.float64)
    cosines, sines = torch.cos(places + 1), torch.sin(places * places + 2)
    rows = (values.abs(), values, values * cosines, values * sines)
    return [float(row.mean()) for row in rows]
