"""Policies by name, with one sentence each. A policy is imported only when it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from gpq.core.model.policy import Policy
from gpq.errors import UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy.

    `gang`: every job gets exactly the GPUs that it asked for. `own_batch`: the policy ignores
    statistical efficiency, so a simulated job keeps its own batch size. In the daemon gpq still
    tunes batch sizes. `by_loss`: the policy reads loss curves, so a simulated job logs its loss
    every round.
    """

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
        "the most goodput for everybody in fair shares, solved exactly",
    ),
    "pollux": Entry(
        "gpq.lab.policies.pollux",
        "Pollux",
        "Pollux (OSDI'21): a genetic search for fair goodput",
    ),
    "sia": Entry(
        "gpq.lab.policies.sia",
        "Sia",
        "Sia (SOSP'23): an integer programme over GPU types, by normalised goodput",
    ),
    "optimus": Entry(
        "gpq.lab.policies.optimus",
        "Optimus",
        "Optimus (EuroSys'18): the next GPU goes where it saves the most time",
        own_batch=True,
    ),
    "slaq": Entry(
        "gpq.lab.policies.slaq",
        "Slaq",
        "SLAQ (SoCC'17): GPUs go to the jobs whose loss falls fastest",
        own_batch=True,
        by_loss=True,
    ),
    "tiresias": Entry(
        "gpq.lab.policies.tiresias",
        "Tiresias",
        "Tiresias (NSDI'19): least attained service first, in two queues",
        gang=True,
        own_batch=True,
    ),
    "themis": Entry(
        "gpq.lab.policies.themis",
        "Themis",
        "Themis (NSDI'20): the job with the worst finish-time fairness first",
        gang=True,
        own_batch=True,
    ),
    "gavel": Entry(
        "gpq.lab.policies.gavel",
        "Gavel",
        "Gavel (OSDI'20): the most effective throughput over GPU types",
        gang=True,
        own_batch=True,
    ),
    "gavel-max-min": Entry(
        "gpq.lab.policies.gavel",
        "GavelMaxMin",
        "Gavel: as much as possible for the job that gets least",
        gang=True,
        own_batch=True,
    ),
    "gavel-ftf": Entry(
        "gpq.lab.policies.gavel",
        "GavelFtf",
        "Gavel: the best value for the worst finish-time fairness",
        gang=True,
        own_batch=True,
    ),
    "gavel-makespan": Entry(
        "gpq.lab.policies.gavel",
        "GavelMakespan",
        "Gavel: the earliest end of the last job",
        gang=True,
        own_batch=True,
    ),
    "srtf": Entry(
        "gpq.policies.srtf", "Srtf", "shortest remaining time first", gang=True, own_batch=True
    ),
    "backfill": Entry(
        "gpq.policies.backfill",
        "Backfill",
        "first come, first served, and later jobs fill gaps",
        gang=True,
        own_batch=True,
    ),
    "fifo": Entry(
        "gpq.policies.fifo",
        "Fifo",
        "first come, first served, without overtaking",
        gang=True,
        own_batch=True,
    ),
}


def entry(name: str) -> Entry:
    """Raises UsageError for an unknown name and lists the known ones."""
    try:
        return POLICIES[name]
    except KeyError:
        raise UsageError(
            f"unknown policy `{name}`", f"known policies: {', '.join(POLICIES)}"
        ) from None


def policy(name: str, **arguments: bool) -> Policy:
    """A new instance, made with `arguments`. Raises UsageError for an unknown name."""
    registration = entry(name)
    make = getattr(import_module(registration.module), registration.attribute)
    instance: Policy = make(**arguments)
    return instance
