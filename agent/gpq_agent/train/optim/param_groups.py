"""Watches the settings of optimizer groups, and whether the script changed them: learning rates, or
a momentum or decay that follows a count.

The gate asks several times per step, so a group is compared as a whole.
"""

from itertools import chain
from operator import attrgetter, is_
from typing import Any, Dict, List, Sequence

import torch

from gpq_agent.train.internals import version_of

PLAIN = (float, int, bool, str, type(None))

_groups_of = attrgetter("param_groups")


class ParamGroups:
    """The settings of all groups. Nothing counts as changed before the first `note`."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self._only = optimizers[0] if len(optimizers) == 1 else None
        self._snapshots: List[_Snapshot] = []

    def count(self) -> int:
        """How many there are."""
        return len(self._groups())

    def note(self) -> None:
        """The settings are as they should be."""
        groups = self._groups()
        before = self._snapshots
        if len(groups) != len(before) or not all(map(_Snapshot.note, before, groups)):
            self._snapshots = [_Snapshot(group) for group in groups]

    def changed(self) -> bool:
        """Has a group changed since the last `note`? A newer group does not count."""
        groups, before = self._groups(), self._snapshots
        return len(groups) < len(before) or any(map(_Snapshot.changed, before, groups))

    def _groups(self) -> List[Any]:
        if self._only is not None:
            return self._only.param_groups  # type: ignore[no-any-return]
        return list(chain.from_iterable(map(_groups_of, self._optimizers)))


class _Snapshot:
    """One group: its settings, and what shows changes of tensors and other objects."""

    def __init__(self, group: Any) -> None:
        self._values: Dict[str, Any] = dict(group)
        self._types = list(map(type, group.values()))
        settings = [item for item in group.items() if item[0] != "params"]
        self._object_names = [name for name, value in settings if not _is_plain(value)]
        self._identities = self._identify(group)

    def note(self, group: Any) -> bool:
        """False if its settings differ, or their types."""
        if list(map(type, group.values())) != self._types or self._values.keys() != group.keys():
            return False
        self._values = dict(group)
        if self._object_names:
            self._identities = self._identify(group)
        return True

    def changed(self, group: Any) -> bool:
        if self._object_names and self._identify(group) != self._identities:
            return True
        before = self._values
        if len(group) == len(before) and all(map(is_, group.values(), before.values())):
            return False  # almost always the same objects
        if before.keys() != group.keys():
            return True
        before["params"] = group["params"]
        return any(self._differs(name, group[name]) for name in group)

    def _differs(self, name: str, value: Any) -> bool:
        """Did this setting change? A number of another type may be equal."""
        before = self._values[name]
        # `!=` on tensors would wait for the device, and has no answer for several elements.
        return value is not before and bool(_identity(value) != _identity(before))

    def _identify(self, group: Any) -> List[Any]:
        return [_identity(group.get(name)) for name in self._object_names]


def _identity(value: Any) -> Any:
    """The version of a tensor, and the value of a number on the CPU. Elsewhere reading the value
    would wait for the device."""
    if isinstance(value, torch.Tensor):
        is_number = value.device.type == "cpu" and value.numel() == 1
        return (id(value), version_of(value), value.item() if is_number else None)
    if isinstance(value, tuple):
        return tuple(map(_identity, value))
    return value if type(value) in PLAIN else id(value)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(item) in PLAIN for item in value)
    return type(value) in PLAIN
