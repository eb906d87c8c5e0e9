"""Jobs that a round values together: rows of one matrix, because they have the same options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput.batches import GoodputTable
from gpq.core.model.units import JobId
from gpq.policies.goodput.candidates import Candidate, Options

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates with the same options and offer. Rows are candidates, columns are options."""

    rows: Sequence[Candidate]
    tables: Sequence[GoodputTable | None]
    max_replicas: Sequence[int]

    @property
    def options(self) -> Options:
        return self.rows[0].options


def groups_of(
    candidates: Sequence[Candidate],
    tables: Mapping[JobId, GoodputTable | None],
    max_replicas: Mapping[JobId, int],
) -> list[Group]:
    rows_by_options: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        if candidate.options.shapes:
            rows_by_options.setdefault(id(candidate.options), []).append(candidate)
    return [
        Group(
            rows, [tables[row.job.id] for row in rows], [max_replicas[row.job.id] for row in rows]
        )
        for rows in rows_by_options.values()
    ]


def speeds_of(group: Group) -> Array:
    """Goodput, rows x options. A job about which nothing is known counts as if it scaled
    perfectly."""
    replicas = group.options.replicas.astype(np.float64)
    speeds = np.stack([replicas if table is None else table.goodput for table in group.tables])
    speeds[~speeds.any(axis=1)] = replicas
    return speeds
