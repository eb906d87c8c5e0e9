"""One figure of simulated runs: completion times, finish-time fairness, and who had the GPUs when. SVG or PNG.

The only module that imports matplotlib, and only when a figure is asked for. The same runs give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from gpq.core.units import Seconds
from gpq.errors import UsageError
from gpq.sim.compare import Block
from gpq.sim.outcomes import JobOutcome, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = {".svg": "svg", ".png": "png"}
MOST_PANELS = 3  # of GPUs over time; with more policies, of the first alone
HOUR = 3600.0


def check(path: str) -> None:
    """Raises UsageError for what could not be drawn or written: to be asked before hours of simulation."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise UsageError(
            f"--plot {path}: cannot draw {ending or 'a file without an ending'}", "write FILE.svg or FILE.png"
        )
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"--plot {path}: cannot write in {folder}", "name a folder that is there and writable")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib", "pip install 'goodput-queue[plot]'")


def draw(blocks: Sequence[Block], path: str) -> None:
    """Of several clusters each policy has a line for each. Raises UsageError as `check` does."""
    check(path)
    import matplotlib
    from matplotlib.figure import Figure

    kind = FORMATS[os.path.splitext(path)[1].lower()]
    groups = _groups(blocks)
    panels = _panels(groups)
    with matplotlib.rc_context({"svg.hashsalt": "gpq", "font.size": 9.0, "axes.spines.top": False,
                                "axes.spines.right": False}):  # fmt: skip
        figure = Figure(figsize=(10.0, 7.0), layout="constrained")
        grid = figure.add_gridspec(2, 2 * len(panels))
        _completion(figure.add_subplot(grid[0, : len(panels)]), groups)
        _fairness(figure.add_subplot(grid[0, len(panels) :]), groups)
        for index, (label, outcome) in enumerate(panels):
            _gpus(figure.add_subplot(grid[1, 2 * index : 2 * index + 2]), label, outcome)
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        beside = f"{path}.part"  # an older figure is replaced by a whole one or not at all
        try:
            figure.savefig(beside, format=kind, dpi=150, metadata=metadata)
            os.replace(beside, path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(beside)
            raise UsageError(f"--plot {path}: {error.strerror or error}", "name a file that can be written") from None


def _groups(blocks: Sequence[Block]) -> dict[str, list[Outcome]]:
    """All runs of a policy (and cluster, where there are several) together."""
    groups: dict[str, list[Outcome]] = {}
    for block in blocks:
        for outcome in block.outcomes:
            label = f"{outcome.policy}, {block.cluster}" if len(blocks) > 1 else outcome.policy
            groups.setdefault(label, []).append(outcome)
    return groups


def _panels(groups: dict[str, list[Outcome]]) -> list[tuple[str, Outcome]]:
    firsts = [(label, outcomes[0]) for label, outcomes in groups.items()]
    return firsts if len(firsts) <= MOST_PANELS else firsts[:1]


def _completion(axes: Axes, groups: dict[str, list[Outcome]]) -> None:
    for label, outcomes in groups.items():
        _ecdf(axes, [job.completion_seconds / HOUR for outcome in outcomes for job in outcome.jobs], label)
    axes.set_xscale("log")
    axes.set_xlabel("completion time (h)")
    axes.set_ylabel("share of jobs")
    axes.legend(frameon=False)


def _fairness(axes: Axes, groups: dict[str, list[Outcome]]) -> None:
    for label, outcomes in groups.items():
        _ecdf(axes, [job.rho for outcome in outcomes for job in outcome.jobs if job.rho is not None], label)
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes.set_xlabel("finish-time fairness (1 = as with a fair share)")


def _ecdf(axes: Axes, values: Sequence[float], label: str) -> None:
    if values:
        ordered = np.sort(values)
        axes.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", label=label)


def _gpus(axes: Axes, label: str, outcome: Outcome) -> None:
    jobs = sorted(outcome.jobs, key=lambda job: (job.started_at, job.name))
    moments, held = gpus_over_time(jobs)
    axes.stackplot(moments / HOUR, held, step="post", linewidth=0.0)
    axes.set_ylim(0, outcome.gpus)
    axes.margins(x=0.01)
    axes.set_title(f"{label}: {outcome.workload}", fontsize=9.0)
    axes.set_xlabel("time (h)")
    axes.set_ylabel("GPUs by job")


def gpus_over_time(jobs: Sequence[JobOutcome]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(moments of change in seconds, GPUs of each job from each moment on: jobs x moments)."""
    changes: list[list[tuple[Seconds, int]]] = [[*job.sizes, (job.ended_at, 0)] for job in jobs]
    moments = np.array(sorted({moment for sizes in changes for moment, _ in sizes}))
    held = np.zeros((len(jobs), len(moments)))
    for row, sizes in enumerate(changes):
        for moment, count in sizes:
            held[row, np.searchsorted(moments, moment) :] = count
    return moments, held
