"""Which running jobs are stopped now, so that they move: those that can start again at once."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.placements import Placement
from gpq.core.model.units import DeviceId, JobId, NodeId


def stoppable(
    moves: Mapping[JobId, Placement], holders: Mapping[tuple[NodeId, DeviceId], JobId]
) -> set[JobId]:
    """The jobs of `moves` that need not wait for another to leave. All others keep training until
    then: stopped now, they would stand still.

    moves: where jobs that run are to go. holders: who holds each device.

    A job that waits for itself in the end, such as one of two that swap places, does not wait.
    """
    blockers = {
        name: {holders[device] for device in placement.devices if device in holders} - {name}
        for name, placement in moves.items()
    }
    return {name for name in moves if not blockers[name] or name in _reached(name, blockers)}


def _reached(name: JobId, blockers: Mapping[JobId, set[JobId]]) -> set[JobId]:
    """The jobs for whose devices it waits, and those for whose devices these wait, and so on."""
    reached: set[JobId] = set()
    queue = [*blockers[name]]
    while queue:
        blocker = queue.pop()
        if blocker not in reached:
            reached.add(blocker)
            queue += blockers.get(blocker, ())
    return reached
