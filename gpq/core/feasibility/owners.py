"""Servers that are somebody's: gpq hands their GPUs back while the owner is there, and takes them
again once the owner is gone.

Being there is a reservation of the whole server that the reports of its node make and undo. Silence
undoes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.jobs import Job, Level
from gpq.core.model.nodes import DeviceState, Node, NodeState, Reservation
from gpq.core.model.profile import RESIZE
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import Seconds

FOR_EVER: Seconds = 1e11
ITS_OWNER = "its owner"  # who asked for such a reservation


def presence(node: Node) -> str:
    """What shows that its owner is there, ``uses GPU 0``; "" where nothing does, or it is
    nobody's."""
    if not node.owner:
        return ""
    for device in node.devices:
        # a blip is told as neither
        others = device.state is DeviceState.FOREIGN or bool(device.reason)
        if others and any(one.user == node.owner and not one.attempt for one in device.processes):
            return f"uses GPU {device.index}"
    return "asked for it with `gpq yield`" if node.owner in node.yields else ""


def folded(held: Mapping[int, Reservation], node: Node, now: Seconds) -> Mapping[int, Reservation]:
    """Reservations after a report of `node`. The same mapping where nothing changes."""
    if node.state is not NodeState.UP:
        return held
    mine = [each for each in held.values() if each.node == node.id and is_owners(each)]
    there = bool(presence(node))
    if there and any(each.user == node.owner for each in mine):
        return held
    if not there and not mine:
        return held
    rest = {name: each for name, each in held.items() if each not in mine}
    if not there:
        return rest
    number = min([0, *rest]) - 1
    return {**rest, number: Reservation(number, node.id, now, FOR_EVER, (), node.owner, ITS_OWNER)}


def is_owners(held: Reservation) -> bool:
    """Those have ids below 0."""
    return held.id < 0


def suits(job: Job, node: Node) -> bool:
    """May it start there? On somebody's server only what leaves without loss when the owner comes,
    or the owner's own."""
    return (
        not node.owner
        or job.spec.user == node.owner
        or (leaves(job) and RESIZE not in job.profile.lost)
    )


def leaves(job: Job) -> bool:
    """Is it a job that can be told to leave, once it has declared itself? One whose loop turns out
    to be harmed by that is told all the same: the owner comes first."""
    spec = job.spec
    return (
        spec.background
        or spec.level is Level.SIGNAL
        or (spec.level is Level.SCRIPT and not spec.rigid)
    )


def is_over_its_grace(job: Job, held: Reservation, snapshot: Snapshot) -> bool:
    """Has a job that did not declare itself had its grace since the owner came? Then it starts anew
    elsewhere: what it did since its start is little, and it would stay for ever."""
    return is_owners(held) and leaves(job) and snapshot.now >= held.start + job.spec.grace
