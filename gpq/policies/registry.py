"""Policies by name, with one sentence each. A policy is imported when it is asked for, not
before."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from gpq.core.model.policy import Policy
from gpq.errors import UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """`gang`: every job gets exactly the GPUs that it asked for. `own_batch`: the policy knows
    nothing of statistical efficiency, so a simulated job keeps the batch that it asked for; live,
    gpq goes on choosing batches. `by_loss`: it reads loss curves, so a simulated job logs its loss
    every round."""

    module: str
    attribute: str
    sentence: str
    gang: bool = False
    own_batch: bool = False
    by_loss: bool = False


POLICIES: dict[str, Entry] = {
    "goodput": Entry(
        "gpq.policies.goodput.policy",
        "Goodput",
        "most goodput for all, in fair shares, found exactly",
    ),
    "pollux": Entry(
        "gpq.policies.pollux.policy",
        "Pollux",
        "the genetic search of Pollux (OSDI'21) for the fairest goodput",
    ),
    "sia": Entry(
        "gpq.policies.sia",
        "Sia",
        "normalised goodput over GPU types as an integer programme (Sia, SOSP'23)",
    ),
    "optimus": Entry(
        "gpq.policies.optimus",
        "Optimus",
        "the next GPU to the job it brings nearest to its end",
        own_batch=True,
    ),
    "slaq": Entry(
        "gpq.policies.slaq",
        "Slaq",
        "GPUs to the jobs whose loss falls fastest (SoCC'17)",
        own_batch=True,
        by_loss=True,
    ),
    "tiresias": Entry(
        "gpq.policies.tiresias",
        "Tiresias",
        "least attained service first, in two queues (NSDI'19)",
        gang=True,
        own_batch=True,
    ),
    "themis": Entry(
        "gpq.policies.themis",
        "Themis",
        "the worst finish-time fairness first (NSDI'20)",
        gang=True,
        own_batch=True,
    ),
    "gavel": Entry(
        "gpq.policies.gavel.policy",
        "Gavel",
        "most effective throughput over GPU types (OSDI'20)",
        gang=True,
        own_batch=True,
    ),
    "gavel-max-min": Entry(
        "gpq.policies.gavel.policy",
        "GavelMaxMin",
        "Gavel: the least served job is served best",
        gang=True,
        own_batch=True,
    ),
    "gavel-ftf": Entry(
        "gpq.policies.gavel.policy",
        "GavelFtf",
        "Gavel: the worst finish-time fairness is least",
        gang=True,
        own_batch=True,
    ),
    "gavel-makespan": Entry(
        "gpq.policies.gavel.policy",
        "GavelMakespan",
        "Gavel: the last job ends soonest",
        gang=True,
        own_batch=True,
    ),
    "srtf": Entry(
        "gpq.policies.srtf", "Srtf", "shortest remaining time first", gang=True, own_batch=True
    ),
    "backfill": Entry(
        "gpq.policies.backfill",
        "Backfill",
        "first come, first served; gaps filled from behind",
        gang=True,
        own_batch=True,
    ),
    "fifo": Entry(
        "gpq.policies.fifo",
        "Fifo",
        "first come, first served, no overtaking",
        gang=True,
        own_batch=True,
    ),
}


def entry(name: str) -> Entry:
    """Raises UsageError for a name that is none, listing those that are."""
    try:
        return POLICIES[name]
    except KeyError:
        raise UsageError(f"unknown policy `{name}`", f"known are {', '.join(POLICIES)}") from None


def policy(name: str) -> Policy:
    """A new instance. Raises UsageError for a name that is none."""
    registration = entry(name)
    instance: Policy = getattr(import_module(registration.module), registration.attribute)()
    return instance
