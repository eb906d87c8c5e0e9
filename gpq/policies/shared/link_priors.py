"""What was measured between servers (`gpq doctor`), and what it says about jobs that never ran on
two of them. Pure.

Jobs borrow a row for two replicas on two nodes, as `priors` lends rows. So the network term of
their model is that of this network before the first such launch, not a tenth above that within one
node. The first row over several nodes that the program measured replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from gpq.core.goodput.goodput import overlap
from gpq.core.goodput.observations import is_usable
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import Link
from gpq.core.model.profile import Prior, ProfileRow
from gpq.core.model.units import NodeId

LENT_WEIGHT = 5.0  # steps that such a row counts for
BYTES = 4.0  # for the gradient of a parameter
USUAL_OVERLAP = 2.0  # gamma of the step model if it was not measured (measured.usual)

Links = Mapping[tuple[NodeId, NodeId], Link]


def slowest(links: Links) -> Link | None:
    """The link that an all-reduce over all servers waits for: the least bandwidth, then the highest
    latency."""
    return min(links.values(), key=lambda link: (link.bandwidth, -link.latency), default=None)


def sync_seconds(link: Link, parameters: int) -> float:
    """For two replicas at the two ends of a link: each sends and receives every gradient once, as
    the measurement did."""
    return link.latency + BYTES * parameters / link.bandwidth


def inform(job: Job, prior: Prior | None, links: Links) -> Prior | None:
    """`prior` with a row of two nodes, if the job has reported its size and times, and neither was
    measured over nodes. The same object if there is nothing to add, and for the same question."""
    link, declaration = slowest(links), job.profile.declared
    if link is None or declaration is None or declaration.parameters <= 0:
        return prior
    return _with_link_rows(job.profile.basis, prior, declaration.parameters, link)


@lru_cache(maxsize=4096)
def _with_link_rows(
    rows: tuple[ProfileRow, ...], prior: Prior | None, parameters: int, link: Link
) -> Prior | None:
    prior = prior or Prior()
    usable_rows = [row for row in (*rows, *prior.rows) if is_usable(row)]
    if not usable_rows or any(row.nodes > 1 for row in usable_rows):
        return prior
    best = _weightiest(usable_rows)
    loans = [_row(best[name], sync_seconds(link, parameters)) for name in sorted(best)]
    return Prior((*prior.rows, *loans), prior.noise, prior.max_replicas, prior.noise_curve)


def _weightiest(rows: Sequence[ProfileRow]) -> dict[str, ProfileRow]:
    """The row of each type that counts most, the first among equals."""
    best: dict[str, ProfileRow] = {}
    for row in rows:
        if row.gpu_type not in best or row.weight > best[row.gpu_type].weight:
            best[row.gpu_type] = row
    return best


def _row(row: ProfileRow, sync: float) -> ProfileRow:
    grad_time = row.step_time if row.replicas == 1 or row.grad_time <= 0 else row.grad_time
    step_time = float(overlap(USUAL_OVERLAP, grad_time, sync))
    return ProfileRow(2, 2, row.atomic_batch, row.grad_time, step_time, LENT_WEIGHT, row.gpu_type)
