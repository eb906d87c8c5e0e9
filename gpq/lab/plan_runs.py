"""Turns the options of `gpq simulate` into runs, or raises a UsageError that says what to type
instead."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import fields, replace

from gpq import paths
from gpq.client.connection import call
from gpq.core.model.snapshot import Config
from gpq.errors import DaemonUnreachable, Refused, UsageError
from gpq.lab.measurements.sources import EVERYBODY, OSDI21, SIA, Member, Published, Source
from gpq.lab.simulator import lies
from gpq.lab.simulator.compare import Cluster
from gpq.lab.simulator.history import History, history, nodes_of
from gpq.lab.simulator.rules import Rules, parse_cluster, with_types
from gpq.policies.registry import entry
from gpq.rpc import node_answers, requests
from gpq.store.past import read_jobs, read_told

DEFAULT_NODES = "16x4"
LIE = "member-1:speed"  # an example
MOST_NAMED = 5  # jobs that a note lists
OWN_OPTION = {  # fields of Config with their own option
    "interval": "--interval",
    "policy": "--policy",
    "seed": "--seed",
    "events": "--events",
    "restart_seconds": "--restart",
}
NOT_SIMULATED = {
    "gang",
    "port_salt",
    "retry_seconds",
    "quick_failure_seconds",
    "max_quick_failures",
    "settle_seconds",
    "user_weights",
}
BETWEEN_USERS = {"by_user", "floors", "floor_patience", "borrow_limit"}  # under every policy
# ranges of settings. All others begin at 0
RANGES = {"fairness_power": (-10.0, 1.0), "batch_growth": (1.0, 1e6)}
ON, OFF = ("on", "true", "yes", "1"), ("off", "false", "no", "0")
# What each policy uses in a simulation, besides the interval: settings of Config by their names,
# `length` (declared), `noise` (of measurements), `priors`. Those without any use an oracle or the
# requested sizes.
HEEDS: dict[str, frozenset[str]] = {
    "goodput": frozenset({
        "fairness_power", "cost_to_go", "restart_seconds", "hysteresis_seconds", "length", "noise",
        "priors",
    }),
    "pollux": frozenset({"seed", "noise"}),
    "sia": frozenset({"noise", "priors"}),
    "gavel-ftf": frozenset({"length"}),
    **dict.fromkeys(("optimus", "slaq", "tiresias", "themis"), frozenset()),
    **dict.fromkeys(("gavel", "gavel-max-min", "gavel-makespan"), frozenset()),
    **dict.fromkeys(("srtf", "backfill", "fifo"), frozenset()),
}  # fmt: skip
SET_ELSEWHERE = ("interval", "policy", "seed", "events")


def policies(text: str) -> list[str]:
    """`goodput,pollux`, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--policy names no policy", "for example --policy goodput,fifo")
    for name in names:
        entry(name)
    return names


def seeds(text: str) -> list[int]:
    """`0,1,2`, each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        raise UsageError(
            f"invalid --seed {text!r}: expected whole numbers", "for example --seed 0,1,2"
        )
    return list(dict.fromkeys(map(int, parts)))


def within(
    value: float, option: str, least: float, most: float = math.inf, *, above: bool = False
) -> float:
    """A finite number in its range."""
    if not math.isfinite(value) or not least <= value <= most or (above and value <= least):
        low = f"above {least:g}" if above else f"at least {least:g}"
        raise UsageError(
            f"{option} {value:g} is out of range",
            f"use a number {low}"
            if math.isinf(most)
            else f"use a number {low} and at most {most:g}",
        )
    return value


def settings(words: Sequence[str]) -> Config:
    """`fairness_power=0.25`, `by_user=off`: settings of the policy."""
    kinds = {field.name: type(field.default) for field in fields(Config)}
    names = sorted(kinds.keys() - OWN_OPTION.keys() - NOT_SIMULATED)
    values: dict[str, float | int | bool] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if key in OWN_OPTION:
            raise UsageError(f"--set {word}: {key} has its own option", f"use {OWN_OPTION[key]}")
        if key not in names:
            raise UsageError(
                f"--set {word}: there is no setting {key!r}", f"the settings are {', '.join(names)}"
            )
        values[key] = _setting(kinds[key], value, word) if separator else _wrong(word)
        if kinds[key] is not bool:
            within(float(values[key]), f"--set {key}", *RANGES.get(key, (0.0, 1e6)))
    return replace(Config(), **values)  # type: ignore[arg-type]


def _setting(kind: type, value: str, word: str) -> float | int | bool:
    if kind is bool:
        switch = value.lower()
        return switch in ON if switch in ON + OFF else _wrong(word, "use on or off")
    try:
        number = float(value)
    except ValueError:
        return _wrong(word)
    return number if math.isfinite(number) else _wrong(word)


def _wrong(word: str, hint: str = "use a number") -> bool:
    raise UsageError(
        f"--set {word}: invalid value", f"{hint}, as in --set fairness_power=0.25 --set by_user=off"
    )


def team(count: int | None, words: Sequence[str], *, known_length: bool) -> tuple[Member, ...]:
    """Members in an order that sorting keeps, with the lies in `words`, each
    `member-1:speed,noise`. () without a `count`."""
    if count is None:
        if words:
            raise UsageError("--lie needs --members", f"for example --members 2 --lie {LIE}")
        return ()
    names = [f"member-{number:0{len(str(count))}}" for number in range(1, count + 1)]
    lies_by_member: dict[str, list[str]] = {name: [] for name in names}
    for word in words:
        name, separator, kinds = word.partition(":")
        if not separator:
            raise UsageError(f"--lie {word} does not say who lies how", f"write it as {LIE}")
        if name not in lies_by_member:
            raise UsageError(
                f"--lie {word}: there is no member {name!r}",
                f"the members are {names[0]} to {names[-1]}",
            )
        for kind in kinds.split(","):
            if kind not in lies.KINDS:
                raise UsageError(
                    f"--lie {word}: there is no lie {kind!r}",
                    f"the lies are {', '.join(lies.KINDS)}",
                )
            if kind == lies.LENGTH and not known_length:
                raise UsageError(
                    f"--lie {word}: jobs do not say how long they are", "add --known-length"
                )
            lies_by_member[name].append(kind)
    return tuple(
        Member(name, tuple(dict.fromkeys(kinds))) for name, kinds in lies_by_member.items()
    )


def published_workloads(
    paths: Sequence[str],
    traces: str,
    sia: bool,
    restart: float | None,
    members: Sequence[Member] = (),
) -> list[Source]:
    """The workload files, and their jobs dealt to these members, if any."""
    if not paths:
        raise UsageError(
            "there is no workload to simulate",
            "give a CSV file, or use --history for your own jobs",
        )
    if not traces:
        raise UsageError(
            "a workload needs measurements of its applications",
            "give their folder with --traces DIR",
        )
    charges = SIA if sia else OSDI21
    if restart is not None:
        charges = replace(charges, restarts=(), restart=restart)
    team = tuple(members) or EVERYBODY
    return [
        Published(name, path, traces, charges, team)
        for name, path in zip(short_names(paths), paths, strict=True)
    ]


def short_names(paths: Sequence[str]) -> list[str]:
    """`workload-1`, or the paths as typed if two have the same name."""
    names = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    return names if len(set(names)) == len(names) else list(paths)


def own_jobs(since: float | None, restart: float | None) -> History:
    """The jobs in the database, which can be read with or without a daemon."""
    path = paths.database()
    jobs, facts = read_jobs(path), read_told(path)
    own_history = history(
        jobs,
        time.time(),
        since=since,
        restart=restart,
        hold_seconds=facts.hold_seconds,
        gpu_types=facts.gpu_types,
    )
    if not own_history.replayable:
        raise Refused(
            f"there is no job to replay in {path}:"
            f" {left_out(own_history) or 'no job was submitted in that time'}",
            "only jobs that ran can be replayed. --since 30d looks further back",
        )
    return own_history


def left_out(own_history: History) -> str:
    """One line about the jobs that cannot be replayed, or ""."""
    if not own_history.left_out:
        return ""
    jobs_by_reason: dict[str, list[str]] = {}
    for job, reason in own_history.left_out:
        jobs_by_reason.setdefault(reason, []).append(job)
    groups = [f"{len(jobs)} {reason} ({_some(jobs)})" for reason, jobs in jobs_by_reason.items()]
    return f"left out: {', '.join(groups)}"


def unended_line(own_history: History) -> str:
    """One line about the jobs that have not ended, or ""."""
    if not own_history.unended:
        return ""
    return f"not ended, so only the work so far counts: {_some(own_history.unended)}"


def _some(jobs: Sequence[str]) -> str:
    more = len(jobs) - MOST_NAMED
    return ", ".join(jobs[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def named_clusters(texts: Sequence[str]) -> list[Cluster]:
    return [Cluster(text, parse_cluster(text)) for text in dict.fromkeys(texts)]


def measured_on(own_history: History, texts: Sequence[str]) -> list[Cluster]:
    """The given clusters, or else your own, with the types of GPUs that the jobs used."""
    clusters = named_clusters(texts) or [own_cluster()]
    if not texts and not own_history.gpu_types:
        return clusters
    return [
        replace(cluster, nodes=with_types(cluster.nodes, own_history.gpu_types))
        for cluster in clusters
    ]


def own_cluster() -> Cluster:
    """Your servers as the daemon last saw them. Raises UsageError if it is not running."""
    try:
        nodes = nodes_of(call(requests.Nodes([]), node_answers.NodeList, start=False).nodes)
    except DaemonUnreachable:
        nodes = ()
    if not nodes:
        hint = "run `gpq daemon start`, or say what they have, as in --nodes 2x4"
        raise UsageError("no daemon runs that knows your servers", hint)
    return Cluster("own", nodes)


def unused_options(
    policies: Sequence[str],
    rules: Rules,
    clusters: Sequence[Cluster],
    seeds: Sequence[int],
    *,
    known_length: bool | None,
    priors: bool | None,
    sources: Sequence[Source],
    members: Sequence[Member] = (),
) -> str:
    """One line about all options without effect, or "". `known_length` and `priors` are as
    typed."""
    if any(name not in HEEDS for name in policies):
        return ""  # nobody knows what a policy of another package uses
    types = {
        device.type for cluster in clusters for node in cluster.nodes for device in node.devices
    }
    heeds = dict(HEEDS)
    if len(types) == 1:
        # Sia uses profiles of other jobs only to transfer times from one type to another
        heeds["sia"] -= {"priors"}
    effective_names = set().union(*(heeds[name] for name in policies))
    unused = "none of these policies uses"
    needs = (
        (
            "seed",
            list(seeds) != [0] and not rules.noise,
            "--seed",
            "nothing is random without --noise",
        ),
        ("noise", rules.noise > 0, "--noise", f"{unused} measurements"),
        ("length", known_length, "--known-length", f"{unused} it"),
        ("priors", priors, "--priors", f"{unused} them"),
        *(
            (
                "noise",
                kind in lies.MEASURED,
                f"--lie {member.name}:{kind}",
                f"{unused} measurements",
            )
            for member in members
            for kind in member.lies
        ),
    )
    remarks = [
        f"{option} ({reason})"
        for name, is_given, option, reason in needs
        if is_given and name not in effective_names
    ]
    default = Config()
    for field in fields(Config):
        is_changed = getattr(rules.config, field.name) != getattr(default, field.name)
        if is_changed and field.name in BETWEEN_USERS:
            if all(len({task.user for task in source.tasks()}) < 2 for source in sources):
                remarks.append(f"--set {field.name} (there is only one user)")
        elif is_changed and field.name not in (*effective_names, *SET_ELSEWHERE):
            remarks.append(f"--set {field.name} ({unused} it)")
    return f"no effect here: {', '.join(remarks)}" if remarks else ""
