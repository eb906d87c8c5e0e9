"""What the groups of optimizers are set to, and whether that has changed: rates, and a momentum or a decay that follows a count.

Asked several times a step, so a group is compared all at once.
"""

from itertools import chain
from operator import attrgetter
from typing import Any, Dict, List, Sequence

import torch

from .internals import version_of

PLAIN = (float, int, bool, str, type(None))

_groups_of = attrgetter("param_groups")


class ParamGroups:
    """Of all groups of these optimizers. Nothing has changed before the first `note`."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self._known: List[_Group] = []

    def note(self) -> None:
        """They are as they should be."""
        groups = self._groups()
        if len(groups) != len(self._known) or not all(map(_Group.note, self._known, groups)):
            self._known = [_Group(group) for group in groups]

    def changed(self) -> bool:
        """Is a group that was noted set otherwise since? One that was added is not asked."""
        groups = self._groups()
        return len(groups) < len(self._known) or any(map(_Group.changed, self._known, groups))

    def _groups(self) -> List[Any]:
        return list(chain.from_iterable(map(_groups_of, self._optimizers)))


class _Group:
    def __init__(self, group: Any) -> None:
        self._values: Dict[str, Any] = dict(group)
        self._types = list(map(type, group.values()))
        self._others = [name for name, value in group.items() if name != "params" and not _is_plain(value)]
        self._identities = self._identify(group)

    def note(self, group: Any) -> bool:
        """False: it has other settings than before, or of other types."""
        if list(map(type, group.values())) != self._types or self._values.keys() != group.keys():
            return False
        self._values = dict(group)
        if self._others:
            self._identities = self._identify(group)
        return True

    def changed(self, group: Any) -> bool:
        # A tensor is not compared: that would wait for the device, and some have no answer. What is the same object is not.
        if self._others and self._identify(group) != self._identities:
            return True
        self._values["params"] = group["params"]
        if list(map(type, group.values())) == self._types:
            return bool(self._values != group)
        return self._values.keys() != group.keys() or any(self._differs(name, group[name]) for name in group)

    def _differs(self, name: str, value: Any) -> bool:
        """Is this one not as it was? A number of another type may be."""
        known = self._values[name]
        return value is not known and (not _is_plain(value) or not _is_plain(known) or value != known)

    def _identify(self, group: Any) -> List[Any]:
        return [_identity(group.get(name)) for name in self._others]


def _identity(value: Any) -> Any:
    """Of a tensor its version: a look at its value would wait for the device, where that is not the CPU."""
    if isinstance(value, torch.Tensor):
        known = value.item() if value.device.type == "cpu" and value.numel() == 1 else None
        return (id(value), version_of(value), known)
    if isinstance(value, tuple):
        return tuple(map(_identity, value))
    return value if type(value) in PLAIN else id(value)


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(type(each) in PLAIN for each in value))
