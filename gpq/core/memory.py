"""What a policy keeps of its estimates from one round to the next: a table is made anew when what it rests on changed.

Step times are means that hardly move once they rest on many steps, so a fit is kept until a row is off by more than a
measurement is worth. Kept is only what could be computed again: a new memory answers nearly the same.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace

from gpq.core import estimates
from gpq.core.goodput import GoodputTable
from gpq.core.models import Declared, Job, JobId, Noise, ProfileRow, Shape

Shapes = tuple[Shape, ...]

TIME_TOLERANCE = 0.03  # a mean may move by this share before the model is fitted again
NOISE_TOLERANCE = 0.05  # and the noise scale by this one before goodput is computed again
WEIGHT_TOLERANCE = 2.0  # times as many steps
WELL_KNOWN = 50.0  # steps from which on a weight says no more


@dataclass(slots=True)
class _Known:
    """`rows` and `noise` are what the table was computed from; `seen_*` what was last asked about and found as good."""

    rows: tuple[ProfileRow, ...]
    noise: Noise | None
    declared: Declared | None
    shapes: Shapes
    table: GoodputTable | None
    seen_rows: tuple[ProfileRow, ...]
    seen_noise: Noise | None


@dataclass
class Memory:
    """Answers as `estimates.table`."""

    _known: dict[JobId, _Known] = field(default_factory=dict)

    def table(self, job: Job, shapes: Shapes) -> GoodputTable | None:
        """Best batch and goodput of every shape, None while the job has no model."""
        profile, known = job.profile, self._known.get(job.id)
        rows, noise = profile.rows, profile.noise
        if known is not None:
            rows = known.rows if rows is known.seen_rows or _rows_alike(known.rows, rows) else rows
            noise = known.noise if noise is known.seen_noise or _noise_alike(known.noise, noise) else noise
            known.seen_rows, known.seen_noise = profile.rows, profile.noise
            same = rows is known.rows and noise is known.noise and profile.declared is known.declared
            if same and (known.shapes is shapes or known.shapes == shapes):
                return known.table
        asked = job
        if rows is not profile.rows or noise is not profile.noise:
            asked = replace(job, profile=replace(profile, rows=rows, noise=noise))
        table = estimates.table(asked, shapes)
        self._known[job.id] = _Known(rows, noise, profile.declared, shapes, table, profile.rows, profile.noise)
        return table

    def forget_others(self, jobs: Container[JobId]) -> None:
        """Keep only what is known of `jobs`."""
        for name in [name for name in self._known if name not in jobs]:
            del self._known[name]


def _rows_alike(old: tuple[ProfileRow, ...], new: tuple[ProfileRow, ...]) -> bool:
    return len(old) == len(new) and all(a is b or _row_alike(a, b) for a, b in zip(old, new, strict=True))


def _row_alike(old: ProfileRow, new: ProfileRow) -> bool:
    return (
        (old.nodes, old.replicas, old.atomic_batch, old.gpu_type)
        == (new.nodes, new.replicas, new.atomic_batch, new.gpu_type)
        and abs(new.step_time - old.step_time) <= TIME_TOLERANCE * old.step_time
        and abs(new.grad_time - old.grad_time) <= TIME_TOLERANCE * old.grad_time
        and (min(old.weight, new.weight) >= WELL_KNOWN or new.weight <= WEIGHT_TOLERANCE * old.weight)
    )


def _noise_alike(old: Noise | None, new: Noise | None) -> bool:
    """Only the noise scale, var / sqr, counts."""
    if old is None or new is None or min(old.samples, new.samples) <= 0:
        return old is new
    before, after = old.var * new.sqr, new.var * old.sqr
    return abs(after - before) <= NOISE_TOLERANCE * abs(before) and (old.sqr > 0) == (new.sqr > 0)
