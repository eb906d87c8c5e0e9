"""Options of `gpq simulate` that change nothing for the policies in question: said, not passed over
in silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from gpq.core.model.snapshot import Config
from gpq.sim.compare.compare import Cluster
from gpq.sim.replay.rules import Rules

# What a policy can be told or heeds in a simulation, beside the interval: settings of Config by
# their names, `length` (declared), `noise` (of what jobs measure), `priors`. Those that are not
# here size by an oracle or by what jobs ask for.
HEEDS: dict[str, frozenset[str]] = {
    "goodput": frozenset({
        "fairness_power", "restart_seconds", "hysteresis_seconds", "use_length", "fairness_floor",
        "use_priors", "measured_restart", "length", "noise", "priors",
    }),
    "pollux": frozenset({"seed", "noise"}),
    "sia": frozenset({"use_priors", "noise", "priors"}),
    "gavel-ftf": frozenset({"length"}),
}  # fmt: skip
NEEDS_LENGTH, NEEDS_PRIORS = ("use_length", "fairness_floor"), ("use_priors",)
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
    """One line about all options without effect, "" where each has one. The last two: as they were
    typed, if they were."""
    types = {
        device.type for cluster in clusters for node in cluster.nodes for device in node.devices
    }
    effective_names = set().union(
        *(HEEDS.get(name, frozenset()) - _on_one_type(name, types) for name in policies)
    )
    rows = [
        (
            "--seed",
            list(seeds) != [0] and not rules.noise and "seed" not in effective_names,
            "nothing is drawn without --noise",
        ),
        (
            "--noise",
            rules.noise > 0 and "noise" not in effective_names,
            "none of these policies looks at measurements",
        ),
        (
            "--known-length",
            bool(known_length) and "length" not in effective_names,
            "none of these policies uses it",
        ),
        (
            "--priors",
            bool(priors) and "priors" not in effective_names,
            "none of these policies uses them",
        ),
        (
            "--priors",
            bool(priors) and "priors" in effective_names and not rules.config.use_priors,
            "--set use_priors=off",
        ),
        (
            "--interference",
            rules.interference > 0 and _one_node(clusters),
            "no job is on several nodes",
        ),
    ]
    rows += [
        (f"--set {name}", True, reason)
        for name in _changed(rules.config)
        if (reason := _why(name, rules, effective_names))
    ]
    remarks = [f"{option} ({reason})" for option, applies, reason in rows if applies]
    return f"without effect here: {', '.join(remarks)}" if remarks else ""


def _on_one_type(policy: str, types: set[str]) -> frozenset[str]:
    """Sia uses other jobs' profiles only to carry times from one type of GPUs to another."""
    return (
        frozenset({"use_priors", "priors"}) if policy == "sia" and len(types) == 1 else frozenset()
    )


def _one_node(clusters: Sequence[Cluster]) -> bool:
    return all(len(cluster.nodes) == 1 for cluster in clusters)


def _changed(config: Config) -> list[str]:
    default = Config()
    names = [field.name for field in fields(Config) if field.name not in SET_ELSEWHERE]
    return [name for name in names if getattr(config, name) != getattr(default, name)]


def _why(name: str, rules: Rules, effective_names: set[str]) -> str:
    if name not in effective_names:
        return "none of these policies uses it"
    if name in NEEDS_LENGTH and not rules.known_length:
        return "it needs --known-length"
    return "it needs --priors" if name in NEEDS_PRIORS and not rules.priors else ""
