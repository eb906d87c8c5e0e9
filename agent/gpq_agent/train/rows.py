"""Which examples of a batch a loop picks by their places in it: the first ten, every second, the halves.

Of a part of the batch these are others. Knows tensors by the memory that they are in, and reads no values.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

import torch

# Of rows that were picked apart, these make something of one with another.
MIXES = (
    "add", "sub", "rsub", "mul", "div", "maximum", "minimum", "lerp", "addcmul", "mm", "bmm", "where",
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "_cdist_forward",
)  # fmt: skip


class Pick(NamedTuple):
    """Rows of a batch."""

    begin: int
    every: int
    number: int


class Rows:
    """Of one body, which was given `examples` of a step of `whole`; 0: of nobody knows what."""

    def __init__(self, examples: int, whole: int) -> None:
        self._examples = examples
        self._whole = whole
        self._lengths: Dict[int, int] = {}  # of memory that holds a row for each example: the length of a row
        self._read: Dict[int, Set[int]] = {}  # of that which was read in parts: the rows that were
        self._whole_read: Set[int] = set()
        self._made: Dict[int, Pick] = {}  # of memory that was computed from one pick, row by row
        self._beyond: List[torch.Tensor] = []  # the first so many, where there are fewer, and more in the whole

    @property
    def left_out(self) -> bool:
        """Were rows never read of a batch of which others were picked?"""
        parts = (rows for memory, rows in self._read.items() if memory not in self._whole_read)
        return any(len(rows) < self._examples for rows in parts)

    def note(self, memory: int, item: torch.Tensor) -> None:
        """This tensor has a row for each example."""
        if item.is_contiguous() and _is_whole(item) and item.numel():
            self._lengths.setdefault(memory, item.stride(0))

    def sliced(
        self, memory: int, result: Any, item: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None
    ) -> None:
        """`item`, in this memory, was cut along `dim`."""
        if dim not in (0, -item.dim()) or not isinstance(end, int) or memory not in self._lengths:
            return
        if item.shape[0] == self._examples < end < self._whole:
            self._beyond.append(result)

    def read(self, memories: Sequence[int], items: Sequence[torch.Tensor]) -> List[Optional[Pick]]:
        """These tensors, in these places, are read. What of each was picked, None: nothing."""
        return [self._pick(memory, item) for memory, item in zip(memories, items)]

    def mixes(self, name: str, picks: Sequence[Optional[Pick]]) -> bool:
        """Does an operation make something of rows that were picked apart?"""
        return name in MIXES and len({pick for pick in picks if pick is not None}) > 1

    def made(self, memory: int, item: torch.Tensor, picks: Sequence[Optional[Pick]]) -> None:
        """This was computed from what was read."""
        found = {pick for pick in picks if pick is not None}
        pick = found.pop() if len(found) == 1 else None
        if pick is not None and item.dim() and item.shape[0] == pick.number:
            self._made[memory] = pick
        else:
            self._made.pop(memory, None)

    def _pick(self, memory: int, item: torch.Tensor) -> Optional[Pick]:
        if any(item is each for each in self._beyond):
            self._read.setdefault(0, set())
            return Pick(0, 1, item.shape[0])
        length = self._lengths.get(memory)
        if length is None or not item.dim() or not item.numel() or item.stride(0) % length:
            return self._made.get(memory)
        pick = Pick(item.storage_offset() // length, max(item.stride(0) // length, 1), item.shape[0])
        if pick.number >= self._examples:
            self._whole_read.add(memory)
            return None
        rows = range(pick.begin, pick.begin + pick.number * pick.every, pick.every)
        self._read.setdefault(memory, set()).update(rows)
        return pick


def _is_whole(item: torch.Tensor) -> bool:
    """Does it cover the memory that it is in?"""
    return item.numel() * item.element_size() == item.untyped_storage().nbytes()
