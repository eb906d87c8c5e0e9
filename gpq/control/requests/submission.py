"""Turns a submission into a job, or refuses it with a line and a hint. Pure: it decides by the
snapshot that it gets.

It repeats the checks of the command line, because other programs may use the socket.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from posixpath import basename, join, normpath

from gpq import outward
from gpq.control.requests.submission_checks import check_numbers, check_texts
from gpq.core.feasibility.environments import early
from gpq.core.model.events import (
    Event,
    HoldAsked,
    Submitted,
)
from gpq.core.model.jobs import (
    Attributes,
    Dependency,
    JobSpec,
    Level,
    Proof,
)
from gpq.core.model.nodes import Device, NodeState
from gpq.core.model.profile import FREEDOMS
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.errors import Refused, UsageError
from gpq.outward import NO_TARGETS, Notify
from gpq.rpc import requests
from gpq.rpc.requests import SpecMessage

UNLIMITED, MOST_LIMIT = -1, (1 << 63) - 1
RESOURCE = re.compile(r"[a-z]{1,16}")
LISTS = ("argv", "resume_argv", "paths", "tags", "modules", "notify", "notify_on", "accept")
# fields of the message that become something else
LATER = ("level", "env", "after", "attributes", "proof")
MAX_PROOF = 500  # characters of one text
HOME = "~"  # where the setup of frozen code runs. The code itself arrives with the first start


def spec_of(
    message: SpecMessage,
    user: str,
    uid: int,
    grace: Seconds,
    lease: Seconds = 0.0,
    notify: Notify = NO_TARGETS,
) -> JobSpec:
    """The checked specification, without the jobs that `after` names. `grace`, `lease` and `notify`
    are the defaults. Raises UsageError."""
    level = _level_of(message)
    check_texts(message)
    check_numbers(message)
    if level is not Level.SCRIPT and message.max_gpus not in (0, message.min_gpus):
        raise UsageError(
            f"--gpus {message.min_gpus}-{message.max_gpus}: a command gets a fixed number of GPUs",
            f"use --gpus {message.min_gpus}, or submit a script that uses gpq_agent.train",
        )
    fields = {
        name: getattr(message, name) for name in message.__struct_fields__ if name not in LATER
    }
    for name, default in (
        ("grace", grace),
        ("requeue_on_lost", lease),
        ("notify", notify.default),
        ("notify_on", notify.on),
    ):
        if fields[name] is None:
            fields[name] = default
    fields["notify_on"] = outward.events(fields["notify_on"])
    outward.check_targets(fields["notify"], notify)
    for name in LISTS:
        fields[name] = tuple(fields[name])
    if not fields["notify"]:
        fields["notify_on"] = ()
    fields["environment"] = environment_of(message)
    if level is not Level.SCRIPT:
        fields["max_gpus"] = message.min_gpus
    env = tuple(sorted(message.env.items()))
    attributes, proof = _attributes_of(message), _proof_of(message)
    return JobSpec(
        **fields, level=level, env=env, user=user, uid=uid, attributes=attributes, proof=proof
    )


def _level_of(message: SpecMessage) -> Level:
    try:
        return Level(message.level)
    except ValueError:
        raise UsageError(
            f"unknown level `{message.level}`", f"use one of {', '.join(Level)}"
        ) from None


def accepting(spec: JobSpec, programs: Mapping[str, Sequence[str]]) -> JobSpec:
    """With the suspicions that config.toml accepts for this script. config.toml names the script by
    its path or its file name."""
    if spec.level is not Level.SCRIPT:
        return spec
    path = normpath(join(spec.cwd, spec.argv[0]))
    codes = [*spec.accept, *programs.get(path, ()), *programs.get(basename(path), ())]
    return replace(spec, accept=tuple(dict.fromkeys(codes)))


def _proof_of(message: SpecMessage) -> Proof | None:
    """Raises UsageError."""
    proof = message.proof
    if proof is None:
        return None
    texts = (proof.program, proof.message, proof.at)
    freedoms_exist = all(freedom in FREEDOMS for freedom in (*proof.same, *proof.lost))
    short = all(len(text) <= MAX_PROOF and text.isprintable() for text in texts)
    if (
        message.level != Level.SCRIPT
        or not freedoms_exist
        or not short
        or set(proof.same) & set(proof.lost)
    ):
        raise UsageError("invalid result of gpq check for this job", "use the gpq command")
    return Proof(proof.program, tuple(proof.same), tuple(proof.lost), proof.message, proof.at)


def _attributes_of(message: SpecMessage) -> Attributes | None:
    """Raises UsageError."""
    attributes = message.attributes
    if attributes is None:
        return None
    if not 0 <= attributes.umask <= 0o777 or not -20 <= attributes.nice <= 19:
        raise UsageError(
            f"invalid umask {attributes.umask:o} or niceness {attributes.nice}",
            "use the gpq command",
        )
    for name, (soft, hard) in attributes.limits.items():
        least, most = (value if value != UNLIMITED else MOST_LIMIT for value in (soft, hard))
        if not RESOURCE.fullmatch(name) or not 0 <= least <= most <= MOST_LIMIT:
            raise UsageError(
                f"invalid limit {name!r:.40} of {soft} and {hard}", "use the gpq command"
            )
    limits = tuple((name, soft, hard) for name, (soft, hard) in sorted(attributes.limits.items()))
    return Attributes(attributes.umask, attributes.nice, limits)


def environment_of(message: SpecMessage) -> str:
    """A digest of what a server must have. Jobs that need the same things share one check and one
    setup."""
    env = early(message.env.items()) if message.setup or message.modules else []
    requirements: list[object] = [
        HOME if message.code else message.cwd,
        message.setup,
        message.modules,
        env,
    ]
    if message.level == Level.SCRIPT:
        requirements += [message.python, message.python_asked]
    return hashlib.sha256(json.dumps(requirements).encode()).hexdigest()[:32]


def message_of(spec: JobSpec) -> SpecMessage:
    """The inverse of `spec_of`."""
    fields = {name: getattr(spec, name) for name in SpecMessage.__struct_fields__}
    for name in LISTS:
        fields[name] = list(fields[name])
    fields |= {
        "env": dict(spec.env),
        "level": str(spec.level),
        "after": [str(dependency) for dependency in spec.after],
    }
    if spec.attributes is not None:
        limits = {name: (soft, hard) for name, soft, hard in spec.attributes.limits}
        fields["attributes"] = requests.AttributesMessage(
            spec.attributes.umask, spec.attributes.nice, limits
        )
    if spec.proof is not None:
        proof = spec.proof
        fields["proof"] = requests.ProofMessage(
            proof.program, list(proof.same), list(proof.lost), proof.message, proof.at
        )
    return SpecMessage(**fields)


# -- submit ----------------------------------------------------------------------------------------


def submission_events(
    snapshot: Snapshot,
    specs: Iterable[JobSpec],
    awaits: tuple[Dependency, ...],
    now: Seconds,
    *,
    on_hold: bool,
) -> list[Event]:
    """The jobs get the next ids. Those of an array follow the array's own id. Raises nothing,
    because `fits` has checked it."""
    events: list[Event] = []
    for place, spec in enumerate(specs):
        job = JobId((spec.seat.array + 1 if spec.seat is not None else snapshot.next_id) + place)
        events.append(Submitted(now, job, spec, awaits))
        if on_hold:
            events.append(HoldAsked(now, job, spec.user))
    return events


def nodes_known(snapshot: Snapshot, configured: Collection[str]) -> bool:
    """Has every configured server reported its devices at least once?"""
    nodes = (snapshot.nodes.get(NodeId(name)) for name in configured)
    return all(node is not None and (node.state is NodeState.UP or node.devices) for node in nodes)


def fits(snapshot: Snapshot, spec: JobSpec, configured: Collection[str]) -> None:
    """Raises Refused if the job would never get its GPUs, however long it waits. Raises nothing
    while a server is still unknown."""
    if not nodes_known(snapshot, configured):
        return
    everything = {node.id: node.devices for node in snapshot.nodes.values()}
    counts = [sum(_suits(device, spec) for device in devices) for devices in everything.values()]
    most = max(counts, default=0) if spec.level is not Level.SCRIPT else sum(counts)
    if spec.min_gpus <= most:
        return
    raise Refused(_too_few(spec, servers=len(everything)), _whole_offer(everything))


def _too_few(spec: JobSpec, servers: int) -> str:
    kind = f" of type '{spec.gpu_type}'" if spec.gpu_type else ""
    if spec.min_gpu_memory_mib:
        kind += f" with {spec.min_gpu_memory_mib} MiB"
    if spec.min_gpus == 1:
        return f"there is no GPU{kind}"
    if spec.level is not Level.SCRIPT and servers > 1:
        return f"no server has {spec.min_gpus} GPUs{kind}"
    return f"there are fewer than {spec.min_gpus} GPUs{kind}"


def _whole_offer(everything: Mapping[NodeId, Sequence[Device]]) -> str:
    if not everything:
        return "no server is configured: see `gpq config show`"
    offers = (f"{name} has {_offer(devices)}" for name, devices in sorted(everything.items()))
    return ", ".join(offers)


def _suits(device: Device, spec: JobSpec) -> bool:
    return (
        spec.gpu_type.casefold() in device.type.casefold()
        and device.memory_mib >= spec.min_gpu_memory_mib
    )


def _offer(devices: Sequence[Device]) -> str:
    kinds: dict[str, int] = {}
    for device in devices:
        kind = (
            f"{device.type} ({device.memory_mib} MiB)"
            if device.kind == "cuda"
            else f"{device.type} slot"
        )
        kinds[kind] = kinds.get(kind, 0) + 1
    return " and ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "nothing"
