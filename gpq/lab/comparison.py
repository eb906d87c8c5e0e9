"""The results of simulated runs: a table for people, CSV and JSON for programs. `outcomes` does the
comparison."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpq.lab.simulator.compare import Block, FailedRun
from gpq.lab.simulator.outcomes import MemberSummary, Summary
from gpq.views.accounts import hours_of
from gpq.views.plain import Column, duration, fit, number, safe
from gpq.views.queue import percent

SCHEMA = 1
GAP = 2  # spaces between two columns


def columns(rows: Sequence[Summary], cluster: str = "") -> list[Column]:
    """The columns for the runs of one cluster, which is named if there are several. Times are
    completion times, from submission to end."""
    return [
        *_run_columns(rows, cluster),
        *(
            Column(title, [cell(row) for row in rows], rank, right=True)
            for title, rank, cell in FIGURES
        ),
    ]


def _run_columns(rows: Sequence[Summary | MemberSummary], cluster: str) -> list[Column]:
    """The columns that say which run a row is of."""
    several_seeds = len({row.seed for row in rows}) > 1
    return [
        Column("CLUSTER", [safe(cluster) or "-"] * len(rows), 90, least=7),
        Column("POLICY", [safe(row.policy) for row in rows], 99),
        Column("WORKLOAD", [safe(row.workload) for row in rows], 98, least=8),
        Column("SEED", [str(row.seed) if several_seeds else "-" for row in rows], 85, right=True),
    ]


def member_columns(rows: Sequence[MemberSummary], cluster: str) -> list[Column]:
    """The columns for the members in the runs of one cluster, which is named if there are
    several."""
    lies = [",".join(row.lies) or "-" for row in rows]
    return [
        *_run_columns(rows, cluster),
        Column("MEMBER", [safe(row.member) for row in rows], 100),
        Column("JOBS", [str(row.jobs) for row in rows], 60, right=True),
        Column("MEAN", [duration(row.avg_jct) for row in rows], 95, right=True),
        Column("RHO MAX", [number(row.rho_max) for row in rows], 80, right=True),
        Column("GPU H", [number(row.gpu_hours) for row in rows], 94, right=True),
        Column("LIES", lies, 90, least=8),
    ]


def took(seconds: float) -> str:
    """A duration, with tenths for a short run."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    return duration(seconds)


# title, rank among the columns, cell of a run
FIGURES: tuple[tuple[str, int, Callable[[Summary], str]], ...] = (
    ("JOBS", 33, lambda row: str(row.jobs)),
    ("MEAN", 97, lambda row: duration(row.avg_jct)),
    ("MEDIAN", 60, lambda row: duration(row.p50_jct)),
    ("P99", 80, lambda row: duration(row.p99_jct)),
    ("MAKESPAN", 75, lambda row: duration(row.makespan)),
    ("RHO P95", 65, lambda row: number(row.rho_p95)),
    ("RHO MAX", 88, lambda row: number(row.rho_max)),
    ("RHO>1", 70, lambda row: percent(row.rho_above_1)),
    ("RESTARTS", 50, lambda row: f"{row.restarts_per_job:.1f}"),
    ("GAIN H", 34, lambda row: hours_of(row.gained_hours, row.promised_hours)),
    ("GPU H", 45, lambda row: number(row.gpu_hours)),
    ("GOODPUT", 40, lambda row: number(row.goodput, "x")),
    ("ROUND", 32, lambda row: f"{number(row.round_ms_median)}ms"),
    ("ROUND MAX", 31, lambda row: f"{number(row.round_ms_max)}ms"),
    ("TOOK", 30, lambda row: took(row.wall_s)),
)


def picture(blocks: Sequence[Block], width: int, *, whole: bool = True) -> RenderableType:
    """For each cluster its runs, then the mean of each policy if it has several runs, then the
    members if there are several. The lowest mean completion time of all jobs is green. With `width`
    0 all columns are shown, otherwise a line names the columns that did not fit. `whole`: did all
    runs end?"""
    several = len(blocks) > 1
    parts: list[RenderableType] = []
    missing_titles: dict[str, None] = {}
    for block in blocks:
        cluster = block.cluster if several else ""
        if parts:
            parts.append(Text())
        visible = _fit_columns(columns(block.rows, cluster), width, missing_titles)
        parts.append(_table(visible, _styles(block.rows)))
        if len(block.means) < len(block.rows):
            visible = _fit_columns(columns(block.means, cluster), width, missing_titles)
            parts += [
                Text(),
                Text(_legend(visible, whole=whole), style="dim"),
                _table(visible, _styles(block.means)),
            ]
        members = block.members
        if len({row.member for row in members}) > 1:
            visible = _fit_columns(member_columns(members, cluster), width, missing_titles)
            parts += [Text(), _table(visible, [""] * len(members))]
    if missing_titles:
        plural = "s" if len(missing_titles) > 1 else ""
        count = f"{len(missing_titles)} column{plural} left out at width {width}"
        parts += [
            Text(),
            Text(f"{count}: {', '.join(missing_titles)} (see --csv or --json)", style="dim"),
        ]
    return Group(*parts)


def _fit_columns(
    columns: list[Column], width: int, missing_titles: dict[str, None]
) -> list[Column]:
    """The columns that fit. The titles of the others go to `missing_titles`."""
    visible_columns = fit(columns, width)
    titles = {column.title for column in visible_columns}
    missing_titles.update(
        {column.title: None for column in fit(columns, 0) if column.title not in titles}
    )
    return visible_columns


def _legend(columns: Sequence[Column], *, whole: bool) -> str:
    worst = [column.title for column in columns if column.title in ("RHO MAX", "ROUND MAX")]
    sentence = "means over the runs of each policy"
    if not whole:
        sentence += " that ended"
    if worst:
        sentence += f" ({' and '.join(worst)}: the worst)"
    if not whole:
        sentence += ". Compare only policies with equally many runs"
    return sentence


def _styles(rows: Sequence[Summary]) -> list[str]:
    """The style of each row."""
    best: dict[str, Summary] = {}  # of each workload
    for row in rows:
        if row.workload not in best or row.avg_jct < best[row.workload].avg_jct:
            best[row.workload] = row
    return ["green" if len(rows) > 1 and row == best[row.workload] else "" for row in rows]


def _table(columns: Sequence[Column], styles: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        right = "right" if column.right else "left"
        options = {"width": column.size, "no_wrap": True}
        table.add_column(column.title, justify=right, **options)  # type: ignore[arg-type]
    for index, style in enumerate(styles):
        table.add_row(*(column.cells[index] for column in columns), style=style)
    return table


def document(blocks: Sequence[Block], failures: Sequence[FailedRun] = ()) -> dict[str, Any]:
    """`gpq simulate --json`: seconds, shares from 0 to 1, and milliseconds if the name says so.
    `failures`: the runs that failed, and why."""
    runs = [{"cluster": block.cluster, **asdict(row)} for block in blocks for row in block.rows]
    means = []
    for block in blocks:
        for row in block.means:
            count = sum(run.policy == row.policy for run in block.rows)
            figures = asdict(row)
            del figures["workload"], figures["seed"]
            means.append({"cluster": block.cluster, "runs": count, **figures})
    return {
        "schema": SCHEMA,
        "runs": runs,
        "means": means,
        "members": [
            {"cluster": block.cluster, **asdict(row)} for block in blocks for row in block.members
        ],
        "failed": [asdict(failure) for failure in failures],
    }


def csv_text(blocks: Sequence[Block]) -> str:
    """One line per run, with the names and units of the JSON. Unknown values are empty cells."""
    stream = io.StringIO()
    writer = csv.DictWriter(
        stream, ["cluster", *(field.name for field in fields(Summary))], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(document(blocks)["runs"])
    return stream.getvalue()
