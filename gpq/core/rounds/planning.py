"""plan(): what should be, minus what is, gives actions. Level-based: the plan of a fulfilled wish
is empty, and a repeated call gives the same plan. A launch leases the port on which its replicas
meet."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import replace

from gpq.core.feasibility.leases import may_start
from gpq.core.feasibility.mobility import UNKNOWN, held_by, is_fixed, settled_at
from gpq.core.feasibility.shapes import is_fit, nodes_up, shape_on, usable
from gpq.core.freedoms import blame
from gpq.core.goodput.priors import with_times
from gpq.core.model.accounts import Promise
from gpq.core.model.actions import Action, Launch, OfAttempt, Retune, Stop, Warm
from gpq.core.model.events import Event, Launched, Retuned, StopSent
from gpq.core.model.jobs import (
    HOLDS_DEVICES,
    TERMINAL,
    DesiredState,
    Job,
    JobState,
    Level,
    StopReason,
)
from gpq.core.model.nodes import Node
from gpq.core.model.placements import BatchOrder, Placement
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.core.rounds.batch_orders import first_order, needs_lost, retunes
from gpq.core.rounds.motives import goodput_ratio

FIRST_PORT, LAST_PORT = 20_000, 65_536
# defaults of torchrun and databases
WELL_KNOWN_PORTS = frozenset({25_000, 27_017, 29_400, 29_500, 29_501, 29_502, 62_078})
ENOUGH_PORTS = 1_000  # ports, so that a returned one is not leased again at once
CANCEL_GRACE: Seconds = 10.0  # between TERM and KILL of a cancelled job
# of sums of times: a limit may be reached this much too early
ROUNDING: Seconds = 1e-6
_STOP_OF_WISH = {
    DesiredState.CANCEL: StopReason.CANCEL,
    DesiredState.HOLD: StopReason.HOLD,
    DesiredState.REQUEUE: StopReason.REQUEUE,
}


def plan(
    snapshot: Snapshot,
    placements: Mapping[JobId, Placement],
    why: Mapping[JobId, str] | None = None,
) -> list[Action]:
    """Orders that lead from `snapshot` to `placements`: stops first, then launches on devices that
    nobody holds now."""
    why = why or {}
    stops: list[Action] = []
    launches: list[Action] = []
    holders, ports = held_by(snapshot), leased_ports(snapshot)
    busy_devices = set(holders)
    runners = {name: job for name, job in snapshot.jobs.items() if job.state is JobState.RUNNING}
    staying_jobs = {
        name
        for name, job in runners.items()
        if placements.get(name) == job.placement or is_fixed(job, snapshot)
    }
    tunings = _tunings(snapshot, staying_jobs)
    leaving_jobs = runners.keys() - staying_jobs
    ready = stoppable(
        {name: placements[name] for name in leaving_jobs & placements.keys()}, holders
    )
    for name in sorted(snapshot.jobs):
        job, placement, motive = snapshot.jobs[name], placements.get(name), why.get(name, "")
        stop = wished_stop(job, snapshot.now)
        if stop is not None:
            stops.append(stop)
            tunings.pop(name, None)
        elif placement is None:
            if name in leaving_jobs:
                stops.append(stop_of(job, StopReason.PREEMPT, motive))
        elif name in ready:
            stop = stop_of(job, StopReason.RESIZE, motive)
            stops.append(replace(stop, target=shape_on(placement, snapshot)))
        elif not placement.devices & busy_devices and may_start(snapshot, job):
            busy_devices |= placement.devices
            order, attempt = first_order(with_times(job, snapshot), placement), job.next_attempt
            port = lease_port(snapshot, name, attempt, placement, ports)
            gain = promise(snapshot, job, placement)
            launches.append(
                Launch(name, attempt, job.spec, placement, order, motive, port, gain, job.fresh)
            )
    return [*stops, *tunings.values(), *launches]


def _tunings(snapshot: Snapshot, staying_jobs: Set[JobId]) -> dict[JobId, Retune]:
    """Other batches for jobs that stay where they are, by id."""
    jobs = [with_times(snapshot.jobs[name], snapshot) for name in sorted(staying_jobs)]
    tunings = {}
    for name, order in sorted(retunes(jobs, snapshot.config).items()):
        job, reason = snapshot.jobs[name], "this batch gives more goodput"
        if freedom := needs_lost(job):
            reason = f"{blame(job, freedom)}, so gpq may not {freedom}"
        tunings[name] = Retune(name, job.attempt, job.nodes[0], order, reason)
    return tunings


def wished_stop(job: Job, now: Seconds) -> Stop | None:
    """The stop that the user's wish or the time limit needs. None if there is none or it was
    already sent."""
    if job.state not in HOLDS_DEVICES:
        return None
    if job.wish is DesiredState.CANCEL:
        return None if job.stop_forced else stop_of(job, StopReason.CANCEL, "cancelled")
    if job.stop is not None:
        return None
    if job.wish in _STOP_OF_WISH and (job.resumable or job.wish is DesiredState.REQUEUE):
        return stop_of(job, _STOP_OF_WISH[job.wish], f"{job.wish} asked")
    if time_left(job, now) <= ROUNDING:
        return stop_of(job, StopReason.TIME, "it reached its time limit")
    return None


def time_left(job: Job, now: Seconds) -> Seconds:
    """The run time that the limit leaves. Infinite without one."""
    if job.spec.time_limit is None or job.started_at is None:
        return float("inf")
    return job.spec.time_limit - job.run_seconds - (now - job.started_at)


def stop_of(job: Job, reason: StopReason, why: str) -> Stop:
    """The order that stops a job for `reason`: how, and with which grace."""
    mode, grace = "kill", CANCEL_GRACE
    if reason is not StopReason.CANCEL:
        if job.spec.level is Level.SIGNAL:
            mode, grace = "signal", job.spec.grace
        elif job.resumable:
            mode, grace = "checkpoint", job.spec.grace
    return Stop(job.id, job.attempt, job.nodes, reason, mode, grace, why)


def order_fact(action: Action, now: Seconds) -> Event | None:
    """The fact that an order was given."""
    match action:
        case Launch():
            return Launched(
                now,
                action.job,
                action.attempt,
                action.placement,
                action.order,
                action.why,
                action.port,
                action.promise,
            )
        case Stop():
            return StopSent(
                now, action.job, action.attempt, action.reason, action.why, action.target
            )
        case Retune():
            return Retuned(now, action.job, action.attempt, action.order, action.why)
        case _:
            return None


def repeat(snapshot: Snapshot, node: NodeId) -> list[OfAttempt]:
    """All orders that still stand. A server may have missed some: the daemon was killed between
    commit and sending, or the link was cut. Orders are idempotent by (job, attempt), so one too
    many does no harm."""
    actions: list[OfAttempt] = []
    for job in snapshot.expected_on(node):
        name, placement = job.id, job.placement
        if placement is None:
            continue
        if job.state is JobState.STARTING and node not in job.started_nodes:
            launch = Launch(name, job.attempt, job.spec, placement, job.order, port=job.port)
            actions.append(replace(launch, fresh=job.fresh))
        if job.stop is not None:
            actions.append(stop_of(job, job.stop, "repeated"))
        elif job.order.seq > 0 and job.state is JobState.RUNNING and node == job.nodes[0]:
            actions.append(Retune(name, job.attempt, node, job.order, "repeated"))
    return actions


def promise(snapshot: Snapshot, job: Job, placement: Placement) -> Promise | None:
    """None for a first start, for as many GPUs as before, and if the goodput is not known."""
    if not job.attempt or placement.replicas == job.last_replicas:
        return None
    ratio = goodput_ratio(with_times(job, snapshot), placement)
    if ratio is None:
        return None
    return Promise(ratio, snapshot.config.restart_cost(job))


def stoppable(
    moves: Mapping[JobId, Placement], holders: Mapping[tuple[NodeId, DeviceId], JobId]
) -> set[JobId]:
    """The jobs of `moves` that need not wait for another to leave. All others keep training until
    then: stopped now, they would stand still.

    moves: where jobs that run are to go. holders: who holds each device.

    A job that waits for itself in the end, such as one of two that swap places, does not wait.
    """
    blockers = {
        name: {holders[device] for device in placement.devices if device in holders} - {name}
        for name, placement in moves.items()
    }
    return {name for name in moves if not blockers[name] or name in _entangled_jobs(name, blockers)}


def _entangled_jobs(name: JobId, blockers: Mapping[JobId, set[JobId]]) -> set[JobId]:
    """The jobs for whose devices it waits, and those for whose devices these wait, and so on."""
    reached: set[JobId] = set()
    queue = [*blockers[name]]
    while queue:
        blocker = queue.pop()
        if blocker not in reached:
            reached.add(blocker)
            queue += blockers.get(blocker, ())
    return reached


def standbys_due(snapshot: Snapshot, name: NodeId) -> list[Warm]:
    """Orders for this server to keep an interpreter ready: one for each job that may be resized and
    could use one of its GPUs. The servers where a job runs know that themselves."""
    node = next((node for node in nodes_up(snapshot) if node.id == name), None)
    if node is None:
        return []
    orders = (_standby(job, node, snapshot) for job in snapshot.jobs.values())
    return [order for order in orders if order is not None]


def _standby(job: Job, node: Node, snapshot: Snapshot) -> Warm | None:
    if job.state in TERMINAL or job.wish is not DesiredState.RUN or not job.elastic:
        return None
    if node.id in job.nodes or job.spec.launcher:
        return None
    if job.placement is not None and snapshot.now < settled_at(job, snapshot.config):
        return None
    if not is_fit(snapshot.checks, node.id, job.spec.environment):
        return None
    device = next((device.id for device in node.devices if usable(device, job.spec)), None)
    if device is None:
        return None
    placement = Placement(((node.id, (device,)),))
    attempt = job.next_attempt
    return Warm(job.id, attempt, Launch(job.id, attempt, job.spec, placement, BatchOrder()))


def leased_ports(snapshot: Snapshot) -> set[tuple[NodeId, int]]:
    """(server, port) of all attempts that are not over."""
    return {(job.nodes[0], job.port) for job in snapshot.holders if job.port}


def lease_port(
    snapshot: Snapshot,
    job: JobId,
    attempt: int,
    placement: Placement,
    leases: set[tuple[NodeId, int]],
) -> int:
    """A port for this attempt, entered in `leases`. Only who knows the salt can foresee it, so
    nobody else can take it first."""
    node = placement.parts[0][0]
    span = usable_ports(*snapshot.nodes.get(node, UNKNOWN).ephemeral)
    words = f"{snapshot.config.port_salt}:{job}:{attempt}"
    begin = int.from_bytes(hashlib.sha256(words.encode()).digest(), "big")
    for offset in range(len(span)):
        port = span[(begin + offset) % len(span)]
        if port not in WELL_KNOWN_PORTS and (node, port) not in leases:
            break
    leases.add((node, port))
    return port


def usable_ports(first: int = 32_768, last: int = 60_999) -> range:
    """Ports that the kernel does not give to outgoing connections, which use `first` to `last`. If
    too few are left, those of Linux's default. The server must then find out which is free."""
    for span in (
        range(FIRST_PORT, max(first, FIRST_PORT)),
        range(max(last + 1, FIRST_PORT), LAST_PORT),
        range(10_000, max(first, 10_000)),
    ):
        if len(span) >= ENOUGH_PORTS:
            return span
    return range(FIRST_PORT, 32_768)
