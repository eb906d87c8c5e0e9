"""Policies by name. A policy is imported only when it is needed.

gpq's own are in BUILT_IN. Others, such as those of `gpq.lab`, are entry points of the group
`gpq.policies`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from gpq import extensions
from gpq.core.model.policy import Policy
from gpq.errors import UsageError

GROUP = "gpq.policies"
BUILT_IN = {  # name -> module and class
    "goodput": "gpq.policies.goodput.policy:Goodput",
    "srtf": "gpq.policies.srtf:Srtf",
    "backfill": "gpq.policies.backfill:Backfill",
    "fifo": "gpq.policies.fifo:Fifo",
}


class Policies(Mapping[str, type[Policy]]):
    """The class of each policy by name, gpq's own first. `in` imports none."""

    def __getitem__(self, name: str) -> type[Policy]:
        if name in BUILT_IN:
            module, _, attribute = BUILT_IN[name].partition(":")
            built_in: type[Policy] = getattr(import_module(module), attribute)
            return built_in
        kind = extensions.load(GROUP, name)
        if not isinstance(kind, type) or not issubclass(kind, Policy):
            raise extensions.broken(
                GROUP, name, "it is not a class of gpq.core.model.policy.Policy"
            )
        return kind

    def __contains__(self, name: object) -> bool:
        return name in BUILT_IN or name in extensions.entries(GROUP)

    def __iter__(self) -> Iterator[str]:
        yield from BUILT_IN
        yield from (name for name in extensions.entries(GROUP) if name not in BUILT_IN)

    def __len__(self) -> int:
        return len(list(iter(self)))


POLICIES = Policies()


def entry(name: str) -> type[Policy]:
    """The class of a policy. Raises UsageError for an unknown name and lists the known ones."""
    if name not in POLICIES:
        raise UsageError(f"unknown policy `{name}`", f"known policies: {', '.join(POLICIES)}")
    return POLICIES[name]


def policy(name: str) -> Policy:
    """A new instance. Raises UsageError for an unknown name."""
    return entry(name)()
