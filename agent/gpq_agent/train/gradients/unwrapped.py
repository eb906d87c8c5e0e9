"""Finds what DistributedDataParallel does not reduce: parameters of a criterion, or unfrozen
later."""

from typing import List, Optional, Sequence, Set

from .ddp_buckets import DdpBuckets
from .marks import Parameter


class OutsideParameters:
    """The parameters that no wrapped model reduces. Every step asks, so it remembers the answer."""

    def __init__(self, buckets: Sequence[DdpBuckets]) -> None:
        self._buckets = buckets
        self._inside: Optional[Set[Parameter]] = None
        self._is_final = False  # it is certain what the wrapped models reduce
        self._all: List[Parameter] = []  # the list of the last call
        self._strangers: List[Parameter] = []  # of it

    def among(self, parameters: List[Parameter]) -> List[Parameter]:
        """The parameters of the list that may have a gradient now."""
        is_new = self._all is not parameters  # it is another list if an optimizer's has changed
        if self._is_final and not is_new and not self._strangers:
            return self._strangers
        inside = self._inside
        if inside is None or any(not buckets.knows_reach for buckets in self._buckets):
            inside = self._inside = set().union(*(buckets.reach for buckets in self._buckets))
            is_new = True
            self._is_final = all(buckets.knows_reach for buckets in self._buckets)
        if is_new:
            self._all = parameters
            self._strangers = [item for item in parameters if item not in inside]
        return [item for item in self._strangers if item.requires_grad]
