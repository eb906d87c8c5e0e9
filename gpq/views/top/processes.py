"""The page of servers in `gpq top`: each GPU with its last minutes, and every process on it with
its owner."""

from __future__ import annotations

from rich.text import Text

from gpq.rpc.node_answers import DeviceView, NodeView, ProcessView
from gpq.views.nodes import gib, memory, seen, utilisation
from gpq.views.plain import moment, safe
from gpq.views.top.tables import owned
from gpq.views.top.utilisation import PIECES, Past

NARROW = 110  # columns below which half of the past is shown


def lines(nodes: list[NodeView], past: Past, width: int) -> list[Text]:
    """Each at most so wide where it is drawn: what is beyond is cut off there."""
    found: list[Text] = []
    room = PIECES if width >= NARROW else PIECES // 2
    for node in nodes:
        style = "bold" if node.state == "up" else "bold red"
        head = f"{safe(node.name)}  {safe(node.state)}  {node.cores} cores  {gib(node.memory_mib)}"
        found.append(Text(f"{head}  seen {seen(node)}  {safe(node.reason)}".rstrip(), style=style))
        found += [
            Text(f"  not in the database: {safe(line)}", style="red") for line in node.strangers
        ]
        found += [Text(f"  {safe(line)}", style="yellow") for line in node.damage]
        for device in node.devices:
            found += _device(node, device, past, room)
        found.append(Text(""))
    return found[:-1] or [Text("no servers")]


def _device(node: NodeView, device: DeviceView, past: Past, room: int) -> list[Text]:
    kind = safe(device.type).removeprefix("NVIDIA ")
    use = (
        f"{past.utilisation(node.name, device.id, room)} {utilisation(device):>4}"
        if _measured(device)
        else ""
    )
    full = f"{past.memory(node.name, device.id, room // 2)} " if device.used_mib else ""
    state = "" if device.state == "ok" else f"{safe(device.state)} "
    style = "green" if device.job is not None else "dim"
    if state:
        style = "red"
    line = Text(f"  {device.index} {kind}  {use}  {full}{memory(device)}  ").append(
        f"{state}{owned(device, past.owners)}", style=style
    )
    return [line, *(Text(_process(one)) for one in device.processes)]


def _measured(device: DeviceView) -> bool:
    return device.utilisation is not None


def _process(one: ProcessView) -> str:
    job = f"  job {one.job}" if one.job is not None else "  not gpq's"
    since = f"  since {moment(one.since)[5:16]}" if one.since else ""
    said = safe(one.command or one.name)
    return f"      pid {one.pid}  {safe(one.user)}  {gib(one.memory_mib)}{job}{since}  {said}"
