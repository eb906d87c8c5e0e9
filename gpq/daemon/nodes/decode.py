"""Messages of a server (wire) -> the core's types: exits, devices, servers. Conversion only."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpq_agent import wire

from gpq.core.feasibility.owners import presence
from gpq.core.model.nodes import Device, DeviceProcess, DeviceState, Node
from gpq.core.model.placements import Exit
from gpq.core.model.profile import RankPulse
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds

Key = tuple[JobId, int]  # of an attempt
Info = Mapping[str, Any]  # a wire.AttemptInfo

ALIVE = ("starting", "running", "orphan")
ENDED = ("exited", "lost")
MOST_DAMAGE = 20  # lines of one server
LONGEST_NOTE = 500  # characters
MOST_ADDRESSES = 16  # of a server, for peers to try
MOST = 1 << 53  # of any number. Beyond it JSON and floats are not exact


def whole(value: Any) -> int:
    """Raises ValueError, TypeError or OverflowError for what is not a number, or an impossible
    one."""
    number = int(value)
    if abs(number) > MOST:
        raise ValueError("a number is out of range")
    return number


def real(value: Any) -> float:
    """Like `whole`, for a finite number."""
    number = float(value)
    if not math.isfinite(number) or abs(number) > MOST:
        raise ValueError("a number is out of range")
    return number


def moment(stamp: Any, report_stamp: Any, now: Seconds) -> Seconds:
    """The time of a server's stamp by the daemon's clock. It uses the stamp's age in the report of
    that `report_stamp`, received at `now`, because neither side knows the other's clock. 0.0 if the
    server does not say."""
    if stamp is None or report_stamp is None:
        return 0.0
    return now - max(real(report_stamp) - real(stamp), 0.0)


def acknowledgement(report: Mapping[str, Any], boot_id: str) -> Mapping[str, Any]:
    """What a wire.StartOrder says about the newest report received before it."""
    if "stamp" in report:
        return {"stamp": real(report["stamp"]), "boot_id": boot_id}
    return {"expires_at": real(report["time"]) + wire.START_EXPIRY}  # an agent before 0.2


def exit_of(record: Mapping[str, Any] | None, *, is_lost: bool, at: Seconds = 0.0) -> Exit:
    """A wire.ExitRecord. `is_lost`: nobody saw the end, so the code is not known. `at` is its time,
    or 0.0 if not known."""
    if record is None:
        return Exit(code=None, lost=True, note="its server no longer knows it")
    code, signal = record.get("code"), record.get("signal")
    return Exit(
        code=None if code is None else whole(code),
        signal=None if signal is None else whole(signal),
        stopped=bool(record.get("stopped", False)),
        asked=str(record.get("asked") or ""),
        ended_at=at,
        oom=bool(record.get("oom", False)),
        note=str(record.get("note") or ""),
        lost=is_lost,
        fenced=bool(record.get("fenced", False)),
        unlaunched=str(record.get("unlaunched") or ""),
        excused=str(record.get("excused") or ""),
        cause=str(record.get("cause") or ""),
        victim=bool(record.get("victim", False)),
        finished=bool(record.get("finished", False)),
        evidence=str(record.get("evidence") or ""),
    )


def devices_of(
    infos: Sequence[Mapping[str, Any]],
    foreign_reasons: Mapping[str, str],
    gpus: Collection[str] = (),
    now: Seconds = 0.0,
) -> tuple[Device, ...]:
    """A list of wire.DeviceInfo at `now`. Of GPUs only those named in `gpus` by UUID or index, if
    it names any. `foreign_reasons` says for each device why gpq cannot have it: a process that this
    daemon does not expect uses it."""
    return tuple(
        _device(info, foreign_reasons.get(info["id"], ""), now)
        for info in infos
        if not gpus or info["kind"] != "cuda" or info["id"] in gpus or str(info["index"]) in gpus
    )


def _device(info: Mapping[str, Any], foreign_reason: str, now: Seconds) -> Device:
    utilisation = info.get("utilisation")
    age, due = real(info.get("age", 0.0)), real(info.get("next_probe", 0.0))
    device = Device(
        id=DeviceId(str(info["id"])),
        index=whole(info["index"]),
        kind=str(info["kind"]),
        type=str(info["type"]),
        memory_mib=whole(info.get("memory_mib", 0)),
        state=_state(str(info.get("state", "ok"))),
        reason=str(info.get("reason", "")),
        used_mib=whole(info.get("used_mib", 0)),
        utilisation=None if utilisation is None else whole(utilisation),
        processes=tuple(_process(process) for process in info.get("processes", ())),
        since=now - age if age > 0 else 0.0,
        next_probe=now + due if due > 0 else 0.0,
    )
    if foreign_reason and device.state is DeviceState.OK:
        return replace(device, state=DeviceState.FOREIGN, reason=foreign_reason)
    return device


def living_notes(attempts: Mapping[Key, Info]) -> tuple[tuple[str, str], ...]:
    """Notes on living attempts: what the server has of them besides their states."""
    notes = {key: str((info.get("exit") or {}).get("note") or "") for key, info in attempts.items()}
    return tuple(
        (f"{key[0]}.{key[1]}", note[:LONGEST_NOTE])
        for key, note in sorted(notes.items())
        if note and attempts[key]["state"] not in ENDED
    )


def damage(hello: Mapping[str, Any], attempts: Mapping[Key, Info]) -> tuple[str, ...]:
    """Files that the server set aside, one line each, at most MOST_DAMAGE."""
    lines = [str(line) for line in hello.get("damage", ())]
    lines += [
        f"attempt {key[0]}.{key[1]}: {line}"
        for key, info in sorted(attempts.items())
        for line in info.get("damage", ())
    ]
    return tuple(line[:LONGEST_NOTE] for line in lines[:MOST_DAMAGE])


def _state(word: str) -> DeviceState:
    """An unknown word of a newer agent means at least that gpq must not use the device."""
    return DeviceState(word) if word in set(DeviceState) else DeviceState.DEGRADED


def _process(info: Mapping[str, Any]) -> DeviceProcess:
    return DeviceProcess(
        pid=whole(info.get("pid", 0)),
        user=str(info.get("user", "")),
        name=str(info.get("name", "")),
        memory_mib=whole(info.get("memory_mib", 0)),
        attempt=str(info.get("attempt", "")),
        command=str(info.get("command", "")),
        since=real(info.get("since", 0.0)),
    )


def pulses_of(
    ranks: Sequence[Mapping[str, Any]], node: NodeId, now: Seconds
) -> tuple[RankPulse, ...]:
    """A list of wire.Pulse. `since` is by the daemon's clock: a server reports how long ago it
    was."""
    return tuple(
        RankPulse(
            whole(pulse["rank"]),
            node,
            whole(pulse["step"]),
            str(pulse["phase"]),
            now - real(pulse["age"]),
        )
        for pulse in ranks
        if pulse["phase"] in wire.PHASES
    )


def addresses_of(hello: Mapping[str, Any], address: str, interface: str) -> tuple[str, ...]:
    """Where peers may try to reach a server: the configured address, otherwise the configured
    interface, otherwise the address that ssh reached and then all other addresses."""
    if address:
        return (address,)
    rows = list(hello.get("network", ()))[:MOST_ADDRESSES]
    addresses = [
        str(candidate)
        for name, candidate in rows
        if interface in ("", str(name)) and is_address(str(candidate))
    ]
    ssh = str(hello.get("address") or "")
    if is_address(ssh) and (not interface or ssh in addresses):
        addresses.insert(0, ssh)
    return tuple(dict.fromkeys(addresses))


def is_address(text: str) -> bool:
    """A number, not a name, because it is sent to other servers."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def ephemeral_of(hello: Mapping[str, Any]) -> tuple[int, int]:
    """Ports that its kernel gives to outgoing connections. Linux's default if an agent does not
    say."""
    first, last = hello.get("ephemeral") or Node(NodeId("")).ephemeral
    return whole(first), whole(last)


def differs(before: Node | None, after: Node) -> bool:
    """Is there news for rounds? The present load of a device is not."""
    return before is None or _outline(before) != _outline(after)


def _outline(node: Node) -> tuple[object, ...]:
    devices = tuple(
        (
            device.id,
            device.index,
            device.kind,
            device.type,
            device.memory_mib,
            device.state,
            device.reason,
        )
        for device in node.devices
    )
    net = (
        node.address,
        node.addresses,
        node.interface,
        node.ephemeral,
        node.storage,
        node.strangers,
        presence(node),
    )
    return (
        node.state,
        node.boot_id,
        node.cores,
        node.memory_mib,
        *net,
        node.stuck,
        node.damage,
        devices,
    )
