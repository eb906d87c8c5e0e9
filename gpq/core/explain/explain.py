"""Why a job waits, or why it has these GPUs and not more or fewer: read from the very round that
decided it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpq.core.explain import what_if
from gpq.core.explain.start_window import window
from gpq.core.feasibility import environments, idle_gpus, owners
from gpq.core.feasibility.checkpoints import closed_to, out_of_reach
from gpq.core.feasibility.device_status import (
    drain_line,
    gpus,
    intruders,
    out_of_use,
    reservation_line,
)
from gpq.core.feasibility.gates import closed, gate
from gpq.core.feasibility.leases import Silence, silence, span
from gpq.core.feasibility.orphans import at_large, must_wait
from gpq.core.feasibility.reservations import barred, current, keeps_out, reserved_under
from gpq.core.feasibility.shapes import (
    drained_under,
    feasible,
    gpu_range,
    held_by,
    is_fixed,
    nodes_up,
    suits,
    supply,
    usable,
)
from gpq.core.freedoms import words
from gpq.core.freedoms.freedoms import bound, is_cramped
from gpq.core.goodput import estimates
from gpq.core.model.jobs import ANY_NUMBER, HOLDS_DEVICES, Job, JobState, Level, StopReason, Wish
from gpq.core.model.nodes import DeviceState, Node, NodeState, is_connecting
from gpq.core.model.placements import Shape
from gpq.core.model.profile import RETUNE
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.batch_orders import typed
from gpq.core.rounds.motives import own_wish
from gpq.core.rounds.planning import stop_of
from gpq.core.rounds.reconcile import stuck

WORTH_NAMING = 1.01  # goodput of another batch over that of now: less is rounding
KEEPS_IDLE = ("fifo", "backfill")  # policies that keep GPUs for a job which needs several


@dataclass(frozen=True, slots=True)
class Explained:
    """`headline` fits in a table cell; `reasons` are sentences; `remedies` say what would change
    it."""

    headline: str
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


def explain(snapshot: Snapshot, allocation: Mapping[JobId, Shape] | None, job: Job) -> Explained:
    """The whole answer about one live job. `allocation` is the last round's, None before the
    first."""
    silent = silence(snapshot, job, snapshot.now)
    if silent is not None:
        return _why_unknown(snapshot, job, silent)
    held = stuck(snapshot, job)
    if held:
        where = ", ".join(job.nodes)
        reasons = (
            held,
            (
                f"it keeps {job.placement} until the kernel lets it go; everything else on {where}"
                " goes on"
            ),
        )
        return Explained(
            f"stuck: {held}",
            reasons,
            (f"if it never ends, reboot {where} when its other jobs are over",),
        )
    if job.wish is Wish.CANCEL:
        return Explained("being cancelled", ("it was cancelled; its processes are being ended",))
    match job.state:
        case JobState.HELD:
            return _why_held(job)
        case JobState.PENDING:
            return _why_pending(snapshot, allocation, job)
        case JobState.STARTING:
            return Explained("starting", (f"its processes are being started on {job.placement}",))
        case JobState.STOPPING:
            return _why_stopping(snapshot, job)
        case _:
            return _why_running(snapshot, allocation, job)


def _why_stopping(snapshot: Snapshot, job: Job) -> Explained:
    how = stop_of(job, job.stop or StopReason.RESIZE, "")
    since = snapshot.now - job.stop_sent_at if job.stop_sent_at is not None else 0.0
    what = "end" if how.mode == "kill" else "checkpoint"
    said = (
        f"asked to stop {span(max(since, 0.0))} ago ({job.stop}); it has {how.grace:.0f} s from"
        f" then to {what}"
    )
    return Explained(f"stopping ({job.stop})", (said,))


def _why_held(job: Job) -> Explained:
    by_gpq = job.unmet or job.quick_failures or job.crashes  # else the notice is of an earlier time
    told = by_gpq and job.notices and job.notices[-1].startswith("held")
    why = job.notices[-1] if told else "held by its user"
    reasons = (why, job.unmet) if job.unmet and job.unmet not in why else (why,)
    return Explained(why, reasons, (f"`gpq release {job.id}` queues it again",))


def _why_pending(
    snapshot: Snapshot, allocation: Mapping[JobId, Shape] | None, job: Job
) -> Explained:
    shut = gate(snapshot, job)
    if shut is not None:
        return Explained(shut.headline, shut.reasons, shut.remedies)
    if snapshot.now < job.not_before:
        wait = job.not_before - snapshot.now
        if job.lost_attempts[1] > job.attempt and job.exit is None:
            told = (
                "the database was restored from a copy: servers first tell whether it runs there"
                " since"
            )
            return Explained(f"starts in {wait:.0f} s", (told,))
        vanished = job.exit is not None and (job.exit.lost or job.exit.fenced)
        note = (
            "its last attempt was lost with its server" if vanished else "its last attempt failed"
        )
        note = job.exit.note if job.exit and job.exit.note else note
        return Explained(
            f"tries again in {wait:.0f} s",
            (f"{note}; gpq waits {wait:.0f} s before the next attempt",),
        )
    lost = at_large(snapshot, job)
    if lost is not None:
        why, (node, one) = must_wait(snapshot, job), lost
        end = f"`kill {one.pid}` on {node} ends it; " if one.pid else ""
        told = (
            "the database was restored from a copy made before that; a second one beside it might"
            " harm its files"
        )
        return Explained(
            why, (why, told), (f"{end}when it has ended the job starts; its log: {one.folder}",)
        )
    away = out_of_reach(snapshot, job)
    if away:
        back = f"it goes on when the server is back; `gpq cancel {job.id}` gives it up"
        return Explained(
            f"waits for its checkpoint: {away}",
            (f"{away}; it is not started from the beginning",),
            (back,),
        )
    strict = words.of_size(snapshot, job)
    job = bound(job, snapshot)
    drained = _never_while_drained(snapshot, job)
    if drained is not None:
        return drained
    reserved = _never_while_reserved(snapshot, job)
    if reserved is not None:
        return reserved
    staying = _never_elsewhere(snapshot, job)
    if staying is not None:
        return staying
    up = nodes_up(snapshot)
    if not up:
        return _no_server(snapshot)
    obstacle = _no_environment(snapshot, job)
    if obstacle is not None:
        return obstacle
    fewest, _ = gpu_range(job, max((len(node.devices) for node in up), default=0))
    obstacle = _never_fits(snapshot, job, fewest)
    if obstacle is not None:
        if not strict:
            return obstacle
        return replace(
            obstacle, reasons=(*obstacle.reasons, *strict), remedies=tuple(words.remedies(job))
        )
    taken = held_by(snapshot)
    kept = {**taken, **dict.fromkeys(barred(snapshot, job), job.id)}
    each = {
        node.id: sum(
            usable(device, job.spec) and (node.id, device.id) not in kept for device in node.devices
        )
        for node in up
    }
    free = sum(each.values())
    headline = "waits for GPUs that nobody else wants" if job.spec.background else "waits for GPUs"
    reasons = [f"it needs {gpus(fewest)}; {free} of {_total(snapshot)} are free"]
    if (
        free >= fewest
        and job.spec.level is not Level.SCRIPT
        and max(each.values(), default=0) < fewest
    ):
        where = ", ".join(f"{count} on {name}" for name, count in sorted(each.items()) if count)
        reasons = [
            f"it needs {gpus(fewest)} on one server; {free} of {_total(snapshot)} are free: {where}"
        ]
    reasons += strict
    reasons += [
        drain_line(snapshot, name) for name in sorted(snapshot.drained) if name in snapshot.nodes
    ]
    reasons += out_of_use(snapshot, job.spec)
    reasons += [
        *_reserved_lines(snapshot, job),
        *_owned_lines(snapshot, job),
        *_staying_lines(snapshot, job),
    ]
    reasons += [f"not used for it: {line}" for line in environments.obstacles(snapshot, job)]
    suited = {
        (node.id, device.id) for node in up for device in node.devices if usable(device, job.spec)
    }
    holders = sorted(
        {owner for place, owner in taken.items() if owner != job.id and place in suited}
    )
    if holders:
        shown = ", ".join(_holder(snapshot.jobs[owner]) for owner in holders[:6])
        reasons.append(f"GPUs are held by {shown}{' and others' if len(holders) > 6 else ''}")
    if allocation is not None and job.id in allocation:
        reasons.append(
            f"the last round gave it {gpus(allocation[job.id].replicas)}; it starts when they are"
            " free"
        )
        return Explained("GPUs are being freed", tuple(reasons))
    gated = closed(snapshot)
    ahead = [
        other.id
        for other in snapshot.jobs.values()
        if other.state is JobState.PENDING
        and other.id != job.id
        and other.id not in gated
        and _before(other, job)
    ]
    until = window(
        snapshot, job, fewest, {name: snapshot.jobs[name].spec.min_gpus for name in ahead}
    )
    if until is not None:
        reasons.append(str(until))
    if fewest > 1 and not job.spec.background and snapshot.config.policy not in KEEPS_IDLE:
        reasons.append("jobs that need fewer GPUs may start before it: gpq keeps none idle for it")
    remedies: list[str] = []
    fixed = [
        name
        for name in holders
        if not (snapshot.jobs[name].movable or snapshot.jobs[name].spec.background)
    ]
    if fixed:
        remedies.append(
            f"it may start when {_list(fixed)} {'ends' if len(fixed) == 1 else 'end'}: gpq may not"
            " move what runs there"
        )
    if strict:
        remedies += words.remedies(job)
    fits = min(
        free if job.spec.level is Level.SCRIPT else max(each.values(), default=0), fewest - 1
    )
    if fits and not ahead and not strict:
        remedies.append(
            f"it fits into what is free now if {gpus(fits)} will do: `gpq edit {job.id} --gpus"
            f" {fits}`"
        )
    if job.spec.background:
        reasons.append("it was submitted for the background: whoever else waits goes first")
        remedies.append(f"`gpq edit {job.id} --no-background` makes it a job as any other")
    return Explained(headline, tuple(reasons), tuple(remedies))


def _no_server(snapshot: Snapshot) -> Explained:
    """None answers that is not drained: some are only being reached, right after the daemon's
    start."""
    nodes = [node for _, node in sorted(snapshot.nodes.items())]
    lines = [_silence(snapshot, node) for node in nodes if node.state is not NodeState.UP]
    lines += [
        drain_line(snapshot, name) for name in sorted(snapshot.drained) if name in snapshot.nodes
    ]
    if any(is_connecting(node, snapshot.now) for node in nodes):
        return Explained("servers are being connected to", tuple(lines))
    told = tuple(lines) or ("no server is configured",)
    return Explained(
        "no server answers", told, ("`gpq nodes` shows why, `gpq doctor` how to mend it",)
    )


def _never_while_drained(snapshot: Snapshot, job: Job) -> Explained | None:
    """It fits nowhere, and would if drained servers were not."""
    names = [name for name in sorted(snapshot.drained) if name in snapshot.nodes]
    if not names or feasible(job, snapshot, supply(snapshot, job, {})):
        return None
    if not feasible(job, whole := replace(snapshot, drained={}), supply(whole, job, {})):
        return None
    lines = (f"it could only run on servers that are drained: {', '.join(names)}",)
    remedies = tuple(
        f"`gpq nodes undrain {name}` lets jobs be placed there again" for name in names
    )
    return Explained(
        "servers are drained", (*lines, *(drain_line(snapshot, name) for name in names)), remedies
    )


def _reserved_lines(snapshot: Snapshot, job: Job) -> list[str]:
    return [
        reservation_line(snapshot, held)
        for held in current(snapshot, snapshot.now)
        if keeps_out(held, job, snapshot.now) and held.node in snapshot.nodes
    ]


def _never_while_reserved(snapshot: Snapshot, job: Job) -> Explained | None:
    """It fits nowhere, and would without reservations of others, or were no server somebody's."""
    lines = _reserved_lines(snapshot, job)
    owned = [name for name, node in sorted(snapshot.nodes.items()) if not owners.suits(job, node)]
    if not (lines or owned) or feasible(job, snapshot, supply(snapshot, job, {})):
        return None
    nodes = {name: replace(node, owner="") for name, node in snapshot.nodes.items()}
    if not feasible(
        job, whole := replace(snapshot, reservations={}, nodes=nodes), supply(whole, job, {})
    ):
        return None
    if not lines:
        remedy = f"`gpq edit {job.id} --background` lets it run there until somebody comes"
        return Explained("servers are others'", tuple(_owned_lines(snapshot, job)), (remedy,))
    held_now = [
        held for held in current(snapshot, snapshot.now) if keeps_out(held, job, snapshot.now)
    ]
    ids = [held.id for held in held_now if not owners.is_owners(held)]
    remedies = tuple(
        f"`gpq nodes unreserve {name}` gives the GPUs back to everybody" for name in ids
    )
    lines += _owned_lines(snapshot, job)
    return Explained(
        "GPUs are reserved", ("it could only run on GPUs that are reserved", *lines), remedies
    )


def _owned_lines(snapshot: Snapshot, job: Job) -> list[str]:
    return [
        f"server {name} is {node.owner}'s: only jobs that can leave it start there"
        for name, node in sorted(snapshot.nodes.items())
        if not owners.suits(job, node)
    ]


def _staying_lines(snapshot: Snapshot, job: Job) -> list[str]:
    names = closed_to(snapshot, job)
    return (
        [f"{job.files.stays}; so it cannot go on on {', '.join(names)}"]
        if names and job.files is not None
        else []
    )


def _never_elsewhere(snapshot: Snapshot, job: Job) -> Explained | None:
    """It fits nowhere, and would if its checkpoint could be brought to any server."""
    lines = _staying_lines(snapshot, job)
    if not lines or job.files is None or feasible(job, snapshot, supply(snapshot, job, {})):
        return None
    free = replace(job, files=replace(job.files, stays=""))
    if not feasible(free, snapshot, supply(snapshot, free, {})):
        return None
    remedy = (
        "remove that from the checkpoint folder there, and gpq looks again within ten minutes; or"
        " name one folder that the servers share as `checkpoints`"
    )
    return Explained(
        f"waits for server {job.files.node}, where its checkpoint stays", tuple(lines), (remedy,)
    )


def _no_environment(snapshot: Snapshot, job: Job) -> Explained | None:
    """It fits nowhere, and would if every server had its interpreter, its directory and what its
    setup brings."""
    free = replace(job, spec=environments.unasked(job.spec))
    if feasible(job, snapshot, supply(snapshot, job, {})) or not feasible(
        free, snapshot, supply(snapshot, free, {})
    ):
        return None
    return Explained(
        environments.headline(snapshot, job),
        tuple(environments.obstacles(snapshot, job)),
        tuple(environments.fixes(snapshot, job)),
    )


def _before(other: Job, job: Job) -> bool:
    return (-other.spec.priority, other.id) < (-job.spec.priority, job.id)


def _never_fits(snapshot: Snapshot, job: Job, fewest: int) -> Explained | None:
    """A reason that no waiting will cure, with what is there instead."""
    if feasible(job, snapshot, supply(snapshot, job, {})):
        return None
    spec = job.spec
    everything = [device for node in snapshot.nodes.values() for device in node.devices]
    suited = [device for device in everything if suits(device, spec)]
    silent = [
        name for name in sorted(snapshot.nodes) if snapshot.nodes[name].state is not NodeState.UP
    ]
    if not suited and not silent and (spec.gpu_type or spec.min_gpu_memory_mib):
        types = (
            ", ".join(sorted({f"{device.type} {device.memory_mib} MiB" for device in everything}))
            or "none"
        )
        asked = f"type '{spec.gpu_type}'" if spec.gpu_type else "any type"
        asked += f", {spec.min_gpu_memory_mib} MiB at least" if spec.min_gpu_memory_mib else ""
        return Explained("no such GPU", (f"it asks for {asked}; there is: {types}",))
    if _would_fit(snapshot, job, answering_only=True):
        lines = out_of_use(snapshot, spec)
        return Explained(
            "GPUs are out of use", (f"it needs {gpus(fewest)} and some are out of use", *lines)
        )
    unknown = [name for name in silent if not snapshot.nodes[name].devices]
    if silent and (unknown or _would_fit(snapshot, job, answering_only=False)):
        blamed = [_silence(snapshot, snapshot.nodes[name]) for name in silent]
        if any(is_connecting(snapshot.nodes[name], snapshot.now) for name in silent):
            return Explained("servers are being connected to", tuple(blamed))
        back = "answers" if len(silent) == 1 else "answer"
        return Explained(
            "servers do not answer", (f"it may fit once {', '.join(silent)} {back}", *blamed)
        )
    # No job gets two types at once.
    by_node = Counter(
        (name, each.type)
        for name, node in snapshot.nodes.items()
        for each in node.devices
        if suits(each, spec)
    )
    by_type = Counter(device.type for device in suited)
    largest, total = max(by_node.values(), default=0), max(by_type.values(), default=0)
    what = " that suit it" if len(suited) < len(everything) else ""
    what += " of one type" if len(by_type) > 1 else ""
    if spec.level is Level.SCRIPT:
        most, said = total, f"it asks for {gpus(fewest)}; all servers together have {total}{what}"
    else:
        most, said = (
            largest,
            f"it asks for {gpus(fewest)} on one server; the largest server has {largest}{what}",
        )
    reasons = [said]
    if any(suits(device, replace(spec, min_gpus=1)) for device in everything if device.is_slice):
        reasons.append("a job gets no more than one MIG device, for CUDA shows a process only one")
        most = max(most, 1)
    remedy = f"`gpq edit {job.id} --gpus {most}` lets it run with what there is"
    return Explained("asks for more GPUs than there are", tuple(reasons), (remedy,) if most else ())


def _would_fit(snapshot: Snapshot, job: Job, *, answering_only: bool) -> bool:
    """Were every GPU in use that is known, of all servers or of those that answer, and had they
    what it needs there?"""
    job = replace(job, spec=environments.unasked(job.spec))
    nodes = {
        name: replace(
            node,
            state=node.state if answering_only else NodeState.UP,
            devices=tuple(replace(device, state=DeviceState.OK) for device in node.devices),
        )
        for name, node in snapshot.nodes.items()
    }
    whole = replace(snapshot, nodes=nodes)
    return bool(feasible(job, whole, supply(whole, job, {})))


def _silence(snapshot: Snapshot, node: Node) -> str:
    if is_connecting(node, snapshot.now):
        return (
            f"server {node.id} is being connected to, for the first time since the daemon's start"
        )
    what = "does not answer" if node.state is NodeState.UNREACHABLE else f"is {node.state}"
    return f"server {node.id} {what}{': ' + node.reason if node.reason else ''}"


def _total(snapshot: Snapshot) -> int:
    return sum(len(node.devices) for node in snapshot.nodes.values())


def _holder(job: Job) -> str:
    return f"job {job.id} ({job.spec.user}, {gpus(job.replicas)})"


def _list(jobs: list[JobId]) -> str:
    return ("job " if len(jobs) == 1 else "jobs ") + ", ".join(str(name) for name in jobs[:6])


def _why_unknown(snapshot: Snapshot, job: Job, silent: Silence) -> Explained:
    """Nobody can tell whether it runs; that is no reason to end it, nor to start it twice."""
    gone = [name for name in silent.nodes if name not in snapshot.nodes]
    reasons = [
        _silence(snapshot, snapshot.nodes[name]) for name in silent.nodes if name not in gone
    ]
    reasons += [f"server {name} is not in the configuration any more" for name in gone]
    reasons.append("that says nothing about the job: it may run on or be over, and keeps its GPUs")
    if silent.connecting:  # it tells in a moment
        return Explained(str(silent), tuple(reasons))
    if job.wish is Wish.CANCEL or job.stop is not None:
        what = "cancel" if job.wish is Wish.CANCEL else f"stop it ({job.stop})"
        reasons.append(f"the order to {what} waits until {_list_nodes(silent)} answers")
    lost = job.spec.requeue_on_lost
    if gone:
        remedies = [
            f"`gpq cancel {job.id}` gives the job up; with the server in config.toml again, gpq"
            " hears of it again"
        ]
    else:
        given_up = f"then `gpq cancel {job.id}` gives the job up"
        remedies = [
            f"if {_list_nodes(silent)} is gone for good, take it out of config.toml, {given_up}"
        ]
    if silent.requeue_in is not None:
        ends = f"--requeue-on-lost: it ends itself {span(lost)} after the last contact"
        reasons.append(f"{ends} and is queued again in {span(silent.requeue_in)} at the earliest")
    else:
        reasons.append(
            "without --requeue-on-lost it is not started a second time, however long the silence"
        )
    return Explained(str(silent), tuple(reasons), tuple(remedies))


def _list_nodes(silent: Silence) -> str:
    return ", ".join(silent.nodes)


def _why_batch(job: Job) -> list[str]:
    """What its batch is worth, against that which it was submitted with."""
    profile, declared = job.profile, job.profile.declared
    if declared is None or job.placement is None or profile.atomic_batch <= 0:
        return []
    shape = typed(job.placement)
    total = job.replicas * profile.atomic_batch * (profile.accum_steps + 1)
    if RETUNE in profile.lost:
        return [f"its total batch is {total}"]
    if not declared.adaptive:
        return [f"its total batch is {total}: it lets gpq change its GPUs, not its batch"]
    now = estimates.goodput_of(job, shape, profile.atomic_batch, profile.accum_steps)
    best = estimates.best_batch(job, shape, declared.batch_size)
    if now is None or best is None or best.goodput <= 0:
        return [f"its total batch is {total}; what another would be worth is not known yet"]
    if total == best.total_batch:
        near = (
            "the one"
            if total == declared.batch_size
            else f"the nearest here to the {declared.batch_size} that"
        )
        return [f"its total batch of {total} is {near} it declared, and {_better(job, shape, now)}"]
    ratio = now / best.goodput
    return [
        f"its total batch of {total} gives x{ratio:.2f} of the goodput of the {declared.batch_size}"
        " that it declared"
    ]


def _better(job: Job, shape: Shape, now: float) -> str:
    """Whether another batch, however large it may become, is worth more on the GPUs that it has."""
    whole = estimates.best_batch(job, shape)
    if whole is None or now <= 0 or whole.goodput < WORTH_NAMING * now:
        return "none is worth more on these GPUs"
    return (
        f"{whole.total_batch} would give x{whole.goodput / now:.2f} of its goodput, by what is"
        " known now"
    )


def _why_running(
    snapshot: Snapshot, allocation: Mapping[JobId, Shape] | None, job: Job
) -> Explained:
    headline = f"runs on {gpus(job.replicas)}"
    reasons = [
        f"{drain_line(snapshot, name)}; nothing new is placed there"
        for name in drained_under(job, snapshot)
    ]
    reasons += [
        f"it is to leave: {reservation_line(snapshot, held)}"
        for held in reserved_under(job, snapshot)
        if job.movable
    ]
    reasons += [f"warning: {line}" for line, _ in intruders(snapshot, job)]
    unused = idle_gpus.line(snapshot, job)
    if unused:
        reasons.append(f"warning: it {unused}")
    if job.idle:
        keeps = "keeps" if job.replicas == job.spec.min_gpus else "is to have"
        reasons.append(
            f"it did not use what it had, and {keeps} {gpus(job.spec.min_gpus)} until it uses them"
        )
    if job.spec.background:
        reasons.append(
            "it runs in the background: it leaves as soon as somebody else can use its GPUs"
        )
    if job.resumable and not job.movable and not job.spec.rigid:
        told = (*words.of_size(snapshot, job), *_why_batch(job), *words.of_batch(job))
        return Explained(headline, (*reasons, *told), tuple(words.remedies(job)))
    if not job.movable:
        level = job.spec.level
        if level is Level.SCRIPT and not job.spec.rigid:
            reasons.append(
                "the script has not declared itself (no gpq.init() and loader yet), so it is not"
                " moved"
            )
        elif not job.spec.background:
            reasons.append("it is rigid: it runs to its end with the GPUs that it asked for")
        return Explained(headline, tuple(reasons))
    shapes = feasible(job, snapshot)
    points = estimates.curve(job, shapes)
    reasons += words.of_size(snapshot, job)
    reasons += [*_why_batch(job), *words.of_batch(job)]
    reasons += what_if.lines(snapshot, job)
    reasons += _within_range(snapshot, job)
    others = [
        other
        for other in snapshot.jobs.values()
        if other.state in HOLDS_DEVICES and other.id != job.id
    ]
    if others:
        count = sum(len(node.devices) for node in nodes_up(snapshot))
        reasons.append(
            f"{gpus(count)} are shared with {len(others)} other running"
            f" {'job' if len(others) == 1 else 'jobs'}"
        )
    if is_fixed(job, snapshot):
        reasons.append("it was started a moment ago and is not moved again yet")
    if not points:
        reasons.append("its goodput is not known yet: the first step times have to come in")
    return Explained(headline, tuple(reasons), tuple(words.remedies(job)))


def _within_range(snapshot: Snapshot, job: Job) -> list[str]:
    """How what a running job has lies against the fewest and the most that it may have, and what
    sets these."""
    has, asked, total = job.replicas, own_wish(job.spec, job.replicas), _total(snapshot)
    if asked:
        return [
            f"it has {gpus(has)}, and {asked}: it is resized as soon as there is room and it may be"
            " moved"
        ]
    if is_cramped(job):
        return []
    fewest, most = gpu_range(bound(job, snapshot), ANY_NUMBER)
    if fewest == most == has:
        return [f"it has exactly what it may have ({has})"]
    said = []
    if has == most:
        said.append(f"it has as many as it may have ({most})")
    elif has >= total:
        said.append(f"it has all the GPUs that there are ({has})")
    if has == fewest:
        said.append(f"it has the fewest that it may have ({fewest})")
    return said
