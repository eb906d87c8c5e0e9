"""Turns a submission into a job, or refuses it with a line and a hint. Pure: it decides by the
snapshot that it gets.

It repeats the checks of the command line, because other programs may use the socket.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import signal
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from posixpath import basename, join, normpath
from typing import Any

import msgspec
from gpq_agent import wire

from gpq import outward
from gpq.config_rules import CODE_OF_HABIT
from gpq.control.selectors import NAME, is_selector
from gpq.core.feasibility.environments import early
from gpq.core.model.events import Event, HoldAsked, Submitted
from gpq.core.model.jobs import TORCHRUN, Attributes, Dependency, JobSpec, Level, Proof
from gpq.core.model.nodes import Device, NodeState
from gpq.core.model.profile import FREEDOMS
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.errors import Refused, UsageError
from gpq.job_request import JobRequest
from gpq.outward import NO_TARGETS, Notify
from gpq.rpc.requests import AttributesMessage, ProofMessage, SpecMessage
from gpq.rpc.submit_table import OPTIONS

UNLIMITED, MOST_LIMIT = -1, (1 << 63) - 1
RESOURCE = re.compile(r"[a-z]{1,16}")
MAX_PROOF = 500  # characters of one text
HOME = "~"  # where the setup of frozen code runs. The code itself arrives with the first start
MAX_GPUS = 100_000
MAX_BATCH = 1 << 40
# for tests, over the socket. The command line and config.toml require at least a minute
LEAST_LEASE: Seconds = 1.0
MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_SETUP = 10_000  # characters
MAX_PATH = 4095  # characters
CODE = re.compile(r"[0-9a-f]{64}")
DURATIONS = [
    (option.flag, field)
    for option in OPTIONS
    for field in option.fields
    if option.kind in ("duration", "limit")
]
# kind of an option -> the largest number. `priority` may be negative
MOST = {"memory": 1 << 30, "count": 1000, "size": MAX_BATCH, "span": MAX_BATCH}
NUMBERS = [
    (option.flag, field, MOST[option.kind])
    for option in OPTIONS
    for field in option.fields
    if option.kind in MOST and field != "priority"
]
LAUNCHERS = ("", TORCHRUN)
SIGNALS = frozenset(member.name.removeprefix("SIG") for member in signal.Signals) - {
    "KILL",
    "STOP",
    "CHLD",
}


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
    try:
        level = Level(message.level)
    except ValueError:
        raise UsageError(
            f"unknown level `{message.level}`", f"use one of {', '.join(Level)}"
        ) from None
    check_texts(message)
    check_numbers(message)
    if level is not Level.SCRIPT and message.max_gpus not in (0, message.min_gpus):
        raise UsageError(
            f"--gpus {message.min_gpus}-{message.max_gpus}: a command gets a fixed number of GPUs",
            f"use --gpus {message.min_gpus}, or submit a script that uses gpq_agent.train",
        )
    values = {name: getattr(message, name) for name in JobRequest.__struct_fields__}
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    fields["level"] = level
    if level is not Level.SCRIPT:
        fields["max_gpus"] = message.min_gpus
    if message.console:
        _check_console(message)
        fields["requeue_on_lost"] = 0.0
    for name, default in (
        ("grace", grace),
        ("requeue_on_lost", lease),
        ("notify", notify.default),
        ("notify_on", notify.on),
    ):
        if fields[name] is None:
            fields[name] = default
    events = outward.events(fields["notify_on"])
    outward.check_targets(fields["notify"], notify)
    fields["notify_on"] = tuple(events) if fields["notify"] else ()
    return JobSpec(
        **fields,
        user=user,
        uid=uid,
        env=tuple(sorted(message.env.items())),
        environment=environment_of(message),
        attributes=_attributes_of(message),
        proof=_proof_of(message),
    )


def accepting(spec: JobSpec, programs: Mapping[str, Sequence[str]]) -> JobSpec:
    """With the suspicions that config.toml accepts for this script. config.toml names the script by
    its path or its file name."""
    if spec.level is not Level.SCRIPT:
        return spec
    path = normpath(join(spec.cwd, spec.argv[0]))
    codes = [*spec.accept, *programs.get(path, ()), *programs.get(basename(path), ())]
    return spec.having(accept=tuple(dict.fromkeys(codes)))


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
    values = {name: getattr(spec, name) for name in JobRequest.__struct_fields__}
    fields: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }
    fields["level"] = str(spec.level)
    attributes, proof = spec.attributes, spec.proof
    if attributes is not None:
        limits = {name: (soft, hard) for name, soft, hard in attributes.limits}
        fields["attributes"] = AttributesMessage(attributes.umask, attributes.nice, limits)
    if proof is not None:
        fields["proof"] = ProofMessage(
            proof.program, list(proof.same), list(proof.lost), proof.message, proof.at
        )
    return SpecMessage(**fields, env=dict(spec.env), after=list(map(str, spec.after)))


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
    counts = [
        sum(
            spec.gpu_type.casefold() in device.type.casefold()
            and device.memory_mib >= spec.min_gpu_memory_mib
            for device in node.devices
        )
        for node in snapshot.nodes.values()
    ]
    most = max(counts, default=0) if spec.level is not Level.SCRIPT else sum(counts)
    if spec.min_gpus <= most:
        return
    kind = f" of type '{spec.gpu_type}'" if spec.gpu_type else ""
    if spec.min_gpu_memory_mib:
        kind += f" with {spec.min_gpu_memory_mib} MiB"
    problem = f"there are fewer than {spec.min_gpus} GPUs{kind}"
    if spec.min_gpus == 1:
        problem = f"there is no GPU{kind}"
    elif spec.level is not Level.SCRIPT and len(counts) > 1:
        problem = f"no server has {spec.min_gpus} GPUs{kind}"
    offers = ", ".join(
        f"{name} has {_offer(node.devices)}" for name, node in sorted(snapshot.nodes.items())
    )
    raise Refused(problem, offers or "no server is configured: see `gpq config show`")


def _offer(devices: Sequence[Device]) -> str:
    kinds = Counter(
        f"{device.type} ({device.memory_mib} MiB)"
        if device.kind == "cuda"
        else f"{device.type} slot"
        for device in devices
    )
    return " and ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "nothing"


def check_texts(message: SpecMessage) -> None:
    """Raises UsageError."""
    if not message.argv or not message.argv[0]:
        hint = "use `gpq submit -- COMMAND` or `gpq submit SCRIPT`"
        raise UsageError("there is no command to run", hint)
    if not message.cwd.startswith("/"):
        problem = f"the working directory {message.cwd!r} is not absolute"
        raise UsageError(problem, "use its full path")
    if message.signal not in SIGNALS:
        raise UsageError(f"unknown signal `{message.signal}`", "e.g. TERM, USR1, INT")
    if message.launcher not in LAUNCHERS:
        raise UsageError(
            f"unknown launcher `{message.launcher}`",
            "use --launcher torchrun, or leave the option out",
        )
    if len(message.done_file) > MAX_PATH:
        problem = f"--done-file has {len(message.done_file)} characters"
        raise UsageError(problem, f"a path has at most {MAX_PATH}")
    if len(message.setup) > MAX_SETUP:
        problem = f"--setup has {len(message.setup)} characters"
        raise UsageError(problem, "put them into a script and name the script")
    outside = message.code_cwd.startswith("/") or ".." in message.code_cwd.split("/")
    if message.code and (not CODE.fullmatch(message.code) or outside):
        problem = f"{message.code!r} with {message.code_cwd!r} is not frozen code"
        raise UsageError(problem, "use `gpq submit --snapshot`")
    if message.stdin and not CODE.fullmatch(message.stdin):
        raise UsageError(f"{message.stdin!r} is no kept stdin", "use `gpq submit --stdin`")
    _check_names(message)
    _check_environment(message)


def _check_console(message: SpecMessage) -> None:
    """What somebody has typed to a job is gone when it starts again, so it never does."""
    if message.console not in wire.CONSOLES or message.level != Level.BLACK_BOX or message.stdin:
        raise UsageError("invalid console of this job", "use `gpq run -- COMMAND`")
    for flag, value in (
        ("--retries", message.retries),
        ("--requeue-on-lost", message.requeue_on_lost),
        ("--background", message.background),
    ):
        if value:
            raise UsageError(
                f"{flag} would start a job of `gpq run` a second time, without its input",
                "use `gpq submit`, or leave the option out",
            )


def _check_names(message: SpecMessage) -> None:
    characters = "use at most 64 letters, digits, dots, dashes and underscores"
    if message.name and not NAME.fullmatch(message.name):
        raise UsageError(f"invalid job name {message.name!r}", characters)
    if is_selector(message.name):
        hint = "use a name with a letter in it, and not `all`"
        raise UsageError(f"gpq would read the name `{message.name}` as an id", hint)
    for tag in message.tags:
        if not NAME.fullmatch(tag):
            raise UsageError(f"invalid tag {tag!r}", characters)
    for code in message.accept:
        if not CODE_OF_HABIT.fullmatch(code):
            hint = "`gpq show` lists the codes, such as own-next"
            raise UsageError(f"--accept {code[:40]!r} is not the code of a habit", hint)
    if message.accept and message.level != Level.SCRIPT:
        raise UsageError("--accept is for training scripts", "gpq suspects no habits of a command")
    for module in message.modules:
        if not MODULE.fullmatch(module):
            raise UsageError(f"invalid module {module!r}", "use the name of a package, e.g. torch")


def _check_environment(message: SpecMessage) -> None:
    for name, _ in set(message.env.items()) - set(early(message.env.items())):
        use, assignment = rf"\$\{{?{re.escape(name)}\b", rf"\b{re.escape(name)}="
        if re.search(use, message.setup) and not re.search(assignment, message.setup):
            problem = f"the setup uses {name}, which only the job gets, where it starts"
            raise UsageError(problem, f"give it a value in --setup: {name}=... before the command")
    texts = [*message.env.values()]
    for value in msgspec.structs.astuple(message):
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list | tuple | dict):
            texts += value
    if any("\0" in text for text in texts):
        raise UsageError("the command or its environment holds a NUL byte", "remove it")
    for name in message.env:
        if not name or "=" in name:
            problem = f"invalid name of an environment variable: {name!r}"
            raise UsageError(problem, "use --env NAME=VALUE")


def check_numbers(message: SpecMessage) -> None:
    """Raises UsageError."""
    low, high = message.min_gpus, message.max_gpus
    if not 1 <= low <= MAX_GPUS:
        raise UsageError(
            f"--gpus {low}: a job needs at least 1 GPU", "e.g. --gpus 2, or --gpus 1-4"
        )
    if high and not low <= high <= MAX_GPUS:
        raise UsageError(
            f"--gpus {low}-{high}: range end is below its start",
            f"e.g. --gpus {min(low, high)}-{max(low, high)}",
        )
    for flag, field, most in NUMBERS:
        number = getattr(message, field)
        if not 0 <= number <= most:
            raise UsageError(
                f"invalid {flag} {number}: expected 0 to {most}", "see `gpq submit --help`"
            )
    if not -1_000_000 <= message.priority <= 1_000_000:
        raise UsageError(
            "invalid --priority: expected -1000000 to 1000000",
            "0 is the default, and higher goes first",
        )
    _check_times(message)
    for small, large, flag in (
        (message.batch_size, message.max_batch_size, "--max-batch-size"),
        (message.min_atomic_batch, message.max_atomic_batch, "--atomic-batch-size"),
    ):
        if large and large < small:
            raise UsageError(
                f"{flag}: {large} is less than {small}", f"use {small} or a larger number"
            )


def _check_times(message: SpecMessage) -> None:
    for flag, field in DURATIONS:
        seconds = getattr(message, field)
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"{flag} must be above 0", "e.g. 90s, 20m or 2h")
    if not (math.isfinite(message.begin) and 0 <= message.begin < 1e11):
        raise UsageError("--begin is not a time", "e.g. --begin 'tomorrow 8:00'")
    lease = message.requeue_on_lost
    if lease is not None and lease != 0 and not LEAST_LEASE <= lease <= 30 * 86400:
        raise UsageError(
            "invalid --requeue-on-lost: expected 1m to 30d", "e.g. --requeue-on-lost 10m"
        )
