"""The page of servers in `gpq top`: each GPU with its last minutes, and every process on it with
its user."""

from __future__ import annotations

from rich.text import Text

from gpq.rpc.node_answers import DeviceView, NodeView, ProcessView
from gpq.views.nodes import gib, memory, seen, utilisation
from gpq.views.plain import moment, safe
from gpq.views.tables import owned
from gpq.views.utilisation import PIECES, Past

NARROW = 110  # below this width only half of the past is shown


def lines(nodes: list[NodeView], past: Past, width: int) -> list[Text]:
    """The lines of the page. The terminal cuts what is wider."""
    text: list[Text] = []
    room = PIECES if width >= NARROW else PIECES // 2
    for node in nodes:
        style = "bold" if node.state == "up" else "bold red"
        head = f"{safe(node.name)}  {safe(node.state)}  {node.cores} cores  {gib(node.memory_mib)}"
        text.append(Text(f"{head}  seen {seen(node)}  {safe(node.reason)}".rstrip(), style=style))
        text += [
            Text(f"  not in the database of gpq: {safe(line)}", style="red")
            for line in node.strangers
        ]
        text += [Text(f"  {safe(line)}", style="yellow") for line in node.damage]
        for device in node.devices:
            text += _device(node, device, past, room)
        text.append(Text(""))
    return text[:-1] or [Text("no servers")]


def _device(node: NodeView, device: DeviceView, past: Past, room: int) -> list[Text]:
    kind = safe(device.type).removeprefix("NVIDIA ")
    load = memory_curve = ""
    if device.utilisation is not None:
        load = f"{past.utilisation(node.name, device.id, room)} {utilisation(device):>4}"
    if device.used_mib:
        memory_curve = f"{past.memory(node.name, device.id, room // 2)} "
    line = Text(f"  {device.index} {kind}  {load}  {memory_curve}{memory(device)}  ")
    line.append_text(_occupancy(device, past))
    return [line, *(Text(_process(process)) for process in device.processes)]


def _occupancy(device: DeviceView, past: Past) -> Text:
    text = owned(device, past.owners)
    if device.state != "ok":
        return Text(f"{safe(device.state)} {text}", style="red")
    return Text(text, style="green" if device.job is not None else "dim")


def _process(process: ProcessView) -> str:
    since = ""
    if process.since:
        since = f"  since {moment(process.since)[5:16]}"
    job = "not gpq's" if process.job is None else f"job {process.job}"
    command = safe(process.command or process.name)
    owner = f"      pid {process.pid}  {safe(process.user)}"
    return f"{owner}  {gib(process.memory_mib)}  {job}{since}  {command}"
