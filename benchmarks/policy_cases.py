"""What the sections of `policy.py` share: cases and their runs, means over seeds and workloads, and
the report with its bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from gpq.lab.measurements.sources import SIA, Charges, Published
from gpq.lab.simulator import compare, process_pool
from gpq.lab.simulator.outcomes import Outcome, Summary, summary
from gpq.lab.simulator.rules import Rules, parse_cluster

HOMOGENEOUS = "16x4"


@dataclass(frozen=True)
class Case:
    """One row of a table: a policy under some rules, on several workloads."""

    label: str
    policy: str
    sources: tuple[Published, ...]
    nodes: str = HOMOGENEOUS
    rules: Rules = field(default_factory=lambda: Rules(nodes=()))
    seeds: tuple[int, ...] = (0,)

    def runs(self) -> list[compare.Run]:
        found = compare.Cluster(self.nodes, parse_cluster(self.nodes))
        return compare.plan([self.policy], self.sources, [found], self.rules, self.seeds)


class Figures:
    """The runs of one case, by workload, and means over seeds."""

    def __init__(self, rows: Sequence[Summary]) -> None:
        self.rows = list(rows)
        self.names = list(dict.fromkeys(row.workload for row in rows))

    def of(self, name: str, column: Callable[[Summary], float]) -> float:
        return mean(column(row) for row in self.rows if row.workload == name)

    def over(self, column: Callable[[Summary], float]) -> float:
        """The mean over the workloads."""
        return mean(self.of(name, column) for name in self.names)


def jct(row: Summary) -> float:
    return row.avg_jct


def rho_p95(row: Summary) -> float:
    return row.rho_p95 if row.rho_p95 is not None else float("nan")


def rho_max(row: Summary) -> float:
    return row.rho_max if row.rho_max is not None else float("nan")


def above_1(row: Summary) -> float:
    return row.rho_above_1 if row.rho_above_1 is not None else float("nan")


class Report:
    """Lines of Markdown, and the bars."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.missed = 0

    def say(self, line: str = "") -> None:
        print(line, flush=True)
        self.lines.append(line)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        for cells in (head, ["---"] * len(head), *rows):
            self.say("| " + " | ".join(cells) + " |")
        self.say()

    def bar(self, what: str, value: float, most: float) -> None:
        passed = value <= most
        self.missed += not passed
        self.say(f"- {'pass' if passed else '**MISSED**'}: {what}: {value:.3f}, at most {most:g}")


class Bench:
    """Runs cases, and remembers their results, because sections share them."""

    def __init__(self, traces: Path, processes: int, report: Report) -> None:
        self.traces, self.processes, self.report = traces, processes, report
        self._known: dict[Case, Figures] = {}

    def osdi(
        self, folder: str = "workloads", charges: Charges | None = None
    ) -> tuple[Published, ...]:
        return self._sources("osdi21", folder, charges)

    def _sources(
        self, artifact: str, folder: str, charges: Charges | None, prefix: str = ""
    ) -> tuple[Published, ...]:
        root = self.traces / artifact
        files = sorted(
            (root / folder).glob("workload-*.csv"), key=lambda path: int(path.stem.split("-")[1])
        )
        if not files:
            raise SystemExit(
                f"no workloads in {root / folder}: name the folder above osdi21/ and sia/"
            )
        return tuple(
            Published(prefix + path.stem.split("-")[1], str(path), str(root), charges or Charges())
            for path in files
        )

    def sia(self) -> tuple[Published, ...]:
        return tuple(
            source
            for folder in ("philly", "saturn")
            for source in self._sources("sia", f"workloads/{folder}", SIA, f"{folder}-")
        )

    def measure(self, cases: Sequence[Case]) -> list[Figures]:
        new = [case for case in dict.fromkeys(cases) if case not in self._known]
        plans = [case.runs() for case in new]
        runs = [run for plan in plans for run in plan]
        outcomes = iter(
            compare.attempt_all(runs, self.processes, progress_of(len(runs))) if runs else []
        )
        for case, plan in zip(new, plans, strict=True):
            self._known[case] = Figures([summary(whole(next(outcomes))) for _ in plan])
        return [self._known[case] for case in cases]


def whole(outcome: Outcome | compare.FailedRun) -> Outcome:
    if isinstance(outcome, compare.FailedRun):
        raise SystemExit(f"{outcome.policy} on {outcome.workload}: {outcome.error}")
    return outcome


def progress_of(count: int, step: int = 1) -> process_pool.Progress:
    """Prints a line on stderr whenever `step` more runs have ended."""
    told = [0]

    def progress(shares: Sequence[float]) -> None:
        done = sum(share >= 1.0 for share in shares)
        if done >= told[0] + step:
            told[0] = done
            print(f"{done} of {count} runs", file=sys.stderr, flush=True)

    return progress


def seconds(value: float) -> str:
    return f"{value:.0f}"
