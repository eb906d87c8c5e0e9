"""Snapshot and history -> the longer answers: one job in full, `why`, and the live view."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import msgspec

from gpq.control import event_text, sentences
from gpq.control.reader import Reader
from gpq.control.submission import message_of
from gpq.core.explain.explain import explain
from gpq.core.explain.obstacles import JobReasons, reason
from gpq.core.feasibility.checkpoints import has_checkpoint
from gpq.core.feasibility.shapes import feasible
from gpq.core.goodput import estimates
from gpq.core.goodput.models import model_of
from gpq.core.model import events as facts
from gpq.core.model.jobs import TERMINAL, Job, JobState
from gpq.core.model.placements import Shape
from gpq.core.rounds.rounds import Round
from gpq.core.state.attempt_end import is_doubtful
from gpq.core.state.stragglers import describe, seats, stragglers
from gpq.rpc.job_answers import (
    AttemptView,
    CurvePoint,
    Explanation,
    HabitView,
    JobDetail,
    LossView,
    RankView,
    ReallocationView,
    RestartView,
)

CHANGES = (facts.Launched, facts.StopSent, facts.Retuned, facts.Held, facts.Stopped)
ENDS = (
    facts.Stopped, facts.Succeeded, facts.Failed, facts.Cancelled, facts.TimeLimitReached,
)  # fmt: skip
HISTORY_LINES = 200


def detail(reader: Reader, job: Job, journal: Sequence[facts.Event]) -> JobDetail:
    """Everything about one job. `journal` holds its own events, oldest first."""
    profile = job.profile
    model = model_of(profile)
    noise_scale, parameters = None, dict[str, float]()
    if model is not None:
        values = {name: float(value) for name, value in asdict(model.params).items()}
        parameters = {name: value for name, value in values.items() if math.isfinite(value)}
        if model.stats is not None:
            noise_scale = _finite(model.stats.noise_scale)
    return JobDetail(
        job=reader.job(job),
        spec=message_of(job.spec),
        attempts=attempts(reader, journal),
        curve=curve(reader, job),
        noise_scale=noise_scale,
        model=parameters,
        rows=len(profile.rows),
        metrics={name: _finite(value) for name, value in profile.metrics},
        checkpoints=profile.checkpoints,
        restart_seconds=job.restart_seconds,
        gpu_seconds=job.service_at(reader.now),
        notices=reader.notes(job),
        history=list(map(event_text.event_view, journal[-HISTORY_LINES:])),
        learning_rate_rule=profile.declared.rule if profile.declared else "",
        adapter=profile.declared.adapter if profile.declared else "",
        fair_share=reader.fairness[job.id].share if job.id in reader.fairness else None,
        ranks=ranks(reader, job),
        losses=[LossView(point.base_steps, point.loss) for point in profile.losses],
        habits=habits(job),
        restart_times=_restarts(job),
    )


def _restarts(job: Job) -> list[RestartView]:
    gains = {gain.attempt: gain for gain in job.gains}
    views = []
    for times in job.restart_times:
        seconds = times.start, times.restore, times.stop, times.save
        view = RestartView(times.attempt, times.warm, *seconds)
        if gain := gains.get(times.attempt):
            growth = gain.before, gain.after, gain.promise.ratio, gain.measured
            view = RestartView(times.attempt, times.warm, *seconds, *growth)
        views.append(view)
    return views


def habits(job: Job) -> list[HabitView]:
    return [
        HabitView(
            habit.code,
            list(habit.freedoms),
            habit.message,
            habit.cure,
            habit.until > 0,
            habit.suspected,
        )
        for habit in job.profile.habits
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def attempts(reader: Reader, journal: Sequence[facts.Event]) -> list[AttemptView]:
    """The launches of one job, oldest first, with how each attempt ended."""
    views: list[AttemptView] = []
    stop = ""
    for event in journal:
        if isinstance(event, facts.Launched):
            stop = ""
            parts = reader.parts(event.placement)
            views.append(
                AttemptView(event.attempt, parts, event_text.stamp(event.at), None, "", event.why)
            )
        elif isinstance(event, facts.StopSent):
            stop = str(event.reason)
        elif isinstance(event, ENDS) and views and views[-1].ended_at is None:
            views[-1] = msgspec.structs.replace(
                views[-1],
                ended_at=event_text.stamp(min(event.exit.ended_at or event.at, event.at)),
                outcome=f"{_end_word(event)} ({stop})" if stop else _end_word(event),
            )
    return views


def _end_word(event: facts.Event) -> str:
    """How an attempt ended, in the words of the event that says so."""
    if isinstance(event, facts.Stopped) and is_doubtful(event.exit):
        return "exit 0, queued again"
    if isinstance(event, facts.Stopped) and event.failed:
        return "failed, queued again"
    return type(event).__name__.lower()


def curve(reader: Reader, job: Job) -> list[CurvePoint]:
    """The goodput model over the shapes that the job could have here. For an ended job, over the
    shapes that it used."""
    shapes: Sequence[Shape]
    if job.state in TERMINAL:
        shapes = list(map(Shape, range(1, max(job.profile.max_replicas, 1) + 1)))
    else:
        shapes = feasible(job, reader.snapshot)
    return [
        CurvePoint(
            point.gpus, point.goodput, point.total_batch, point.speedup, point.gpus == job.replicas
        )
        for point in estimates.curve(job, shapes)
    ]


def ranks(reader: Reader, job: Job) -> list[RankView]:
    """The replicas of a job that has several, by rank."""
    if job.replicas <= 1:
        return []
    timings = {timing.rank: timing for timing in job.profile.ranks}
    pulses = {pulse.rank: pulse for pulse in job.pulses}
    slow = stragglers(job)
    views = []
    for rank, (node, device) in seats(job).items():
        place = str(node), str(device), reader.index_of(node, device)
        view = RankView(rank, *place, None, None, None, None, None)
        if rank in slow:
            view = msgspec.structs.replace(view, straggler=True, note=describe(job, rank))
        timing, pulse = timings.get(rank), pulses.get(rank)
        if timing is not None:
            view = msgspec.structs.replace(
                view,
                compute_seconds=timing.compute,
                compute_p95_seconds=timing.p95,
                step_seconds=timing.whole,
            )
            if timing.whole > 0:
                view = msgspec.structs.replace(
                    view,
                    wait_share=timing.wait / timing.whole,
                    fetch_share=timing.fetch / timing.whole,
                )
        if pulse is not None:
            view = msgspec.structs.replace(view, step=pulse.step, phase=pulse.phase)
        views.append(view)
    return views


def explanation(reader: Reader, job: Job) -> Explanation:
    """The answer of `gpq why`."""
    if job.state in TERMINAL:
        line = ": ".join(filter(None, (str(job.state), event_text.ended_line(job))))
        return Explanation(
            int(job.id), str(job.state), line, [], _remedies(job), None, code="ended",
            notes=reader.notes(job),
        )  # fmt: skip
    answer = explain(replace(reader.snapshot, now=reader.now), reader.allocation, job)
    staging = reader.reasons.staging_of(job)
    if staging is not None:
        start = reason("starts-once-brought", placement=job.placement)
        answer = JobReasons(reason("bringing", line=str(staging)), (start, *answer.reasons[1:]))
    words = sentences.texts(answer)
    if lines := reader.team(job.id) if job.state is JobState.PENDING else ():
        words = sentences.Texts(lines[0], (*lines[1:], *words.reasons), words.remedies)
    return Explanation(
        int(job.id), str(job.state), words.headline, list(words.reasons), list(words.remedies),
        _moment(reader.round), curve(reader, job), _moment(reader.changed), changes(reader),
        habits(job), answer.headline.code, [reason.code for reason in answer.reasons],
        reader.notes(job),
    )  # fmt: skip


def _moment(last_round: Round | None) -> str | None:
    return event_text.stamp(last_round.at) if last_round is not None else None


def changes(reader: Reader) -> list[ReallocationView]:
    """What the last reallocation changed. It does not look up the names of jobs that have ended
    since."""
    if reader.changed is None:
        return []
    live = reader.snapshot.jobs
    return [
        ReallocationView(
            int(change.job),
            live[change.job].name if change.job in live else "",
            change.before,
            change.after,
            change.ratio,
            change.why,
        )
        for change in reader.changed.changes
    ]


def _remedies(job: Job) -> list[str]:
    """What to do about a job that did not end as intended."""
    if job.state not in (JobState.FAILED, JobState.TIMEOUT):
        return []
    cure = f"`gpq requeue {job.id}` runs it again after you have fixed that"
    if job.state is JobState.TIMEOUT:
        cure = f"`gpq edit {job.id} --time 12h`, then `gpq requeue {job.id}`"
    if has_checkpoint(job):
        cure += ". It resumes from its newest checkpoint"
    if job.first_started_at is None:
        return [cure]
    return [f"`gpq logs {job.id}` shows its last output", cure]
