"""Verdicts of `gpq doctor` about a server's GPUs and torch."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.cli.doctor.server_lines import Told
from gpq.cli.doctor.verdicts import Check
from gpq.rpc.node_answers import DeviceView, NodeView


def gpus(node: NodeView, answer: Told) -> Check:
    """Driver, GPUs, and who uses them."""
    name = node.name
    if answer.get("error"):
        return Check(
            "gpus",
            "fail",
            str(answer["error"]),
            "there, try nvidia-smi and sudo dmesg | grep -i nvrm, and reboot if nothing else helps",
            name,
        )
    cards = [device for device in node.devices if device.kind == "cuda"]
    notice = str(answer.get("notice") or "")
    if not cards:
        return _without_gpus(node, notice)
    finding = f"{len(cards)} x {cards[0].type}, driver {answer.get('driver') or 'unknown'}"
    faults = [
        f"GPU {card.index} {card.state}: {card.reason}"
        for card in cards
        if card.state not in ("ok", "foreign")
    ]
    if faults:
        fix = "sudo dmesg | grep -i xid there says more. A lost GPU needs a reboot"
        return Check("gpus", "fail", ", ".join([finding, *faults]), fix, name)
    foreign_processes = _foreign_processes(cards)
    if foreign_processes:
        finding = ", ".join([finding, *foreign_processes[:6]])
        fix = "gpq leaves those GPUs alone until they are free"
        return Check("gpus", "warn", finding, fix, name)
    if notice:
        fix = "jobs run on the other GPUs"
        return Check("gpus", "warn", f"{finding}, but {notice}", fix, name)
    return Check("gpus", "ok", finding, "", name)


def _without_gpus(node: NodeView, notice: str) -> Check:
    finding = "no NVIDIA GPU"
    if node.devices:
        finding += f", {len(node.devices)} CPU slots"
    if notice:
        finding += f", but {notice}"
        return Check("gpus", "warn", finding, "nvidia-smi there says more", node.name)
    return Check("gpus", "ok", finding, "", node.name)


def _foreign_processes(cards: Sequence[DeviceView]) -> list[str]:
    """Processes that gpq did not start."""
    return [
        f"GPU {card.index}: {process.user} (pid {process.pid}, {process.name})"
        for card in cards
        for process in card.processes
        if process.job is None
    ]


def torch(name: str, python: str, answer: Told) -> Check:
    if "torch" in answer:
        finding = (
            f"{answer['torch']} in Python {answer['python']} at {python} sees {answer['gpus']} CUDA"
            f" GPUs{nccl(answer)}"
        )
        return Check("torch", "ok", finding, "", name)
    fix = (
        f"create the environment there, or set script_python in [nodes.{name}] (only training"
        " scripts need it)"
    )
    return Check("torch", "warn", f"{python}: {answer.get('error', 'no answer')}", fix, name)


def nccl(answer: Told) -> str:
    """`, NCCL 2.27`, "" if torch has none."""
    return f", NCCL {answer['nccl']}" if answer.get("nccl") else ""
