"""200 clients submit 10,000 jobs at once, then one submission makes an array of as many. Measures
the times, `gpq status` meanwhile, which jobs survive kill -9 of the daemon, and its memory.

    python benchmarks/crowd.py [--jobs 10000] [--clients 200] [--policy goodput] [--out FILE]

Exits with 1 if a figure is over its bar. The clients are threads of this process, with one
connection per submission, like `gpq submit`. 10,000 Python processes would measure their own start.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]

from tests.chaos.crowd import Crowd, array, crowd  # noqa: E402
from tests.chaos.head import crowded  # noqa: E402
from tests.chaos.runs import Measured, number  # noqa: E402


def of_array(found: Crowd, jobs: int) -> list[Measured]:
    """The measurements of one array submission, next to their bars."""
    return [
        Measured("jobs of the array", len(found.ids), at_least=jobs),
        Measured("of them there after kill -9 and a restart", len(found.durable), at_least=jobs),
        Measured("the submission", found.seconds, unit="s"),
        Measured("daemon, processor time for it", found.busy_seconds, unit="s"),
        Measured(
            "gpq status afterwards, median",
            statistics.median(found.status_seconds),
            at_most=0.3,
            unit="s",
        ),
        Measured("daemon, memory at most", found.memory, at_most=200.0, unit="MB"),
        Measured(
            "daemon after the restart, memory at most",
            found.restarted_memory,
            at_most=200.0,
            unit="MB",
        ),
        Measured("start to serving", found.restart_seconds, at_most=2.0, unit="s"),
    ]


def table(title: str, about: str, figures: Sequence[Measured]) -> str:
    rows = [
        f"| {each.what} | {number(each.reached)} {each.unit}".rstrip()
        + f" | {each.asked}{'' if each.good else ' MISSED'} |"
        for each in figures
    ]
    return "\n".join(
        [f"## {title}", "", about, "", "| | reached | asked |", "|---|---|---|", *rows, ""]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=200, help="clients that submit at once")
    parser.add_argument("--policy", default="goodput", help="policy of the daemon")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    if min(options.jobs, options.clients) < 1:
        parser.error("--jobs and --clients must be at least 1")
    parts, good = [], True
    for title, run in (
        (
            f"{options.clients} clients, {number(options.jobs)} jobs",
            lambda: crowded(_crowd(options), options.jobs),
        ),
        (
            f"One array of {number(options.jobs)} jobs",
            lambda: of_array(array(options.jobs, options.policy), options.jobs),
        ),
    ):
        before = os.getloadavg()[0]
        figures = run()
        good &= all(each.good for each in figures)
        load = f"load of the machine {before:.1f} before and {os.getloadavg()[0]:.1f} after"
        about = (
            f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, policy {options.policy}; {load}."
        )
        parts.append(table(title, about, figures))
        print(parts[-1], flush=True)
    if options.out:
        options.out.write_text(
            "# A crowd of submissions\n\nBy `make bench-crowd`.\n\n" + "\n".join(parts)
        )
    return 0 if good else 1


def _crowd(options: argparse.Namespace) -> Crowd:
    return crowd(options.jobs, options.clients, options.policy)


if __name__ == "__main__":
    sys.exit(main())
