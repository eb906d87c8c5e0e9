"""Messages of a server (wire) -> the core's types: exits, devices, servers. Conversion only."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
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
LONGEST_NOTE, LONGEST_END = 500, 4000  # characters, of a line and of the note of an end
LONGEST_NAME = wire.LENGTHS["id"]
MOST_ADDRESSES = 16  # of a server, for peers to try
# what is news for rounds
OF_DEVICE = attrgetter("id", "index", "kind", "type", "memory_mib", "state", "reason")
OF_NODE = attrgetter(
    "state", "boot_id", "machine", "cores", "memory_mib", "address", "addresses", "interface",
    "ephemeral", "storage", "strangers", "stuck", "damage",
)  # fmt: skip
OF_EXIT = [field.name for field in fields(Exit)]
LONGEST_AGE: Seconds = 10 * 365.25 * 86400  # of anything that a server dates
MOST = 1 << 53  # of any number. Beyond it JSON and floats are not exact


def whole(value: Any) -> int:
    """Raises ValueError, TypeError or OverflowError for what is not a number, or an impossible
    one."""
    number = int(value)
    if isinstance(value, bool | str) or abs(number) > MOST:
        raise ValueError("a number is out of range")
    return number


def real(value: Any) -> float:
    """Like `whole`, for a finite number."""
    number = float(value)
    if isinstance(value, bool | str) or not abs(number) <= MOST:
        raise ValueError("a number is out of range")
    return number


def moment(stamp: Any, report_stamp: Any, now: Seconds) -> Seconds:
    """The time of a server's stamp by the daemon's clock. It uses the stamp's age in the report of
    that `report_stamp`, received at `now`, because neither side knows the other's clock. 0.0 if the
    server does not say."""
    if stamp is None or report_stamp is None:
        return 0.0
    return now - min(max(real(report_stamp) - real(stamp), 0.0), LONGEST_AGE)


def attempts_of(infos: Sequence[Mapping[str, Any]]) -> dict[Key, Info]:
    """A list of wire.AttemptInfo, by attempt. One does not affect the others: what is invalid is
    left out, and named in its damage. Raises what an attempt without a number raises."""
    return {(JobId(whole(info["job"])), whole(info["attempt"])): attempt(info) for info in infos}


def attempt(info: Mapping[str, Any]) -> Info:
    """A wire.AttemptInfo without its invalid fields. Without a state it counts as living, so that
    nothing starts instead. Without a record of its end it counts as lost."""
    invalid = wire.misfits(wire.AttemptInfo, dict(info))
    valid = {name: value for name, value in info.items() if name not in invalid}
    if valid.get("state") not in (*ALIVE, *ENDED):
        invalid, valid["state"] = sorted({*invalid, "state"}), "orphan"
    wrong = ["exit"] if "exit" in invalid else []
    wrong += wire.misfits(wire.ExitRecord, valid.get("exit") or {})
    if wrong:
        invalid, valid["exit"] = [*invalid, *wrong], None
        if valid["state"] in ENDED:
            note = f"its server sent an invalid record of its end: {', '.join(wrong)}"
            valid |= {"state": "lost", "exit": {"note": note}}
    if invalid:
        line = f"gpq ignores what its server said, it is invalid: {', '.join(sorted({*invalid}))}"
        valid["damage"] = [*valid.get("damage", ()), line]
    return valid


def acknowledgement(report: Mapping[str, Any], boot_id: str) -> Mapping[str, Any]:
    """What a wire.StartOrder says about the newest report received before it."""
    if "stamp" in report:
        return {"stamp": real(report["stamp"]), "boot_id": boot_id}
    return {"expires_at": real(report["time"]) + wire.START_EXPIRY}  # an agent before 0.2


def exit_of(record: Mapping[str, Any] | None, *, is_lost: bool, at: Seconds = 0.0) -> Exit:
    """A wire.ExitRecord that `attempt` accepted. `is_lost`: nobody saw the end, so the code is not
    known. `at` is its time, or 0.0 if not known."""
    if record is None:
        return Exit(code=None, lost=True, note="its server no longer knows it")
    values = {name: record[name] for name in OF_EXIT if record.get(name) is not None}
    note = str(record.get("note") or "")[:LONGEST_END]
    return Exit(**{"code": None, **values, "note": note, "ended_at": at, "lost": is_lost})


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
    """A device of which a field is invalid is not used."""
    invalid = wire.misfits(wire.DeviceInfo, dict(info))
    valid = {name: value for name, value in info.items() if name not in invalid}
    if invalid:
        reason = f"its server sent an invalid {', '.join(invalid)}"
        valid |= {"state": DeviceState.DEGRADED, "reason": reason}
    age, due = valid.get("age", 0.0), valid.get("next_probe", 0.0)
    # an unknown word of a newer agent means at least that gpq must not use the device
    word, state = str(valid.get("state", "ok")), DeviceState.DEGRADED
    if word in set(DeviceState):
        state = DeviceState(word)
    name, kind, model = (str(info[field])[:LONGEST_NAME] for field in ("id", "kind", "type"))
    device = Device(
        id=DeviceId(name),
        index=valid.get("index", -1),
        kind=kind,
        type=model,
        memory_mib=valid.get("memory_mib", 0),
        state=state,
        reason=str(valid.get("reason", ""))[:LONGEST_NOTE],
        used_mib=valid.get("used_mib", 0),
        utilisation=valid.get("utilisation"),
        processes=tuple(_process(process) for process in valid.get("processes", ())),
        since=now - age if age > 0 else 0.0,
        next_probe=now + due if due > 0 else 0.0,
    )
    if foreign_reason and device.state is DeviceState.OK:
        return replace(device, state=DeviceState.FOREIGN, reason=foreign_reason)
    return device


def living_notes(attempts: Mapping[Key, Info]) -> tuple[tuple[str, str], ...]:
    """Notes on living attempts: what the server has of them besides their states."""
    return tuple(
        (f"{job}.{number}", note[:LONGEST_NOTE])
        for (job, number), info in sorted(attempts.items())
        if info["state"] not in ENDED and (note := str((info.get("exit") or {}).get("note") or ""))
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


def _process(info: dict[str, Any]) -> DeviceProcess:
    """A wire.DeviceProcess. An invalid field is unknown."""
    invalid = wire.misfits(wire.DeviceProcess, info)
    fields = wire.DeviceProcess()._asdict()
    fields |= {name: info[name] for name in fields if name in info and name not in invalid}
    return DeviceProcess(**fields)


def pulses_of(
    ranks: Sequence[Mapping[str, Any]], node: NodeId, now: Seconds
) -> tuple[RankPulse, ...]:
    """A list of wire.Pulse. `since` is by the daemon's clock: a server reports how long ago it
    was."""
    return tuple(
        RankPulse(pulse["rank"], node, pulse["step"], pulse["phase"], now - pulse["age"])
        for pulse in ranks
        if isinstance(pulse, dict)
        and not wire.misfits(wire.Pulse, {**dict.fromkeys(wire.Pulse._fields), **pulse})
        and pulse["phase"] in wire.PHASES
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


def machine_of(hello: Mapping[str, Any]) -> str:
    """What it has in common with nobody else's machine. "" if an agent does not say, or says what
    cannot be."""
    text = str(hello.get("machine") or "")
    return text if len(text) <= LONGEST_NOTE and text.isprintable() else ""


def ephemeral_of(hello: Mapping[str, Any]) -> tuple[int, int]:
    """Ports that its kernel gives to outgoing connections. Linux's default if an agent does not
    say."""
    first, last = hello.get("ephemeral") or Node(NodeId("")).ephemeral
    return whole(first), whole(last)


def differs(before: Node | None, after: Node) -> bool:
    """Is there news for rounds? The present load of a device is not."""
    return before is None or _outline(before) != _outline(after)


def _outline(node: Node) -> tuple[object, ...]:
    return OF_NODE(node), presence(node), list(map(OF_DEVICE, node.devices))
