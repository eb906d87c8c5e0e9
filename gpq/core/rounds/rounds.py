"""decide(): fold -> settle -> offer -> allocate -> place -> plan. One pure function. The loop
commits and performs its answer.

If habits of loops took freedoms, the policy sees `freedoms.bind` for all jobs, and jobs that now
hold too few GPUs for their base batch may move. Background jobs get what the policy gives to nobody
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpq.core.accounting import accrual
from gpq.core.accounting.fairness import count_shares
from gpq.core.answers import WrongAnswer, ask
from gpq.core.feasibility.environments import checks_due as wanted_checks
from gpq.core.feasibility.gates import next_opening, without_gated
from gpq.core.feasibility.idle_gpus import cap_idle, reclaim
from gpq.core.feasibility.mobility import (
    UNKNOWN,
    as_waiting,
    evacuate,
    held_by,
    is_fixed,
    must_leave,
    settled_at,
)
from gpq.core.feasibility.owners import presence
from gpq.core.feasibility.reservations import next_change
from gpq.core.feasibility.shapes import by_type, shape_on, supply
from gpq.core.freedoms import bind, merge_habits, runs_cramped, without_accepted
from gpq.core.model.actions import Action, Forget
from gpq.core.model.events import (
    TRIGGERS,
    Cancelled,
    EnvironmentSeen,
    Event,
    Exited,
    Held,
    NodeSeen,
    NodeSilent,
    Profiled,
    Released,
)
from gpq.core.model.jobs import HOLDS_DEVICES, DesiredState, Job, JobState, arrival
from gpq.core.model.nodes import Device, NodeState
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.policy import Policy, shape_of
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.placement import place
from gpq.core.rounds.motives import Reallocation, motives, reallocations
from gpq.core.rounds.planning import order_fact, plan, time_left, wished_stop
from gpq.core.sharing.division import Division, divide
from gpq.core.state.apply_events import fold


@dataclass(frozen=True, slots=True)
class Round:
    """What a round wanted, kept so that `explain` reads the decision that was made."""

    at: float
    allocation: Mapping[JobId, Shape]
    placements: Mapping[JobId, Placement]
    motives: Mapping[JobId, str]
    changes: tuple[Reallocation, ...] = ()
    fault: str = ""  # a line about a wrong answer, after which every job keeps what it holds


@dataclass(frozen=True, slots=True)
class Decision:
    """First `journal` and `snapshot` (and `ended`, final values) are committed. Then `actions` are
    performed."""

    snapshot: Snapshot
    journal: tuple[Event, ...]
    actions: tuple[Action, ...]
    ended: tuple[Job, ...]
    round: Round | None
    amended: tuple[Job, ...] = ()  # had ended before, and were edited


def decide(
    snapshot: Snapshot,
    events: Sequence[Event],
    policy: Policy,
    *,
    allocate: bool,
    settled: bool = False,
) -> Decision:
    """One pass at `snapshot.now`. Without `allocate` it only takes in facts and follows urgent
    wishes.

    `settled`: the snapshot came from an earlier pass, so between rounds only jobs changed by
    `events` are checked for immediate consequences. Raises InvalidTransition for a bug in gpq. The
    snapshot is then unchanged.
    """
    if allocate or any(isinstance(event, TRIGGERS) for event in events):
        snapshot = count_shares(snapshot)
    before = snapshot
    first = fold(snapshot, events)
    changed_jobs = jobs_with_news(before, first.snapshot) if settled and not allocate else None
    second = fold(first.snapshot, settle(first.snapshot, changed_jobs))
    snapshot = second.snapshot
    outcome: Round | None = None
    actions: list[Action]
    if allocate:
        fault = ""
        try:
            division = allocate_for(snapshot, policy)
        except WrongAnswer as error:
            fault = f"{error.message}. gpq changes nothing until it answers well: {error.hint}"
            present = {job.id: job.placement for job in snapshot.holders if job.placement}
            shapes = {name: shape_on(placement, snapshot) for name, placement in present.items()}
            division = Division(shapes, present, snapshot.standings)
        placements = division.placements
        allocation = {name: shape_of(allotment) for name, allotment in division.allotments.items()}
        reasons = motives(snapshot, placements, division.secured)
        changes = reallocations(snapshot, placements, reasons)
        outcome = Round(snapshot.now, allocation, placements, reasons, changes, fault)
        actions = [*plan(snapshot, placements, reasons), *wanted_checks(snapshot)]
        now = snapshot.now
        standings = division.standings
        snapshot = replace(snapshot, round_at=now, standings=standings, standings_at=now)
    else:
        stops = (wished_stop(job, snapshot.now) for job in snapshot.holders)
        actions = [stop for stop in stops if stop is not None]
    facts = (order_fact(action, snapshot.now) for action in actions)
    third = fold(snapshot, filter(None, facts))
    ended_jobs = (*first.ended, *second.ended, *third.ended)
    ended = tuple(accrual.settle(job, before, before.means) for job in ended_jobs)
    return Decision(
        third.snapshot,
        (*first.journal, *second.journal, *third.journal),
        (*actions, *_forgets(before, third.snapshot, first.journal)),
        ended,
        outcome,
        first.amended,
    )


def _forgets(before: Snapshot, after: Snapshot, journal: Sequence[Event]) -> list[Forget]:
    """Attempts that are now over. When that is committed, their servers need not keep the
    records."""
    nodes: dict[tuple[JobId, int], set[NodeId]] = {}
    for event in journal:
        if isinstance(event, Exited):
            job = after.jobs.get(event.job)
            if job is None or job.attempt != event.attempt or job.state not in HOLDS_DEVICES:
                nodes.setdefault((event.job, event.attempt), set()).add(event.node)
    for (name, attempt), node_names in nodes.items():
        old = before.jobs.get(name)
        if old is not None and old.attempt == attempt:
            node_names.update(old.nodes)
    return [
        Forget(name, attempt, tuple(sorted(node_names)))
        for (name, attempt), node_names in nodes.items()
    ]


def jobs_with_news(before: Snapshot, after: Snapshot) -> list[JobId]:
    """Live jobs with news."""
    if before.jobs is after.jobs:
        return []
    previous_job = before.jobs.get
    return [name for name, job in after.jobs.items() if previous_job(name) is not job]


def due(snapshot: Snapshot, events: Sequence[Event]) -> bool:
    """Is it time to allocate? Because of the timer, a trigger, the first times of an attempt, or
    devices that came or went."""
    last, now = snapshot.round_at, snapshot.now
    if not last <= now < last + snapshot.config.interval:
        return True
    return snapshot.config.events and any(_calls_for_a_round(snapshot, event) for event in events)


def _calls_for_a_round(snapshot: Snapshot, event: Event) -> bool:
    match event:
        case NodeSeen():
            before, after = snapshot.nodes.get(event.node.id), event.node
            return (
                before is None
                or before.state is not after.state
                or _offer(before.devices) != _offer(after.devices)
                or presence(before) != presence(after)
            )
        case NodeSilent():
            return snapshot.nodes.get(event.node, UNKNOWN).state is NodeState.UP
        case EnvironmentSeen():
            check = snapshot.checks.get((event.node, event.environment))
            return check is None or check.fit is not event.fit
        case Profiled():
            job = snapshot.jobs.get(event.job)
            return job is not None and _changes_range(job, event)
        case _:
            return isinstance(event, (*TRIGGERS, Exited))


def _changes_range(job: Job, event: Profiled) -> bool:
    """May the job from now on have other GPUs or batches than before?"""
    profile = job.profile
    habits = merge_habits(profile.habits, without_accepted(event.habits, job.spec.accept))
    return (
        # what it has or does may no longer be allowed
        habits is not profile.habits
        or (event.declared is not None and profile.declared is None)
        # It may be moved from now on, and its size may have been a mistake.
        or (bool(event.timings) and profile.samples_per_second <= 0 and job.movable)
    )


def _offer(devices: Sequence[Device]) -> list[tuple[str, str]]:
    return [(device.id, device.state) for device in devices]


def next_round(snapshot: Snapshot) -> float:
    """When the loop must wake at the latest: by the timer, or earlier for a back-off, a time limit,
    or a job that gpq may move from then on."""
    now, timer = snapshot.now, snapshot.round_at + snapshot.config.interval
    if not snapshot.config.events:
        return max(timer, now)
    moments = [timer, next_change(snapshot), next_opening(snapshot)]
    moments += [
        job.not_before
        for job in snapshot.jobs.values()
        if job.state is JobState.PENDING and job.not_before > now
    ]
    for job in snapshot.holders:
        if job.state is JobState.RUNNING:
            settle_time = settled_at(job, snapshot.config)
            if job.stop is None:
                moments.append(now + time_left(job, now))
            if job.movable and settle_time > now:
                moments.append(settle_time)
    return max(min(moments), now)


def settle(snapshot: Snapshot, names: Iterable[JobId] | None = None) -> list[Event]:
    """Immediate consequences for jobs that hold nothing, all of them or the named ones: a wish
    needs no round."""
    events: list[Event] = [*reclaim(snapshot)]
    pending, run = JobState.PENDING, DesiredState.RUN
    for name in sorted(snapshot.jobs if names is None else names):
        job = snapshot.jobs[name]
        if job.placement is not None:
            continue
        if (
            job.wish is run
            and job.state is pending
            and not (job.unmet or job.crashes or job.quick_failures)
        ):
            continue  # nearly all
        event = _consequence(job, snapshot)
        if event is not None:
            events.append(event)
    return events


def _consequence(job: Job, snapshot: Snapshot) -> Event | None:
    """The immediate consequence for one job that holds nothing."""
    if job.wish is DesiredState.CANCEL:
        return Cancelled(snapshot.now, job.id)
    if job.state is JobState.HELD and job.wish in (DesiredState.RUN, DesiredState.REQUEUE):
        return None if job.unmet else Released(snapshot.now, job.id)
    if job.state is not JobState.PENDING:
        return None
    if job.wish is DesiredState.HOLD:
        return Held(snapshot.now, job.id)
    why = _hold_reason(job, snapshot.config)
    return Held(snapshot.now, job.id, f"held: {why}") if why else None


def _hold_reason(job: Job, config: Config) -> str:
    """Why gpq holds a job that its user wants to run. "" if it does not."""
    if job.unmet:
        return f"{job.unmet}. `gpq release {job.id}` runs it anyway"
    if job.crashes >= config.max_crashes:
        return (
            f"its server went down or its supervisor was killed {job.crashes} times in a row while"
            f" it ran. `gpq release {job.id}` tries again"
        )
    if job.quick_failures >= config.max_quick_failures:
        return (
            f"failed {job.quick_failures} times in a row, each within"
            f" {config.quick_failure_seconds:.0f} s. `gpq release {job.id}` tries again"
        )
    return ""


def make_offer(snapshot: Snapshot, *, moving: bool = True) -> tuple[Snapshot, JobId | None]:
    """The snapshot in which no job is offered what it may not have. Also the one job, if any, that
    counts as stopped because it runs cramped and enough GPUs are free for it. Other cramped jobs
    stay where they are. Without `moving` all of them stay, for a caller that finds that the job to
    move gets nothing.

    The same object if no job has a habit.
    """
    changes, cramped_jobs = _limits(snapshot)
    roomy_jobs = (job for job in cramped_jobs if moving and _has_room(job, snapshot))
    mover = next(roomy_jobs, None)
    if mover is not None:
        changes[mover.id] = replace(as_waiting(mover), target=None)
    offer = replace(snapshot, jobs={**snapshot.jobs, **changes}) if changes else snapshot
    return offer, mover.id if mover is not None else None


def _limits(snapshot: Snapshot) -> tuple[dict[JobId, Job], list[Job]]:
    """Jobs as lost freedoms limit them, if that changes them, and the jobs that run cramped, in the
    order of their arrival."""
    changes: dict[JobId, Job] = {}
    cramped_jobs: list[Job] = []
    for name, job in snapshot.jobs.items():
        if not job.profile.habits:
            continue
        limited_job = bind(job, snapshot)
        if runs_cramped(job) and not is_fixed(job, snapshot) and not must_leave(job, snapshot):
            cramped_jobs.append(limited_job)
            limited_job = replace(limited_job, spec=limited_job.spec.having(rigid=True))
        if limited_job is not job:
            changes[name] = limited_job
    return changes, sorted(cramped_jobs, key=arrival)


def _has_room(job: Job, snapshot: Snapshot) -> bool:
    """Are there enough GPUs that nobody else holds?"""
    other_holders = {device: name for device, name in held_by(snapshot).items() if name != job.id}
    parts = by_type(supply(snapshot, job, other_holders), snapshot).values()
    return (
        job.replicas
        < job.spec.min_gpus
        <= max((sum(map(len, part.values())) for part in parts), default=0)
    )


def allocate_for(snapshot: Snapshot, policy: Policy) -> Division:
    """What `policy` gives to whom, and where. It may move a job that runs cramped, but not stop it
    for nothing."""
    offer, mover = offer_of(snapshot)
    division = _allocate(offer, policy)
    if mover is None or mover in division.placements:
        return division
    return _allocate(offer_of(snapshot, moving=False)[0], policy)


def offer_of(snapshot: Snapshot, *, moving: bool = True) -> tuple[Snapshot, JobId | None]:
    """`make_offer` to the jobs in front of their gates, without those that must leave where they
    are."""
    offer, mover = make_offer(without_gated(snapshot), moving=moving)
    return evacuate(cap_idle(offer)), mover


def _allocate(snapshot: Snapshot, policy: Policy) -> Division:
    """What `policy` gives to whom, and where. Background jobs get only GPUs that nobody else wants:
    gpq first decides on the others as if there were none, then on these with what is left."""
    background_jobs = {
        name: job
        for name, job in snapshot.jobs.items()
        if job.spec.background and not is_fixed(job, snapshot)
    }
    if not background_jobs:
        return divide(snapshot, policy)
    foreground_jobs = {
        name: job for name, job in snapshot.jobs.items() if name not in background_jobs
    }
    division = divide(replace(snapshot, jobs=foreground_jobs), policy, background_jobs)
    leftover = _leftover(snapshot, background_jobs, division.placements)
    background_allotments = ask(policy, leftover)
    return replace(
        division,
        allotments={**division.allotments, **background_allotments},
        placements={**division.placements, **place(leftover, background_allotments)},
    )


def _leftover(
    snapshot: Snapshot, background_jobs: Mapping[JobId, Job], placements: Mapping[JobId, Placement]
) -> Snapshot:
    """Background jobs alone, on the devices that are left. A background job that keeps its devices
    counts as an ordinary job there, so they do not push each other around. All of them leave when
    told to, so they may also use owners' servers."""
    busy_devices = {device for placement in placements.values() for device in placement.devices}
    nodes = {
        name: replace(
            node,
            owner="",
            devices=tuple(
                device for device in node.devices if (name, device.id) not in busy_devices
            ),
        )
        for name, node in snapshot.nodes.items()
    }
    jobs = {}
    for name, job in background_jobs.items():
        if job.wish is DesiredState.RUN:
            has_to_leave = job.placement is not None and job.placement.devices & busy_devices
            jobs[name] = replace(
                as_waiting(job) if has_to_leave else job, spec=job.spec.having(background=False)
            )
    return replace(snapshot, nodes=nodes, jobs=jobs)
