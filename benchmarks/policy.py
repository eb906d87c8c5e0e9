"""Policies on public workloads: the simulator compared with published figures, `goodput` compared
with Pollux and Sia, and the gain from each part of it. Prints all figures and exits with 1 if a bar
is missed.

    python benchmarks/policy.py --traces DIR [--only 1,2,3,4] [--jobs-parallel N] [--out FILE.md]

DIR holds osdi21/ (artifact of Pollux, OSDI'21) and sia/ (artifact of Sia, SOSP'23), each with its
applications and workloads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from unittest.mock import patch

from policy_cases import Bench, Case, Figures, Report, above_1, jct, rho_max, rho_p95, seconds

from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId
from gpq.lab.measurements.sources import Charges
from gpq.lab.simulator.rules import Rules
from gpq.policies.goodput import policy as goodput
from gpq.policies.registry import BUILT_IN

# Mean completion times in seconds, as published in the OSDI'21 artifact: 16 servers of 4 GPUs,
# rounds of 60 s, restarts of 30 s.
POLLUX = {1: 2089.0, 2: 3323.0, 3: 2188.0, 4: 2721.0}
OPTIMUS = {1: 4087.0, 2: 6914.0, 3: 3944.0, 4: 5968.0}
TIRESIAS = {1: 2474.0, 2: 5145.0, 3: 3876.0, 4: 3280.0}
AT_LOAD = {  # Pollux at relative loads
    "0.5": {1: 1060.0, 2: 1826.0},
    "1.5": {1: 3856.0, 2: 3381.0},
    "2.0": {1: 6186.0, 2: 4191.0},
}
# Hours, from a run of Sia's artifact on its own workloads (philly-1, saturn-1).
SIA_HOURS = {"philly-1": 0.542, "saturn-1": 0.581}
GAVEL_HOURS = {"philly-1": 1.67, "saturn-1": 1.80}
GAVEL_INTERVAL = 360.0
HETEROGENEOUS = "6x4:t4,3x8:rtx,2x8:a100"
POLLUX_SEEDS = (0, 1, 2)
FAST_RESTART = Charges(restart=5.0)


class NoDeficit(goodput.Goodput):
    """Jobs far below their fair share do not count for more."""

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Shape]:
        with patch.object(goodput, "_deficit", lambda *_: 1.0):
            return super().allocate(snapshot)


class OneRestart(goodput.Goodput):
    """`restart_seconds` for all jobs, not each job's own restart time."""

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Shape]:
        jobs = {name: replace(job, restart_seconds=None) for name, job in snapshot.jobs.items()}
        return super().allocate(replace(snapshot, jobs=jobs))


CRIPPLED = {"without deficit weight": NoDeficit, "without measured restarts": OneRestart}
# Processes of the simulator import them by these names.
BUILT_IN.update({name: f"policy:{kind.__name__}" for name, kind in CRIPPLED.items()})


# -- sections --------------------------------------------------------------------------------------


def pollux_of(bench: Bench) -> Case:
    return Case("pollux", "pollux", bench.osdi(), seeds=POLLUX_SEEDS)


def simulator(bench: Bench) -> None:
    """1: published and simulated."""
    report, sources = bench.report, bench.osdi()
    report.say("## 1. Published and simulated mean completion times\n")
    published = (("pollux", POLLUX), ("optimus", OPTIMUS), ("tiresias", TIRESIAS))
    cases = [pollux_of(bench), *(Case(name, name, sources) for name, _ in published[1:])]
    found = bench.measure(cases)
    rows, errors = [], []
    for (name, figures), simulated in zip(published, found, strict=True):
        for workload, value in figures.items():
            ours = simulated.of(str(workload), jct)
            rows.append(
                [name, str(workload), seconds(value), seconds(ours), f"{ours / value - 1:+.1%}"]
            )
            errors.append((f"{name} on workload {workload}, relative error", abs(ours / value - 1)))
    report.table(["policy", "workload", "published, s", "simulated, s", "difference"], rows)
    for what, error in errors:
        report.bar(what, error, 0.05)


def same_rules(bench: Bench) -> None:
    """2: with nothing that Pollux does not have."""
    report = bench.report
    report.say("## 2. The same rules: rounds of 60 s, restarts of 30 s, nothing known beforehand\n")
    cases = [pollux_of(bench), Case("goodput", "goodput", bench.osdi())]
    pollux, goodput = bench.measure(cases)
    _homogeneous(
        report, [(case.label, found) for case, found in zip(cases, (pollux, goodput), strict=True)]
    )
    report.bar("goodput over published Pollux", goodput.over(jct) / mean(POLLUX.values()), 0.93)
    report.bar(
        "rho_p95 over that of pollux simulated", goodput.over(rho_p95) / pollux.over(rho_p95), 1.0
    )
    report.bar(
        "rho_max over that of pollux simulated", goodput.over(rho_max) / pollux.over(rho_max), 1.0
    )
    loads = [
        (load, Case(f"{policy} at {load}", policy, bench.osdi(f"workloads-{load}")))
        for load in AT_LOAD
        for policy in ("pollux", "goodput")
    ]
    found = dict(
        zip(
            [case.label for _, case in loads],
            bench.measure([case for _, case in loads]),
            strict=True,
        )
    )
    rows, bars = [], []
    for load, published in AT_LOAD.items():
        theirs, ours = found[f"pollux at {load}"], found[f"goodput at {load}"]
        for workload in ours.names:
            said = published.get(int(workload))
            simulated, value = theirs.of(workload, jct), ours.of(workload, jct)
            worst = [f"{figures.of(workload, rho_max):.2f}" for figures in (theirs, ours)]
            rows.append(
                [
                    load,
                    workload,
                    seconds(said) if said else "-",
                    seconds(simulated),
                    seconds(value),
                    *worst,
                ]
            )
            least = min(simulated, said) if said else simulated
            bars.append(
                (
                    (
                        f"load {load}, workload {workload}: goodput over pollux, published or"
                        " simulated"
                    ),
                    value / least,
                )
            )
    report.say()
    head = [
        "load",
        "workload",
        "pollux published, s",
        "pollux, s",
        "goodput, s",
        "rho_max pollux",
        "rho_max goodput",
    ]
    report.table(head, rows)
    for what, ratio in bars:
        report.bar(what, ratio, 1.0)


def with_more(bench: Bench) -> None:
    """3: lengths, priors, events, cheap restarts, and the gain from each part."""
    report, usual, fast = bench.report, bench.osdi(), bench.osdi(charges=FAST_RESTART)
    plain = Rules(nodes=())
    known = replace(plain, known_length=True)
    informed = replace(known, priors=True, events=True)
    cases = [
        Case("goodput", "goodput", usual, rules=plain),
        Case("+ declared lengths", "goodput", usual, rules=known),
        Case("+ priors and events", "goodput", usual, rules=informed),
        Case("+ restarts of 5 s", "goodput", fast, rules=informed),
    ]
    parts = {
        "by_user": replace(informed, config=Config(by_user=False)),
        "declared lengths": replace(informed, known_length=False),
        "priors": replace(informed, priors=False),
        "events": replace(informed, events=False),
    }
    without = [
        Case(f"without {name}", "goodput", fast, rules=rules) for name, rules in parts.items()
    ]
    without += [Case(name, name, fast, rules=informed) for name in CRIPPLED]
    figures = bench.measure([*cases, *without])
    _, lengths, priors, all_of_it = figures[: len(cases)]
    report.say("## 3. With more\n")
    _homogeneous(report, [(case.label, found) for case, found in zip(cases, figures, strict=False)])
    published = mean(POLLUX.values())
    report.bar("declared lengths over published Pollux", lengths.over(jct) / published, 0.87)
    report.bar("+ priors and events", priors.over(jct) / published, 0.83)
    report.bar("+ priors and events, rho_p95", priors.over(rho_p95), 1.25)
    report.bar("+ restarts of 5 s", all_of_it.over(jct) / published, 0.77)
    report.bar("+ restarts of 5 s, rho_p95", all_of_it.over(rho_p95), 1.1)
    report.say("\n### What each part gives: the last row above, with one of them off\n")
    base = all_of_it.over(jct)
    rows = [
        [
            case.label,
            seconds(found.over(jct)),
            f"{found.over(jct) / base - 1:+.1%}",
            f"{found.over(rho_p95):.2f}",
            f"{found.over(rho_max):.2f}",
        ]
        for case, found in zip(without, figures[len(cases) :], strict=True)
    ]
    report.table(["", "mean, s", "longer by", "rho_p95", "rho_max"], rows)


def _homogeneous(report: Report, rows: Sequence[tuple[str, Figures]]) -> None:
    published = mean(POLLUX.values())
    names = rows[0][1].names
    cells = [
        [
            label,
            *(seconds(found.of(name, jct)) for name in names),
            seconds(found.over(jct)),
            f"{found.over(jct) / published:.3f}",
            f"{found.over(rho_p95):.2f}",
            f"{found.over(rho_max):.2f}",
            f"{found.over(lambda row: row.restarts_per_job):.1f}",
            f"{found.over(lambda row: row.gpu_hours):.0f}",
        ]
        for label, found in rows
    ]
    head = [
        *(f"workload {name}, s" for name in names),
        "mean, s",
        "over published Pollux",
        "rho_p95",
        "rho_max",
    ]
    report.table(["", *head, "restarts a job", "GPU hours"], cells)


def heterogeneous(bench: Bench) -> None:
    """4: three types of GPUs, Sia's charges."""
    report, sources = bench.report, bench.sia()
    rules = Rules(nodes=(), profiled=True)
    first = tuple(source for source in sources if source.name in SIA_HOURS)
    cases = [
        Case("sia", "sia", sources, HETEROGENEOUS, rules),
        Case("goodput", "goodput", sources, HETEROGENEOUS, rules),
        Case("gavel", "gavel", first, HETEROGENEOUS, replace(rules, interval=GAVEL_INTERVAL)),
    ]
    sia, goodput, gavel = bench.measure(cases)
    report.say("## 4. Three types of GPUs, with the charges of Sia's simulator\n")
    rows = []
    for name in goodput.names:
        theirs, ours = sia.of(name, jct) / 3600, goodput.of(name, jct) / 3600
        rows.append(
            [
                name,
                f"{SIA_HOURS[name]:.3f}" if name in SIA_HOURS else "-",
                f"{theirs:.3f}",
                f"{GAVEL_HOURS[name]:.2f}" if name in GAVEL_HOURS else "-",
                f"{gavel.of(name, jct) / 3600:.2f}" if name in gavel.names else "-",
                f"{ours:.3f}",
                f"{ours / theirs:.3f}",
                f"{sia.of(name, rho_max):.2f}",
                f"{goodput.of(name, rho_max):.2f}",
                f"{goodput.of(name, above_1):.1%}",
            ]
        )
    head = [
        "workload",
        "sia published, h",
        "sia, h",
        "gavel published, h",
        "gavel, h",
        "goodput, h",
        "goodput over sia",
    ]
    report.table([*head, "rho_max sia", "rho_max goodput", "goodput above 1"], rows)
    for name, hours in SIA_HOURS.items():
        report.bar(
            f"sia on {name}, relative error", abs(sia.of(name, jct) / 3600 / hours - 1), 0.10
        )
    for name, hours in GAVEL_HOURS.items():
        report.bar(
            f"gavel on {name}, relative error", abs(gavel.of(name, jct) / 3600 / hours - 1), 0.15
        )
    for name in goodput.names:
        report.bar(f"goodput over sia on {name}", goodput.of(name, jct) / sia.of(name, jct), 0.95)
    report.bar("goodput, worst rho", max(map(rho_max, goodput.rows)), 1.2)
    jobs = sum(row.jobs for row in goodput.rows)
    report.bar(
        "goodput, share of jobs above 1",
        sum(above_1(row) * row.jobs for row in goodput.rows) / jobs,
        0.01,
    )


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "1": simulator,
    "2": same_rules,
    "3": with_more,
    "4": heterogeneous,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, for example 2,3")
    parser.add_argument("--jobs-parallel", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the tables to this file as Markdown")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if not set(chosen) <= SECTIONS.keys():
        parser.error(f"invalid --only {options.only}: use {', '.join(SECTIONS)}")
    report = Report()
    bench = Bench(options.traces, options.jobs_parallel, report)
    for section in chosen:
        SECTIONS[section](bench)
        report.say()
    report.say(f"{report.missed} bars missed" if report.missed else "every bar met")
    if options.out:
        options.out.write_text("\n".join(report.lines) + "\n", encoding="utf-8")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
