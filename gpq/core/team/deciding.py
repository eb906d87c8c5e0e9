"""From a round's placements to grants: who may have which devices at once, and who must wait until
others have left."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.placements import Placement
from gpq.core.model.units import JobId
from gpq.core.team.claims import Parts
from gpq.core.team.grants import Grant
from gpq.core.team.merging import Memory, Team

CHOICES = 4  # of a job that are remembered


def grant(
    team: Team, placements: Mapping[JobId, Placement], movers: set[JobId], memory: Memory
) -> dict[str, tuple[Grant, ...]]:
    """By member. A job in `movers` may leave for its new place. Others stay until theirs is free.
    Changes `memory`."""
    occupants, starts = dict(team.occupants), dict[JobId, Placement]()
    grants: dict[str, list[Grant]] = {}
    for name, (member, claim) in team.claims.items():
        present, target = team.presence.get(name), placements.get(name)
        if claim.parts and present is None:  # a holding that does not count stays its own affair
            grants.setdefault(member, []).append(Grant(claim.job, claim.parts))
            continue
        if target is None or name not in team.snapshot.jobs:
            continue
        if present is None:
            if any(occupants.get(place, name) != name for place in target.devices):
                continue
            occupants |= dict.fromkeys(target.devices, name)
        elif name not in movers:
            target = present
        if target != present:
            starts[name] = target
            choices = (*memory.choices.get(name, ()), target)
            memory.choices[name] = tuple(dict.fromkeys(choices))[-CHOICES:]
        grants.setdefault(member, []).append(Grant(claim.job, _parts(team, member, target)))
    memory.starts = starts
    return {member: tuple(own) for member, own in grants.items()}


def _parts(team: Team, member: str, placement: Placement) -> Parts:
    """As the member calls the servers."""
    parts = ((team.names[member, node], ids) for node, ids in placement.parts)
    return tuple(sorted(parts))
