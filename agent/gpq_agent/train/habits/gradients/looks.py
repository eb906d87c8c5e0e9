"""How often the graph of a loss is read: it costs a wait for the device."""

from typing import Set

FIRST = 8  # micro-batches of an attempt
MOST_SIZES = 8


class Looks:
    """The first micro-batches, and one of each size: the tail of an epoch tells most."""

    def __init__(self) -> None:
        self._remaining = FIRST
        self._sizes: Set[int] = set()

    def due(self, examples: int) -> bool:
        """Is a look at a micro-batch of so many examples worth its while?"""
        if self._remaining > 0:
            return True
        return examples not in self._sizes and len(self._sizes) < MOST_SIZES

    def count(self, examples: int) -> None:
        """One was looked at."""
        self._remaining -= 1
        self._sizes.add(examples)

    def expect(self) -> None:
        """Look at the next one too, however many there were: steps come in pieces from here on."""
        self._remaining = max(self._remaining, 1)
