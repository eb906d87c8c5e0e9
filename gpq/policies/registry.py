"""Policies by name. A policy is imported when it is asked for, not before."""

from __future__ import annotations

from importlib import import_module

from gpq.core.policy import Policy
from gpq.errors import UsageError

POLICIES = {
    "goodput": ("gpq.policies.goodput", "Goodput"),
    "fifo": ("gpq.policies.fifo", "Fifo"),
}


def policy(name: str) -> Policy:
    """Raises UsageError for a name that is none, listing those that are."""
    try:
        module, attribute = POLICIES[name]
    except KeyError:
        raise UsageError(f"unknown policy `{name}`", f"known are {', '.join(POLICIES)}") from None
    made: Policy = getattr(import_module(module), attribute)()
    return made
