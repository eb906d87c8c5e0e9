"""One figure of simulated runs: completion times, finish-time fairness, and GPUs over time. SVG or
PNG.

The only module that imports matplotlib, and only for a figure. The same runs give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpq.cli import output
from gpq.core.model.units import Seconds
from gpq.errors import UsageError
from gpq.lab.simulator.compare import Block
from gpq.lab.simulator.outcomes import JobOutcome, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = {".svg": "svg", ".png": "png"}
BACKENDS = {"svg": "svg", "png": "agg"}
LEGEND_COLUMNS = 4  # at most, above the figure, which grows with the rows
LEGEND_WIDTH = 140  # characters that fit in a row
LEGEND_ROW = 0.25  # inches
Style = Literal["-", "--", ":", "-."]
STYLES: tuple[Style, ...] = ("-", "--", ":", "-.")
MOST_PANELS = 3  # panels of GPUs over time. With more policies, only the first is shown
HOUR = 3600.0


def check(path: str) -> None:
    """Raises UsageError if the figure could not be drawn or written. Call it before hours of
    simulation."""
    extension = os.path.splitext(path)[1].lower()
    if extension not in FORMATS:
        raise UsageError(
            f"--plot {path}: cannot draw {extension or 'a file without an extension'}",
            "use FILE.svg or FILE.png",
        )
    output.check_file("--plot", path)
    try:
        import_module("matplotlib.figure")
        import_module(f"matplotlib.backends.backend_{BACKENDS[FORMATS[extension]]}")
    except Exception as error:  # one built for another numpy raises anything
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UsageError(
            f"--plot needs matplotlib, which cannot be imported: {problem}",
            "pip install 'goodput-queue[plot]'",
        ) from None


def draw(blocks: Sequence[Block], path: str) -> None:
    """Draw the figure. With several clusters, each policy has one line per cluster. Raises
    UsageError as `check` does."""
    check(path)
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    kind = FORMATS[os.path.splitext(path)[1].lower()]
    groups = _groups(blocks)
    jobs_of_groups = [
        [job for outcome in outcomes for job in outcome.jobs] for outcomes in groups.values()
    ]
    panels = [(label, outcomes[0]) for label, outcomes in groups.items()]
    if len(panels) > MOST_PANELS:
        panels = panels[:1]
    with matplotlib.rc_context({"svg.hashsalt": "gpq", "font.size": 9.0, "axes.spines.top": False,
                                "axes.spines.right": False}):  # fmt: skip
        # as many as fit with the longest label and eight characters for line and gap
        columns = min(len(groups), LEGEND_COLUMNS, LEGEND_WIDTH // (max(map(len, groups)) + 8))
        columns = max(columns, 1)
        height = 7.0 + LEGEND_ROW * -(-len(groups) // columns)
        figure = Figure(figsize=(10.0, height), layout="constrained")
        grid = figure.add_gridspec(2, 2 * len(panels))
        axes = figure.add_subplot(grid[0, : len(panels)])
        hours = [[job.completion_seconds / HOUR for job in jobs] for jobs in jobs_of_groups]
        _ecdfs(axes, groups, hours)
        axes.set_xlabel("completion time (h)")
        axes.set_ylabel("share of jobs")
        axes = figure.add_subplot(grid[0, len(panels) :])
        rhos = [[job.rho for job in jobs if job.rho is not None] for jobs in jobs_of_groups]
        _ecdfs(axes, groups, rhos)
        axes.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
        axes.set_xlabel("finish-time fairness (1 = as with a fair share)")
        figure.legend(
            handles=[
                Line2D([], [], label=label, color=colour, linestyle=style)
                for (colour, style), label in zip(_looks(len(groups)), groups, strict=True)
            ],
            loc="outside upper center",
            ncols=columns,
            frameon=False,
            handlelength=3.0,
        )
        for index, (label, outcome) in enumerate(panels):
            _gpus(figure.add_subplot(grid[1, 2 * index : 2 * index + 2]), label, outcome)
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        with output.replace_file("--plot", path) as part:
            figure.savefig(part, format=kind, dpi=150, metadata=metadata)


def _groups(blocks: Sequence[Block]) -> dict[str, list[Outcome]]:
    """All runs of a policy together, by cluster if there are several."""
    groups: dict[str, list[Outcome]] = {}
    for block in blocks:
        for outcome in block.outcomes:
            label = f"{outcome.policy}, {block.cluster}" if len(blocks) > 1 else outcome.policy
            groups.setdefault(label, []).append(outcome)
    return groups


def _looks(count: int) -> list[tuple[str, Style]]:
    """A colour and a line style for each: ten colours, then the same dashed, dotted and
    dash-dotted."""
    pairs = [(f"C{colour}", style) for style, colour in product(STYLES, range(10))]
    return [pairs[index % len(pairs)] for index in range(count)]


def _ecdfs(axes: Axes, labels: Iterable[str], groups: Sequence[Sequence[float]]) -> None:
    """The share of the values of each group up to each value, on a logarithmic axis."""
    for (colour, style), label, values in zip(_looks(len(groups)), labels, groups, strict=True):
        if values:
            shares = np.arange(1, len(values) + 1) / len(values)
            axes.step(
                np.sort(values), shares, where="post", label=label, color=colour, linestyle=style
            )
    axes.set_xscale("log")


def _gpus(axes: Axes, label: str, outcome: Outcome) -> None:
    jobs = sorted(outcome.jobs, key=lambda job: (job.started_at, job.name))
    moments, gpus = gpus_over_time(jobs)
    axes.stackplot(moments / HOUR, gpus, step="post", linewidth=0.0)
    axes.set_ylim(0, outcome.gpus)
    axes.margins(x=0.01)
    axes.set_title(f"{label}: {outcome.workload}", fontsize=9.0)
    axes.set_xlabel("time (h)")
    axes.set_ylabel("GPUs by job")


def gpus_over_time(jobs: Sequence[JobOutcome]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(times of changes in seconds, GPUs of each job from each time on: jobs x times)."""
    changes: list[list[tuple[Seconds, int]]] = [[*job.sizes, (job.ended_at, 0)] for job in jobs]
    moments = np.array(sorted({moment for sizes in changes for moment, _ in sizes}))
    gpus = np.zeros((len(jobs), len(moments)))
    for row, sizes in enumerate(changes):
        for moment, count in sizes:
            gpus[row, np.searchsorted(moments, moment) :] = count
    return moments, gpus
