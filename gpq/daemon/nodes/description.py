"""A server in the core's terms, from its configuration, its agent's greeting and its newest report.
Conversion only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpq_agent import wire

from gpq.core.model.nodes import Node, NodeState, Orphan
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import Seconds
from gpq.core.rounds.reconcile import AttemptVerdict, fate
from gpq.daemon.nodes import decode
from gpq.daemon.nodes.decode import ALIVE, Info, Key
from gpq.daemon.nodes.settings import NodeSettings

MOST_YIELDS = 64  # users who want the server back


def description(
    settings: NodeSettings,
    hello: Mapping[str, Any],
    devices: Sequence[Info],
    attempts: Mapping[Key, Info],
    snapshot: Snapshot,
    yields: Sequence[str],
    now: Seconds,
) -> Node:
    """`attempts` are those that the server has. `yields` are users who want it back."""
    living_attempts = {key: info for key, info in attempts.items() if info["state"] in ALIVE}
    fates = {key: fate(snapshot, settings.node, *key) for key in living_attempts}
    addresses = decode.addresses_of(hello, settings.address, settings.interface)
    return Node(
        id=settings.node,
        state=NodeState.UP,
        devices=decode.devices_of(
            devices, _foreign_reasons(living_attempts, fates), tuple(settings.gpus), now
        ),
        cores=decode.whole(hello.get("cores", 0)),
        memory_mib=decode.whole(hello.get("memory_mib", 0)),
        boot_id=str(hello.get("boot_id", "")),
        seen_at=now,
        address=addresses[0] if addresses else "127.0.0.1",
        addresses=addresses,
        interface=settings.interface,
        ephemeral=decode.ephemeral_of(hello),
        stuck=decode.living_notes(attempts),
        storage=storage_of(hello),
        strangers=_strangers(living_attempts, fates, f"{hello.get('path', '')}/attempts"),
        damage=decode.damage(hello, attempts),
        owner=settings.owner,
        yields=tuple(sorted(map(str, yields)))[:MOST_YIELDS],
    )


def storage_of(hello: Mapping[str, Any]) -> str:
    """The identity of its checkpoint folder."""
    return str(hello.get("storage") or "")


def _foreign_reasons(
    attempts: Mapping[Key, Info], fates: Mapping[Key, AttemptVerdict]
) -> dict[str, str]:
    """Why gpq cannot have a device, by device."""
    reasons: dict[str, str] = {}
    for key, info in attempts.items():
        reason = _reason(key, fates[key])
        if reason:
            reasons |= dict.fromkeys(info.get("devices", ()), reason)
    return reasons


def _reason(key: Key, attempt_fate: AttemptVerdict) -> str:
    """Why nobody else gets the devices of a living attempt. "" if that is known anyway."""
    name = wire.attempt_key(*key)
    match attempt_fate:
        case AttemptVerdict.STRANGER:
            return f"used by attempt {name}, which is not in this daemon's database"
        case AttemptVerdict.OVER:
            return f"used by attempt {name}, which gpq is ending"
        case _:
            return ""


def _strangers(
    attempts: Mapping[Key, Info], fates: Mapping[Key, AttemptVerdict], folder: str
) -> tuple[Orphan, ...]:
    """An attempt that is committed a moment later is not a stranger: no job starts before its
    commit."""
    return tuple(
        Orphan(
            *key,
            since=info.get("started_at") or 0.0,
            pid=info.get("pid") or 0,
            folder=f"{folder}/{wire.attempt_key(*key)}",
        )
        for key, info in sorted(attempts.items())
        if fates[key] is AttemptVerdict.STRANGER
    )
