"""What a node says (wire) -> what the core calls it: exits, devices, nodes. Conversion only."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpq.core.models import Exit
from gpq.core.nodes import Device, DeviceProcess, DeviceState, Node
from gpq.core.units import DeviceId

MOST = 1 << 53  # of any number; beyond it JSON and floats are not exact


def whole(value: Any) -> int:
    """Raises ValueError, TypeError or OverflowError for what is no number, or none that anything could have."""
    number = int(value)
    if abs(number) > MOST:
        raise ValueError("a number is out of range")
    return number


def real(value: Any) -> float:
    """As `whole`, of a finite one."""
    number = float(value)
    if not math.isfinite(number) or abs(number) > MOST:
        raise ValueError("a number is out of range")
    return number


def exit_of(record: Mapping[str, Any] | None, *, lost: bool) -> Exit:
    """A wire.ExitRecord. `lost`: nobody saw the end, so the code is not known."""
    if record is None:
        return Exit(code=None, lost=True, note="the node does not know it any more")
    code, signal = record.get("code"), record.get("signal")
    return Exit(
        code=None if code is None else whole(code),
        signal=None if signal is None else whole(signal),
        stopped=bool(record.get("stopped", False)),
        asked=str(record.get("asked") or ""),
        ended_at=real(record.get("ended_at") or 0.0),
        oom=bool(record.get("oom", False)),
        note=str(record.get("note") or ""),
        lost=lost,
        fenced=bool(record.get("fenced", False)),
    )


def devices_of(
    infos: Sequence[Mapping[str, Any]], taken: Mapping[str, str], gpus: Collection[str] = ()
) -> tuple[Device, ...]:
    """wire.DeviceInfo list; of GPUs only those named in `gpus` by UUID or index, when it names any. `taken`: why a
    device is not to be had, by device: a process that this daemon does not count on is on it."""
    return tuple(
        _device(info, taken.get(info["id"], ""))
        for info in infos
        if not gpus or info["kind"] != "cuda" or info["id"] in gpus or str(info["index"]) in gpus
    )


def _device(info: Mapping[str, Any], taken: str) -> Device:
    utilisation = info.get("utilisation")
    device = Device(
        id=DeviceId(str(info["id"])),
        index=whole(info["index"]),
        kind=str(info["kind"]),
        type=str(info["type"]),
        memory_mib=whole(info.get("memory_mib", 0)),
        state=DeviceState(info.get("state", "ok")),
        reason=str(info.get("reason", "")),
        used_mib=whole(info.get("used_mib", 0)),
        utilisation=None if utilisation is None else whole(utilisation),
        processes=tuple(_process(process) for process in info.get("processes", ())),
    )
    if taken and device.state is DeviceState.OK:
        return replace(device, state=DeviceState.FOREIGN, reason=taken)
    return device


def _process(info: Mapping[str, Any]) -> DeviceProcess:
    return DeviceProcess(
        pid=whole(info.get("pid", 0)),
        user=str(info.get("user", "")),
        name=str(info.get("name", "")),
        memory_mib=whole(info.get("memory_mib", 0)),
        attempt=str(info.get("attempt", "")),
    )


def differs(before: Node | None, after: Node) -> bool:
    """Is there news for rounds? How busy a device is at the moment is none."""
    return before is None or _outline(before) != _outline(after)


def _outline(node: Node) -> tuple[object, ...]:
    devices = tuple(
        (device.id, device.index, device.kind, device.type, device.memory_mib, device.state, device.reason)
        for device in node.devices
    )
    return (node.state, node.boot_id, node.cores, node.memory_mib, node.address, node.storage, devices)
