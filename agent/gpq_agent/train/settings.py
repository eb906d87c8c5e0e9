"""What the groups of optimizers are set to, and whether that has changed: rates, and a momentum or a decay that follows a count.

Asked several times a step, so plain numbers are compared all at once.
"""

from typing import Any, List, Sequence

import torch

PLAIN = (float, int, bool, str, type(None))


class Settings:
    """Of all groups of these optimizers. Nothing has changed before the first `note`."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self._known: List[_Group] = []

    def note(self) -> None:
        """They are as they should be."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        if len(groups) != len(self._known) or not all(map(_Group.note, self._known, groups)):
            self._known = [_Group(group) for group in groups]

    def changed(self) -> bool:
        """Is a group that was noted set otherwise since? One that was added is not asked."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return len(groups) < len(self._known) or any(map(_Group.changed, self._known, groups))


class _Group:
    def __init__(self, group: Any) -> None:
        names = [name for name in group if name != "params"]
        self._size = len(group)
        self._plain = [name for name in names if _is_plain(group[name])]
        self._others = [name for name in names if name not in self._plain]
        self._values = list(map(group.get, self._plain))
        self._types = list(map(type, self._values))
        self._identities = self._identify(group)

    def note(self, group: Any) -> bool:
        """False: it has other settings than before, or of other types."""
        values = list(map(group.get, self._plain))
        if len(group) != self._size or list(map(type, values)) != self._types:
            return False
        self._values = values
        self._identities = self._identify(group)
        return True

    def changed(self, group: Any) -> bool:
        values = list(map(group.get, self._plain))
        # A tensor is not compared: that would wait for the device, and some have no answer.
        if list(map(type, values)) != self._types and not all(map(_is_plain, values)):
            return True
        if values != self._values:
            return True
        return len(group) != self._size or self._identify(group) != self._identities

    def _identify(self, group: Any) -> List[Any]:
        return [_identity(group.get(name)) for name in self._others] if self._others else []


def _identity(value: Any) -> Any:
    """Of a tensor its version: a look at its value would wait for the device."""
    if isinstance(value, torch.Tensor):
        return (id(value), value._version)
    if isinstance(value, tuple):
        return tuple(map(_identity, value))
    return value if type(value) in PLAIN else id(value)


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(type(each) in PLAIN for each in value))
