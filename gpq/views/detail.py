"""The text of `gpq show`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpq.rpc.job_answers import (
    AttemptView,
    EventView,
    HabitView,
    JobDetail,
    JobView,
    PartView,
    RankView,
    RestartView,
)
from gpq.views import goodput_curve, job_facts, loss_curve
from gpq.views.plain import Column, moment, number, safe, table, wrapped
from gpq.views.queue import percent, remark, where

EVENTS = 12  # the latest events that are shown
KEY = 17  # width of the names on the left
LOST = "freedoms lost to habits of the loop"
NARROW = 40  # below this width the names go on lines of their own


def lines(answer: JobDetail, limit: int, bar: str = "█") -> list[str]:
    """Everything, in paragraphs."""
    job = answer.job
    curve = goodput_curve.lines(answer.curve, limit, bar)
    losses = loss_curve.lines(answer.losses, limit, bar, answer.metrics.get("loss"))
    text = wrapped(head(job), limit)
    text += _pairs(job_facts.demands(answer.spec, job), limit)
    text += paragraph("now", _pairs(job_facts.progress(answer), limit))
    text += paragraph(LOST, habits(answer.habits, limit, job.id))
    text += paragraph("replicas", replicas(answer, limit))
    text += paragraph("goodput by number of GPUs, 1x = fewest", curve)
    text += paragraph("loss", losses)
    if answer.attempts:
        text += paragraph("attempts", table(_attempts(answer.attempts), limit))
    if answer.restart_times:
        text += paragraph("restarts", table(_restarts(answer.restart_times), limit))
    text += paragraph("latest events", _events(answer.history[-EVENTS:], limit))
    text += paragraph("notes", _bullets(answer.notices, limit))
    if job.state == "failed" and job.started_at:
        text += ["", *wrapped(f"why it failed: gpq logs {job.id}", limit)]
    return text


def paragraph(title: str, body: list[str]) -> list[str]:
    if body:
        return ["", title, *body]
    return []


def head(job: JobView) -> str:
    text = f"job {job.id} {safe(job.name)} of {safe(job.user)}: {safe(job.state)}"
    if job.placement:
        text += f" on {places(job.placement)}"
    row = {"exit_status": job.exit_status, "state": job.state, "reason": job.reason}
    if remark(row):
        return f"{text}, {remark(row)}"
    return text


def places(parts: list[PartView]) -> str:
    return where(msgspec.to_builtins(parts))


def _pairs(pairs: dict[str, str], limit: int) -> list[str]:
    if 0 < limit < NARROW:  # names on lines of their own
        blocks = [
            [*wrapped(key, limit, "  ", "  "), *wrapped(value, limit, "    ", "    ")]
            for key, value in pairs.items()
        ]
        return [line for lines in blocks for line in lines]
    return [
        line
        for key, value in pairs.items()
        for line in wrapped(value, limit, f"  {key:{KEY - 2}}", " " * KEY)
    ]


def habits(views: Sequence[HabitView], limit: int, job: int) -> list[str]:
    """For each habit: the freedoms, what the loop does, the evidence, and the cure."""
    text = []
    for habit in views:
        message = habit.message or "a habit of the loop"
        freedoms = f"{', '.join(habit.freedoms)}: {message} ({habit.code})"
        text += wrapped(safe(freedoms), limit, "  - ", "    ")
        for line in _habit_remarks(habit, job):
            text += wrapped(safe(line), limit, "    ", "    ")
    return text


def _habit_remarks(habit: HabitView, job: int) -> list[str]:
    remarks = []
    if habit.cure:
        remarks.append(f"cure: {habit.cure}")
    if habit.suspected:
        remarks.append(
            f"suspected, not observed: test it with `gpq check`, or ignore it with `gpq edit {job}"
            f" --accept {habit.code}`"
        )
    if habit.lent:
        remarks.append("seen in an earlier job of this program, but not in this job yet")
    return remarks


def replicas(answer: JobDetail, limit: int) -> list[str]:
    """One line per replica: its place, its time before it waits, and how much it waits. Nothing if
    nothing was measured."""
    ranks = answer.ranks
    if not any(rank.compute_seconds is not None or rank.step is not None for rank in ranks):
        return []
    notes = [rank.note for rank in ranks if rank.note]
    return [*table(_ranks(ranks), limit), *_bullets(notes, limit)]


def _ranks(ranks: Sequence[RankView]) -> list[Column]:
    return [
        Column("  RANK", [str(rank.rank) for rank in ranks], 99, right=True),
        Column("SERVER", [safe(rank.node) for rank in ranks], 90, least=8),
        Column("GPU", [str(rank.index) for rank in ranks], 95, right=True),
        Column("BACKWARD", [_milliseconds(rank.compute_seconds) for rank in ranks], 96, right=True),
        Column("P95", [_milliseconds(rank.compute_p95_seconds) for rank in ranks], 60, right=True),
        Column("WAITS", [percent(rank.wait_share) for rank in ranks], 94, right=True),
        Column("DATA", [percent(rank.fetch_share) for rank in ranks], 70, right=True),
        Column("MARK", [_mark(rank) for rank in ranks], 93, least=9),
    ]


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.4g} ms"


def _mark(rank: RankView) -> str:
    parts = []
    if rank.straggler:
        parts.append("straggler")
    if rank.step is not None:
        parts.append(f"{safe(rank.phase)} in step {rank.step + 1}")
    return ", ".join(parts)


def _attempts(attempts: list[AttemptView]) -> list[Column]:
    return [
        Column("  #", [str(attempt.attempt) for attempt in attempts], 99, right=True),
        Column("GPUS", [places(attempt.placement) for attempt in attempts], 90, least=8),
        Column("WHY THESE GPUS", [safe(attempt.why) for attempt in attempts], 80, least=24),
        Column("LAUNCHED", [moment(attempt.launched_at) for attempt in attempts], 60),
        Column("ENDED", [moment(attempt.ended_at or "-") for attempt in attempts], 50),
        Column("OUTCOME", [safe(attempt.outcome) or "-" for attempt in attempts], 95),
    ]


def _restarts(restarts: list[RestartView]) -> list[Column]:
    return [
        Column("  #", [str(times.attempt) for times in restarts], 99, right=True),
        Column("BY", ["standby" if times.warm else "new" for times in restarts], 90),
        Column(
            "TOOK",
            [_seconds((times.stop or 0.0) + times.start) for times in restarts],
            95,
            right=True,
        ),
        Column("STOP", [_seconds(times.stop) for times in restarts], 80, right=True),
        Column("SAVE", [_seconds(times.save) for times in restarts], 60, right=True),
        Column("START", [_seconds(times.start) for times in restarts], 80, right=True),
        Column("LOAD", [_seconds(times.restore) for times in restarts], 60, right=True),
        Column("GPUS", [_sizes(times) for times in restarts], 85),
        Column("PROMISED", [number(times.promised, "x") for times in restarts], 84, right=True),
        Column("MEASURED", [number(times.measured, "x") for times in restarts], 86, right=True),
    ]


def _sizes(times: RestartView) -> str:
    if times.before is None:
        return "-"
    return f"{times.before} -> {times.after}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.1f}s"


def _events(events: Sequence[EventView], limit: int) -> list[str]:
    texts = [f"{moment(event.at)} {safe(event.kind)}: {safe(event.text)}" for event in events]
    return [line for text in texts for line in wrapped(text, limit, "  ", "      ")]


def _bullets(texts: Sequence[str], limit: int) -> list[str]:
    return [line for text in texts for line in wrapped(safe(text), limit, "  - ", "    ")]
