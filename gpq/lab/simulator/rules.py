"""The rules of a simulated run: the machines, the timer, the cost of a restart, what policies may
know."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpq.core.model.nodes import Device, Node, NodeState
from gpq.core.model.snapshot import Config
from gpq.core.model.units import DeviceId, NodeId, Seconds
from gpq.errors import UsageError

PART = re.compile(r"([0-9]{1,7})x([0-9]{1,7})(?::([A-Za-z0-9][A-Za-z0-9._-]*))?", re.ASCII)
MOST_GPUS = 100_000
MEMORY_MIB = 16_000  # of every GPU. The batch limits of the traces say what fits, not this
HINT = "write NODESxGPUS[:TYPE], separated by commas, as in 16x4 or 6x4:t4,2x8:a100"


@dataclass(frozen=True, slots=True)
class Rules:
    """Defaults are those of the OSDI'21 artifact: a fixed timer, and nothing known in
    advance."""

    nodes: tuple[Node, ...]
    interval: Seconds = 60.0
    known_length: bool = False  # jobs declare how long they are
    priors: bool = False  # policies may use what earlier jobs of the same program taught
    events: bool = False  # rounds also when a job arrives, ends, or first runs at a new size
    noise: float = 0.0  # standard deviation of the logarithm of what is measured
    seed: int = 0
    # jobs arrive with step times of one GPU of each type (as in Sia's artifact)
    profiled: bool = False
    config: Config = field(default_factory=Config)  # settings of the policy


def parse_cluster(text: str) -> tuple[Node, ...]:
    """The nodes of a text such as 16x4 or 6x4:t4,3x8:rtx. They are up and empty, and named n00,
    n01... in the order of the text, so that sorting keeps it."""
    groups = []
    for part in map(str.strip, text.split(",")):
        match = PART.fullmatch(part)
        if match is None:
            raise UsageError(f"cannot read {part!r} as nodes and GPUs", HINT)
        count, gpus = int(match[1]), int(match[2])
        if not count or not gpus:
            raise UsageError(f"{part} has no {'GPUs' if count else 'nodes'}", HINT)
        groups.append((count, gpus, match[3] or ""))
    total = sum(nodes * gpus for nodes, gpus, _ in groups)
    if total > MOST_GPUS:
        raise UsageError(
            f"the cluster {text} has {total} GPUs, at most {MOST_GPUS} can be simulated", HINT
        )
    width = max(len(str(sum(nodes for nodes, _, _ in groups) - 1)), 2)
    shapes = [(gpus, gpu_type) for count, gpus, gpu_type in groups for _ in range(count)]
    nodes = []
    for i, (gpus, gpu_type) in enumerate(shapes):
        name = f"n{i:0{width}}"
        devices = tuple(
            Device(DeviceId(f"{name}:{j}"), j, "cuda", gpu_type, MEMORY_MIB) for j in range(gpus)
        )
        nodes.append(Node(NodeId(name), NodeState.UP, devices=devices))
    return tuple(nodes)


def with_types(nodes: Sequence[Node], types: Sequence[str]) -> tuple[Node, ...]:
    """The nodes, with their GPUs named as in `types`, on which jobs were measured. `a100` matches
    the one that has it in its name. Raises UsageError for a type that matches none. GPUs without a
    type stay so."""
    names = {
        device.type: _measured_type(device.type, types) for node in nodes for device in node.devices
    }
    return tuple(
        replace(
            node, devices=tuple(replace(device, type=names[device.type]) for device in node.devices)
        )
        for node in nodes
    )


def _measured_type(type_name: str, types: Sequence[str]) -> str:
    if not type_name:
        return ""
    matches = [kind for kind in types if type_name.lower() == kind.lower()]
    if not matches:
        matches = [kind for kind in types if type_name.lower() in kind.lower()]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            f"GPUs of type {type_name} match several types", f"say which: {', '.join(matches)}"
        )
    hint = "the types are unknown: leave them out, as in 2x4"
    if types:
        hint = f"there are measurements on {', '.join(types)}"
    raise UsageError(f"no job was measured on GPUs of type {type_name}", hint)
