"""Names the options of `gpq simulate` that have no effect on the chosen policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from gpq.core.model.snapshot import Config
from gpq.sim.compare.compare import Cluster
from gpq.sim.replay.rules import Rules

# What each policy uses in a simulation, besides the interval: settings of Config by their names,
# `length` (declared), `noise` (of measurements), `priors`. The other policies use an oracle or the
# requested sizes.
HEEDS: dict[str, frozenset[str]] = {
    "goodput": frozenset({
        "fairness_power", "restart_seconds", "hysteresis_seconds", "length", "noise", "priors",
    }),
    "pollux": frozenset({"seed", "noise"}),
    "sia": frozenset({"noise", "priors"}),
    "gavel-ftf": frozenset({"length"}),
}  # fmt: skip
SET_ELSEWHERE = ("interval", "policy", "seed", "events")


def idle(
    policies: Sequence[str],
    rules: Rules,
    clusters: Sequence[Cluster],
    seeds: Sequence[int],
    *,
    known_length: bool | None,
    priors: bool | None,
) -> str:
    """One line about all options without effect, or "". The last two arguments are as typed."""
    types = {
        device.type for cluster in clusters for node in cluster.nodes for device in node.devices
    }
    effective_names = set().union(
        *(HEEDS.get(name, frozenset()) - _on_one_type(name, types) for name in policies)
    )
    rows = [
        *_of_chance(rules, seeds, effective_names),
        *_of_knowledge(rules, effective_names, known_length=known_length, priors=priors),
        *_of_clusters(rules, clusters),
        *_of_settings(rules, effective_names),
    ]
    remarks = [f"{option} ({reason})" for option, reason in rows]
    return f"no effect here: {', '.join(remarks)}" if remarks else ""


# An option, and why it has no effect.
Row = tuple[str, str]


def _of_chance(rules: Rules, seeds: Sequence[int], effective_names: set[str]) -> Iterator[Row]:
    if list(seeds) != [0] and not rules.noise and "seed" not in effective_names:
        yield "--seed", "nothing is random without --noise"
    if rules.noise > 0 and "noise" not in effective_names:
        yield "--noise", "none of these policies uses measurements"


def _of_knowledge(
    rules: Rules, effective_names: set[str], *, known_length: bool | None, priors: bool | None
) -> Iterator[Row]:
    """Options about what is known of jobs."""
    if known_length and "length" not in effective_names:
        yield "--known-length", "none of these policies uses it"
    if priors and "priors" not in effective_names:
        yield "--priors", "none of these policies uses them"


def _of_clusters(rules: Rules, clusters: Sequence[Cluster]) -> Iterator[Row]:
    if rules.interference > 0 and all(len(cluster.nodes) == 1 for cluster in clusters):
        yield "--interference", "every cluster has only one server"


def _of_settings(rules: Rules, effective_names: set[str]) -> Iterator[Row]:
    default = Config()
    for name in (field.name for field in fields(Config)):
        is_changed = getattr(rules.config, name) != getattr(default, name)
        if is_changed and name not in effective_names and name not in SET_ELSEWHERE:
            yield f"--set {name}", "none of these policies uses it"


def _on_one_type(policy: str, types: set[str]) -> frozenset[str]:
    """Sia uses profiles of other jobs only to transfer times from one type of GPU to another."""
    if policy == "sia" and len(types) == 1:
        return frozenset({"priors"})
    return frozenset()
