"""Requests -> events, or a refusal that changed nothing. Pure: decides by the snapshot that it is
given.

What the command line checks is checked here again: other programs may speak to the socket.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from posixpath import basename, join, normpath

from gpq import outward
from gpq.config_rules import CODE_OF_HABIT
from gpq.control.selectors import NAME, is_selector
from gpq.core.freedoms.habits import cures, warning
from gpq.core.model.events import (
    CancelAsked,
    Edited,
    Event,
    HoldAsked,
    ReleaseAsked,
    RequeueAsked,
    Submitted,
)
from gpq.core.model.jobs import (
    HOLDS_DEVICES,
    Attributes,
    Dependency,
    Job,
    JobSpec,
    JobState,
    Level,
    Proof,
    Wish,
)
from gpq.core.model.nodes import Device, NodeState
from gpq.core.model.profile import FREEDOMS, RESIZE
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.errors import GpqError, Refused, UsageError
from gpq.outward import NO_TARGETS, Notify
from gpq.rpc import job_answers, requests
from gpq.rpc.requests import SpecMessage

MAX_GPUS = 100_000
MAX_BATCH = 1 << 40
UNLIMITED, MOST_LIMIT = -1, (1 << 63) - 1
RESOURCE = re.compile(r"[a-z]{1,16}")
# over the socket, for tests; the command line and config.toml ask for a minute
LEAST_LEASE: Seconds = 1.0
LISTS = ("argv", "resume_argv", "tags", "modules", "notify", "notify_on", "accept")
# of the message, that become something else
LATER = ("level", "env", "after", "attributes", "proof")
# variables by which an interpreter finds them
LEADS_TO_MODULES = ("PATH", "PYTHON", "LD_", "VIRTUAL_ENV", "CONDA_")
MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_PROOF = 500  # characters of a text in one
MAX_SETUP = 10_000  # characters
MAX_PATH = 4095  # characters
HOME = "~"  # where the setup of frozen code runs: the code itself comes with the first start
CODE = re.compile(r"[0-9a-f]{64}")
SIGNALS = frozenset(each.name.removeprefix("SIG") for each in signal.Signals) - {
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
    """The checked spec, but for what `after` names; `grace`, `lease` and `notify` are those of a
    job which asks for none. Raises UsageError."""
    try:
        level = Level(message.level)
    except ValueError:
        raise UsageError(
            f"unknown level `{message.level}`", f"known are {', '.join(Level)}"
        ) from None
    _check_texts(message)
    _check_numbers(message)
    if level is not Level.SCRIPT and message.max_gpus not in (0, message.min_gpus):
        raise UsageError(
            f"--gpus {message.min_gpus}-{message.max_gpus}: a command that is run as it is gets a"
            " fixed number of GPUs",
            f"say --gpus {message.min_gpus}, or submit a script that uses gpq_agent.train",
        )
    fields = {
        name: getattr(message, name) for name in message.__struct_fields__ if name not in LATER
    }
    fields["notify"] = notify.default if message.notify is None else message.notify
    fields["notify_on"] = outward.events(
        notify.on if message.notify_on is None else message.notify_on
    )
    outward.check_targets(fields["notify"], notify)
    for name in LISTS:
        fields[name] = tuple(fields[name])
    if not fields["notify"]:
        fields["notify_on"] = ()
    fields["environment"] = environment_of(message)
    fields["grace"] = grace if message.grace is None else message.grace
    fields["requeue_on_lost"] = (
        lease if message.requeue_on_lost is None else message.requeue_on_lost
    )
    if level is not Level.SCRIPT:
        fields["max_gpus"] = message.min_gpus
    env = tuple(sorted(message.env.items()))
    attributes, proof = _attributes_of(message), _proof_of(message)
    return JobSpec(
        **fields, level=level, env=env, user=user, uid=uid, attributes=attributes, proof=proof
    )


def accepting(spec: JobSpec, programs: Mapping[str, Sequence[str]]) -> JobSpec:
    """With the suspicions that config.toml accepts of this script, which it names by its path or
    its file's name."""
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
    known = all(freedom in FREEDOMS for freedom in (*proof.same, *proof.lost))
    short = all(len(text) <= MAX_PROOF and text.isprintable() for text in texts)
    if message.level != Level.SCRIPT or not known or not short or set(proof.same) & set(proof.lost):
        raise UsageError("what gpq check found of this job cannot be", "use the gpq command")
    return Proof(proof.program, tuple(proof.same), tuple(proof.lost), proof.message, proof.at)


def _attributes_of(message: SpecMessage) -> Attributes | None:
    """Raises UsageError."""
    attributes = message.attributes
    if attributes is None:
        return None
    if not 0 <= attributes.umask <= 0o777 or not -20 <= attributes.nice <= 19:
        raise UsageError(
            f"umask {attributes.umask:o} and niceness {attributes.nice} cannot be",
            "use the gpq command",
        )
    for name, (soft, hard) in attributes.limits.items():
        least, most = (value if value != UNLIMITED else MOST_LIMIT for value in (soft, hard))
        if not RESOURCE.fullmatch(name) or not 0 <= least <= most <= MOST_LIMIT:
            raise UsageError(
                f"a limit {name!r:.40} of {soft} and {hard} cannot be", "use the gpq command"
            )
    limits = tuple((name, soft, hard) for name, (soft, hard) in sorted(attributes.limits.items()))
    return Attributes(attributes.umask, attributes.nice, limits)


def environment_of(message: SpecMessage) -> str:
    """What has to be on a server, as a digest: jobs that need the same share one look, and one
    setup."""
    env = sorted(
        (name, value) for name, value in message.env.items() if not name.startswith("GPQ_")
    )
    if not message.setup:
        env = [
            (name, value)
            for name, value in env
            if message.modules and name.startswith(LEADS_TO_MODULES)
        ]
    asked: list[object] = [
        HOME if message.code else message.cwd,
        message.setup,
        message.modules,
        env,
    ]
    if message.level == Level.SCRIPT:
        asked += [message.python, message.python_asked]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]


def message_of(spec: JobSpec) -> SpecMessage:
    """The inverse of `spec_of`."""
    fields = {name: getattr(spec, name) for name in SpecMessage.__struct_fields__}
    for name in LISTS:
        fields[name] = list(fields[name])
    fields |= {
        "env": dict(spec.env),
        "level": str(spec.level),
        "after": [str(one) for one in spec.after],
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


def _check_texts(message: SpecMessage) -> None:
    _check_command(message)
    _check_names(message)
    _check_code(message)
    _check_environment(message)


def _check_command(message: SpecMessage) -> None:
    if not message.argv or not message.argv[0]:
        hint = "gpq submit -- COMMAND, or gpq submit SCRIPT"
        raise UsageError("there is no command to run", hint)
    if not message.cwd.startswith("/"):
        problem = f"the working directory {message.cwd!r} is not absolute"
        raise UsageError(problem, "give its whole path")
    if message.signal.removeprefix("SIG") not in SIGNALS or message.signal.startswith("SIG"):
        raise UsageError(f"unknown signal `{message.signal}`", "e.g. TERM, USR1, INT")
    if len(message.done_file) > MAX_PATH:
        problem = f"--done-file has {len(message.done_file)} characters"
        raise UsageError(problem, f"a path has at most {MAX_PATH}")
    if len(message.setup) > MAX_SETUP:
        problem = f"--setup has {len(message.setup)} characters"
        raise UsageError(problem, "put them into a script, and name that")


def _check_names(message: SpecMessage) -> None:
    characters = "letters, digits, dot, dash and underscore, at most 64"
    if message.name and not NAME.fullmatch(message.name):
        raise UsageError(f"{message.name!r} cannot be a job's name", characters)
    if is_selector(message.name):
        hint = "choose a name with a letter in it, not `all`"
        raise UsageError(f"`{message.name}` would be read as an id", hint)
    for tag in message.tags:
        if not NAME.fullmatch(tag):
            raise UsageError(f"{tag!r} cannot be a tag", characters)
    for code in message.accept:
        if not CODE_OF_HABIT.fullmatch(code):
            hint = "`gpq show` has the codes, such as own-next"
            raise UsageError(f"--accept {code[:40]!r} is no habit's code", hint)
    if message.accept and message.level != Level.SCRIPT:
        raise UsageError("--accept is for training scripts", "gpq suspects nothing of a command")
    for module in message.modules:
        if not MODULE.fullmatch(module):
            raise UsageError(f"{module!r} cannot be a module", "the name of a package, e.g. torch")


def _check_code(message: SpecMessage) -> None:
    outside = message.code_cwd.startswith("/") or ".." in message.code_cwd.split("/")
    if message.code and (not CODE.fullmatch(message.code) or outside):
        problem = f"{message.code!r} with {message.code_cwd!r} names no frozen code"
        raise UsageError(problem, "gpq submit --snapshot")


def _check_environment(message: SpecMessage) -> None:
    texts = (
        *message.argv, message.code_cwd, message.code_from, *message.resume_argv,
        message.done_file, message.cwd, message.python, message.gpu_type, message.setup,
        *message.env, *message.env.values(),
    )  # fmt: skip
    if any("\0" in text for text in texts):
        raise UsageError("the command or its environment holds a NUL byte", "remove it")
    for name in message.env:
        if not name or "=" in name:
            problem = f"{name!r} cannot be the name of an environment variable"
            raise UsageError(problem, "--env NAME=VALUE")


def _check_numbers(message: SpecMessage) -> None:
    low, high = message.min_gpus, message.max_gpus
    if not 1 <= low <= MAX_GPUS:
        raise UsageError(
            f"--gpus {low}: a job needs at least 1 GPU", "e.g. --gpus 2, or --gpus 1-4"
        )
    if high and not low <= high <= MAX_GPUS:
        raise UsageError(
            f"--gpus {low}-{high}: a range goes upwards",
            f"e.g. --gpus {min(low, high)}-{max(low, high)}",
        )
    for option, value, most in (
        ("--min-gpu-memory", message.min_gpu_memory_mib, 1 << 30),
        ("--retries", message.retries, 1000),
        ("--batch-size", message.batch_size, MAX_BATCH),
        ("--max-batch-size", message.max_batch_size, MAX_BATCH),
        ("--atomic-batch-size", message.min_atomic_batch, MAX_BATCH),
        ("--atomic-batch-size", message.max_atomic_batch, MAX_BATCH),
    ):
        if not 0 <= value <= most:
            raise UsageError(
                f"{option} must lie between 0 and {most}, and is {value}", "see `gpq submit --help`"
            )
    if not -1_000_000 <= message.priority <= 1_000_000:
        raise UsageError(
            "--priority must lie between -1000000 and 1000000",
            "0 is the default; higher goes first",
        )
    for option, seconds in (("--time", message.time_limit), ("--grace", message.grace)):
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"{option} must be above 0", "e.g. 90s, 20m or 2h")
    if not (math.isfinite(message.begin) and 0 <= message.begin < 1e11):
        raise UsageError("--begin is no moment", "e.g. --begin 'tomorrow 8:00'")
    lease = message.requeue_on_lost
    if lease is not None and lease != 0 and not LEAST_LEASE <= lease <= 30 * 86400:
        raise UsageError(
            "--requeue-on-lost must lie between 1m and 30d", "e.g. --requeue-on-lost 10m"
        )
    for small, large, option in (
        (message.batch_size, message.max_batch_size, "--max-batch-size"),
        (message.min_atomic_batch, message.max_atomic_batch, "--atomic-batch-size"),
    ):
        if large and large < small:
            raise UsageError(f"{option}: {large} is less than {small}", "a range goes upwards")


# -- submit ----------------------------------------------------------------------------------------


def submitted(
    snapshot: Snapshot,
    specs: Iterable[JobSpec],
    awaits: tuple[Dependency, ...],
    now: Seconds,
    *,
    held: bool,
) -> list[Event]:
    """The jobs get the next ids; those of an array follow its own. Raises nothing: `fits` was asked
    before."""
    events: list[Event] = []
    for place, spec in enumerate(specs):
        job = JobId((spec.seat.array + 1 if spec.seat is not None else snapshot.next_id) + place)
        events.append(Submitted(now, job, spec, awaits))
        if held:
            events.append(HoldAsked(now, job, spec.user))
    return events


def nodes_known(snapshot: Snapshot, configured: Collection[str]) -> bool:
    """Has every configured node said at least once what it has?"""
    nodes = (snapshot.nodes.get(NodeId(name)) for name in configured)
    return all(node is not None and (node.state is NodeState.UP or node.devices) for node in nodes)


def fits(snapshot: Snapshot, spec: JobSpec, configured: Collection[str]) -> None:
    """Raises Refused when no waiting would ever give the job its GPUs; silent while a node is still
    unknown."""
    if not nodes_known(snapshot, configured):
        return
    everything = {node.id: node.devices for node in snapshot.nodes.values()}
    counts = [sum(_suits(device, spec) for device in devices) for devices in everything.values()]
    most = max(counts, default=0) if spec.level is not Level.SCRIPT else sum(counts)
    if spec.min_gpus <= most:
        return
    kind = f" of type '{spec.gpu_type}'" if spec.gpu_type else ""
    if spec.min_gpu_memory_mib:
        kind += f" with {spec.min_gpu_memory_mib} MiB"
    there = "; ".join(f"{name}: {_offer(devices)}" for name, devices in sorted(everything.items()))
    if spec.min_gpus == 1:
        said = f"there is no GPU{kind}"
    elif spec.level is not Level.SCRIPT and len(everything) > 1:
        said = f"no server has {spec.min_gpus} GPUs{kind}"
    else:
        said = f"there are fewer than {spec.min_gpus} GPUs{kind}"
    raise Refused(
        said, f"there is: {there}" if there else "no server is configured: see `gpq config show`"
    )


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
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "nothing"


# -- queue control ---------------------------------------------------------------------------------

Verdict = Event | str  # what to do about one job, or one line about why nothing is done


def cancel(snapshot: Snapshot, jobs: Iterable[JobId], now: Seconds, by: str) -> list[Event]:
    """Repeating it is harmless: a job that is being cancelled already gets no second event."""
    live = (snapshot.jobs.get(name) for name in jobs)
    return [
        CancelAsked(now, job.id, by)
        for job in live
        if job is not None and job.wish is not Wish.CANCEL
    ]


def hold(job: Job, now: Seconds, by: str) -> Verdict:
    """Raises Refused for a running job that would lose its work."""
    if job.wish is Wish.CANCEL:
        raise Refused(
            f"job {job.id} is being cancelled", "`gpq requeue` submits it again once it has ended"
        )
    if job.wish is Wish.HOLD:
        return f"job {job.id} is held already"
    if job.state in HOLDS_DEVICES and not job.resumable:
        raise Refused(
            f"job {job.id} runs, and {_immovable(job)}",
            _once_declared(job) or f"`gpq cancel {job.id}` ends it",
        )
    return HoldAsked(now, job.id, by)


def release(job: Job, now: Seconds, by: str) -> Verdict:
    """Raises Refused for a job that is being cancelled."""
    if job.wish is Wish.CANCEL:
        raise Refused(
            f"job {job.id} is being cancelled", "`gpq requeue` submits it again once it has ended"
        )
    if job.state is not JobState.HELD and job.wish is not Wish.HOLD:
        return f"job {job.id} is not held: it is {job.state}"
    return ReleaseAsked(now, job.id, by)


def requeue(job: Job, now: Seconds, by: str) -> Verdict:
    """Raises Refused for a running job that would lose its work."""
    if job.wish is Wish.CANCEL:
        raise Refused(
            f"job {job.id} is being cancelled", "`gpq requeue` submits it again once it has ended"
        )
    if job.state is JobState.PENDING and job.wish is Wish.RUN:
        return f"job {job.id} is in the queue already"
    if job.wish is Wish.REQUEUE and job.state in HOLDS_DEVICES:
        return f"job {job.id} is being requeued already"
    if job.state in HOLDS_DEVICES and not job.resumable:
        raise Refused(
            f"job {job.id} runs, and {_immovable(job)}",
            _once_declared(job)
            or f"`gpq cancel {job.id}`, then `gpq requeue {job.id}`: from its start",
        )
    return RequeueAsked(now, job.id, by)


def _alone(spec: JobSpec) -> JobSpec:
    """As it is submitted once more: for itself, and now."""
    return replace(spec, seat=None, after=(), begin=0.0)


def undeclared(job: Job) -> bool:
    """Is it a script that may yet tell gpq that it can be resized? Then waiting is the cure, for a
    while."""
    return job.spec.level is Level.SCRIPT and job.profile.declared is None


def _once_declared(job: Job) -> str:
    if not undeclared(job):
        return ""
    return (
        "wait until it has taken its first steps, if it uses gpq's library; else `gpq cancel"
        f" {job.id}` ends it"
    )


def _immovable(job: Job) -> str:
    if undeclared(job):
        return "its script has not declared itself to gpq yet, so stopping it would lose its work"
    return "it cannot be stopped and started again without losing its work"


def changes(
    snapshot: Snapshot,
    jobs: Sequence[JobId],
    ended: Sequence[Job],
    judge: Callable[[Job, Seconds, str], Verdict],
    now: Seconds,
    by: str,
) -> tuple[list[Event], job_answers.Changed]:
    """The events for all `jobs` (those in `ended` are over) and the answer.

    A job that is alone is refused with an error; among others it gets a line in `unchanged`, and
    the others change.
    """
    events: list[Event] = []
    changed: list[int] = []
    unchanged: list[str] = []
    said: list[str] = []
    warnings: list[str] = []
    over = {job.id: job for job in ended}
    next_id = snapshot.next_id
    for name in jobs:
        job = snapshot.jobs.get(name)
        try:
            if job is not None:
                verdict = judge(job, now, by)
            elif judge is requeue and name in over:
                verdict = Submitted(now, JobId(next_id), _alone(over[name].spec))
                next_id += 1
                unchanged.append(
                    f"job {name} has ended; it is submitted again as job {verdict.job}"
                )
            else:
                raise Refused(f"job {name} has ended", f"`gpq requeue {name}` submits it again")
        except GpqError as error:
            if len(jobs) == 1:
                raise
            unchanged.append(error.message)
            continue
        if isinstance(verdict, str):
            unchanged.append(verdict)
        else:
            events.append(verdict)
            changed.append(int(verdict.job))  # type: ignore[union-attr]
            if isinstance(verdict, Edited):
                said.append(f"job {verdict.job}: {verdict.said}")
            elif (
                isinstance(verdict, HoldAsked | RequeueAsked)
                and job is not None
                and job.state in HOLDS_DEVICES
            ):
                lost = warning(job) if job.resumable else ""
                warnings += [f"job {job.id}: {lost}", *cures(job, RESIZE)] if lost else []
    return events, job_answers.Changed(changed, unchanged, said, warnings)
