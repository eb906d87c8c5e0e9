"""What floors give and cost: teams in which all but one lie, equal members, and public workloads
dealt to honest members, without and with floors. Exits with 1 if a bar is missed.

    python benchmarks/floors.py [--teams 1000] [--traces DIR] [--processes 1] [--out FILE]

A truthful member should never be below 0.98 of a static share of the GPUs for longer than the
patience and one round. DIR holds osdi21/ (artifact of Pollux, OSDI'21) for the cost of floors. It
is left out without DIR.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]

from policy_cases import Bench, Case, Report, jct, progress_of, rho_max, rho_p95, seconds  # noqa: E402

from gpq.core.model.snapshot import Config  # noqa: E402
from gpq.lab.measurements.sources import Charges, Member  # noqa: E402
from gpq.lab.simulator.process_pool import work_on  # noqa: E402
from gpq.lab.simulator.rules import Rules  # noqa: E402
from tests.support.teams import (  # noqa: E402
    LIES,
    NUMBERS,
    ROUND,
    Course,
    courses,
    equal_part,
    equals,
    random_team,
    trio,
)

WITHOUT, WITH = Config(floors=False), Config()
LONGEST = WITH.floor_patience + ROUND  # below a static share
TEAM_ROUNDS = 30
HOUR = 60  # rounds
MEMBERS = 5
MOST_COST = 1.03  # mean completion time with floors over without
# users, servers, GPUs of each
EVEN = ((3, 3, 4), (4, 4, 4), (2, 2, 4), (5, 5, 4), (2, 4, 4), (3, 3, 8))
UNEVEN = ((3, 4, 4), (5, 3, 4))
JOBS = (1, 2, 3, 5)  # of each user


def lies(report: Report) -> None:
    report.say("## Three members, one of whom lies\n")
    report.say(
        "Ana, bob and cat have two equal jobs each on 16 GPUs. Bob lies in one way. Means over one"
        " hour, and the worse of ana and cat, relative to a static share of 5 GPUs.\n"
    )
    rows = []
    for lie in (*LIES, *NUMBERS):
        cells = [lie]
        for config in (WITHOUT, WITH):
            outcome = courses(trio(lie, config), {"ana": 5, "bob": 5, "cat": 5}, HOUR)
            others = outcome["ana"], outcome["cat"]
            cells += [
                f"{outcome['bob'].gpus:.1f}",
                f"{min(course.ratio for course in others):.2f}",
                minutes(max(course.longest for course in others)),
            ]
        rows.append(cells)
    columns = ("bob's GPUs", "others, least", "below 0.98 at a stretch")
    report.table(["bob", *columns, *(f"with floors: {column}" for column in columns)], rows)


def random_teams(report: Report, teams: int, processes: int) -> None:
    report.say("## Random teams\n")
    report.say(
        f"{teams} teams of two to five members. One of them is truthful. The others lie twice each"
        f" in speed, noise, length, priority and age, and have up to 12 jobs. {TEAM_ROUNDS} rounds,"
        f" with a bar of {minutes(LONGEST)} below 0.98 of the static share at a stretch.\n"
    )
    items = [(seed, config) for config in (WITHOUT, WITH) for seed in range(teams)]
    outcomes = work_on(items, _truthful, _killed, processes, progress_of(len(items), 100))
    rows = []
    for label, part in (("without", outcomes[:teams]), ("with", outcomes[teams:])):
        below = sum(course.longest > LONGEST for course in part)
        cells = [
            f"{below} of {teams}",
            minutes(max(course.longest for course in part)),
            f"{min(course.ratio for course in part):.2f}",
            f"{mean(course.ratio for course in part):.2f}",
        ]
        rows.append([label, *cells])
    head = ["teams below for longer", "longest", "least mean of a team", "mean of all"]
    report.table(["floors", *head], rows)
    report.bar("teams with a truthful member below with floors", below, 0)


def _truthful(item: tuple[int, Config], watch: Callable[[float], None]) -> Course:
    team = random_team(*item)
    return courses(team, {"u0": equal_part(team)}, TEAM_ROUNDS)["u0"]


def _killed(item: tuple[int, Config]) -> Course:
    raise SystemExit(f"the process of team {item[0]} was killed: use fewer --processes")


def equal_members(report: Report) -> None:
    report.say("## Equal members\n")
    report.say(
        "Honest members with as many equal jobs each, of which none ends. The largest difference of"
        " their GPU hours in the first, second and third hour. One GPU makes 1.00.\n"
    )
    for label, teams in (("evenly", EVEN), ("unevenly", UNEVEN)):
        rows = []
        for users, count, gpus in teams:
            for jobs in JOBS:
                team, cells = equals(users, jobs, count, gpus), []
                for _ in range(3):
                    team.gpu_seconds.clear()
                    for _ in range(HOUR):
                        team.round()
                    hours = [team.gpu_seconds[f"u{i}"] / 3600 for i in range(users)]
                    cells.append(f"{max(hours) - min(hours):.2f}")
                part = f"{count * gpus / users:.1f}"
                rows.append([str(users), str(jobs), f"{count}x{gpus}", part, *cells])
        report.say(f"### GPUs divide {label}\n")
        report.table(["members", "jobs each", "GPUs", "GPUs each", "1st", "2nd", "3rd"], rows)


def cost(report: Report, traces: Path, processes: int) -> None:
    report.say("## The cost of floors\n")
    report.say(
        f"The workloads of OSDI'21, dealt to {MEMBERS} honest members, on 16 servers of 4 GPUs."
        " Jobs declare their lengths. Priors, rounds on events, restarts of 5 s.\n"
    )
    bench = Bench(traces, processes, report)
    team = tuple(Member(f"m{i}") for i in range(MEMBERS))
    sources = tuple(
        replace(source, members=team) for source in bench.osdi(charges=Charges(restart=5.0))
    )
    plain = Rules(nodes=(), known_length=True, priors=True, events=True)
    cases = [
        Case(label, "goodput", sources, rules=replace(plain, config=config))
        for label, config in (("without", WITHOUT), ("with", WITH))
    ]
    without, floors = bench.measure(cases)
    rows = []
    for name in without.names:
        before, after = without.of(name, jct), floors.of(name, jct)
        cells = [seconds(before), seconds(after), f"{after / before - 1:+.1%}"]
        for column in (rho_p95, rho_max):
            cells += [f"{without.of(name, column):.2f}", f"{floors.of(name, column):.2f}"]
        cells += [
            f"{part.of(name, lambda row: row.restarts_per_job):.1f}" for part in (without, floors)
        ]
        rows.append([name, *cells])
    head = ["workload", "mean completion without, s", "with, s", "longer by"]
    more = [
        f"{column} {label}"
        for column in ("rho_p95", "rho_max", "restarts a job")
        for label in ("without", "with")
    ]
    report.table([*head, *more], rows)
    report.bar(
        "mean completion time with floors over without",
        floors.over(jct) / without.over(jct),
        MOST_COST,
    )


def minutes(duration: float) -> str:
    return f"{duration / 60:.0f} min"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--teams", type=int, default=1000)
    parser.add_argument("--traces", type=Path, help="the folder above osdi21/")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the tables to this file as Markdown")
    options = parser.parse_args()
    if min(options.teams, options.processes) < 1:
        parser.error("--teams and --processes must be at least 1")
    report = Report()
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True)
    report.say("# Floors\n")
    report.say(
        f"By `make bench-floors`, {time.strftime('%Y-%m-%d')}, commit {commit.strip()},"
        f" {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start.\n"
    )
    lies(report)
    random_teams(report, options.teams, options.processes)
    report.say()
    equal_members(report)
    if options.traces:
        cost(report, options.traces, options.processes)
    report.say(f"\n{report.missed} bars missed" if report.missed else "\nevery bar met")
    if options.out:
        options.out.write_text("\n".join(report.lines) + "\n", encoding="utf-8")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
