"""What installed distributions add to gpq by entry points: policies (group `gpq.policies`) and
commands (group `gpq.commands`). gpq imports them only when they are used."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gpq.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@lru_cache
def entries(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, in the order of their names. It looks into every
    installed distribution, which takes some milliseconds."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in sorted(entry_points(group=group), key=lambda e: e.name)}


def load(group: str, name: str) -> object:
    """The object behind an entry point. Raises UsageError if it cannot be imported, and KeyError if
    there is none of this name."""
    entry = entries(group)[name]
    try:
        return entry.load()
    except Exception as error:  # any code may run in it
        raise broken(group, name, f"{type(error).__name__}: {error}") from None


def broken(group: str, name: str, reason: str) -> UsageError:
    """The error to raise about an entry point that cannot be used."""
    entry = entries(group)[name]
    owner = entry.dist.name if entry.dist is not None else entry.module
    return UsageError(
        f"cannot use `{name}` of the package {owner}: {' '.join(reason.split())}",
        f"correct {entry.value} there, or uninstall {owner}",
    )
