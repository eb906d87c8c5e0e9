"""The text of `gpq show` and `gpq why`, with bars of the goodput model and the loss curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from gpq.rpc.job_answers import (
    AttemptView,
    CurvePoint,
    EventView,
    Explanation,
    HabitView,
    JobDetail,
    JobView,
    LossView,
    PartView,
    RankView,
    ReallocationView,
    RestartView,
)
from gpq.views import job_facts
from gpq.views.plain import Column, moment, number, safe, table, wrap
from gpq.views.queue import ENDED, percent, remark, where

EVENTS = 12  # the latest events that are shown
KEY = 17  # width of the names on the left
LOST = "freedoms lost to habits of the loop"
NARROW = 40  # below this width the names go on lines of their own
MOST_POINTS = 16  # lines. Longer curves leave out points
LEVELS = "▁▂▃▄▅▆▇█"
WIDEST = 80  # the widest curve in columns


def lines(answer: JobDetail, limit: int, bar: str = "█") -> list[str]:
    """Everything, in paragraphs."""
    job = answer.job
    curve = goodput_curve(answer.curve, limit, bar)
    losses = loss_curve(answer.losses, limit, bar, answer.metrics.get("loss"))
    text = wrap(head(job), limit)
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
        text += ["", *wrap(f"why it failed: gpq logs {job.id}", limit)]
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
            [*wrap(key, limit, "  ", "  "), *wrap(value, limit, "    ", "    ")]
            for key, value in pairs.items()
        ]
        return [line for lines in blocks for line in lines]
    return [
        line
        for key, value in pairs.items()
        for line in wrap(value, limit, f"  {key:{KEY - 2}}", " " * KEY)
    ]


def habits(views: Sequence[HabitView], limit: int, job: int) -> list[str]:
    """For each habit: the freedoms, what the loop does, the evidence, and the cure."""
    text = []
    for habit in views:
        message = habit.message or "a habit of the loop"
        freedoms = f"{', '.join(habit.freedoms)}: {message} ({habit.code})"
        text += wrap(safe(freedoms), limit, "  - ", "    ")
        for line in _habit_remarks(habit, job):
            text += wrap(safe(line), limit, "    ", "    ")
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
    return [line for text in texts for line in wrap(text, limit, "  ", "      ")]


def _bullets(texts: Sequence[str], limit: int) -> list[str]:
    return [line for text in texts for line in wrap(safe(text), limit, "  - ", "    ")]


def goodput_curve(points: Sequence[CurvePoint], limit: int, bar: str = "█") -> list[str]:
    """`2 |██████ 241 (1.62x, batch 256) <- now`: bars as long as `limit` allows."""
    shown_points = thin(points)
    if not shown_points:
        return []
    digits = max(len(str(point.gpus)) for point in shown_points)
    remarks = list(map(_point, shown_points))
    room = min(max((limit or 100) - digits - 5 - max(map(len, remarks)), 4), 40)
    top = max(point.goodput for point in shown_points) or 1.0
    return [
        f"  {point.gpus:{digits}} {bar * max(round(room * point.goodput / top), 1):{room}} {remark}"
        for point, remark in zip(shown_points, remarks, strict=True)
    ]


def _point(point: CurvePoint) -> str:
    text = f"{number(point.goodput)} ({number(point.speedup)}x, batch {point.total_batch})"
    if point.current:
        text += " <- now"
    return text


def thin(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """At most `MOST_POINTS` of them: the first, the last, the current one, and evenly between."""
    if len(points) <= MOST_POINTS:
        return list(points)
    step = (len(points) - 1) / (MOST_POINTS - 2)
    indices = {round(index * step) for index in range(MOST_POINTS - 1)} | {
        i for i, point in enumerate(points) if point.current
    }
    return [points[index] for index in sorted(indices)]


def loss_curve(
    points: Sequence[LossView], limit: int, bar: str = "█", last: float | None = None
) -> list[str]:
    """`2.31 -> 0.42 over 12,000 base steps, last 0.40`, and the curve in block characters if `bar`
    shows that the terminal has them. `last`: the last logged value, because the points are means
    over reports."""
    if not points:
        return []
    first, newest = points[0], points[-1]
    if last is not None and math.isclose(last, newest.loss, rel_tol=1e-5):
        last = None
    latest = ""
    if last is not None:
        latest = f", last {last:.3g}"
    if len(points) == 1:
        return wrap(
            f"{first.loss:.3g} after {first.base_steps:,.0f} base steps{latest}", limit, "  ", "  "
        )
    summary = (
        f"{first.loss:.3g} -> {newest.loss:.3g} over {newest.base_steps:,.0f} base steps{latest}"
    )
    text = wrap(summary, limit, "  ", "  ")
    if bar == "█":
        text.append(
            "  " + spark([point.loss for point in points], min(limit or WIDEST, WIDEST) - 2, last)
        )
    return text


def spark(values: Sequence[float], room: int, last: float | None = None) -> str:
    """One character per value, and one for `last`. If there are more than `room`, neighbours are
    averaged. The lowest value is the lowest character."""
    columns = min(len(values), max(room - (last is not None), 1))
    edges = [index * len(values) // columns for index in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    if last is not None:
        means.append(last)
    low, high = min(means), max(means)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((mean - low) * scale)] for mean in means)


def why(answer: Explanation, limit: int, bar: str = "█") -> list[str]:
    """Headline, reasons, remedies, and the goodput that decided it."""
    text = wrap(f"job {answer.id} ({safe(answer.state)}): {safe(answer.headline)}", limit)
    for reason in answer.reasons:
        if reason != answer.headline:  # the headline is the whole reason
            text += wrap(safe(reason), limit, "  - ", "    ")
    if answer.remedies:
        text += ["", "what to do:" if answer.state in ENDED else "what would change that:"]
        for remedy in answer.remedies:
            text += wrap(safe(remedy), limit, "  - ", "    ")
    reasons = " ".join([answer.headline, *answer.reasons])
    notes = [note for note in answer.notes if note not in reasons]
    if notes:
        text += ["", "notes:"]
        text += [line for note in notes for line in wrap(safe(note), limit, "  - ", "    ")]
    if answer.curve:
        text += [
            "",
            "goodput by number of GPUs, 1x = fewest:",
            *goodput_curve(answer.curve, limit, bar),
        ]
    if answer.changes:
        text += ["", f"the last change of GPUs, {moment(answer.changed_at or '')}:"]
        text += [
            line
            for change in answer.changes
            for line in wrap(_change(change), limit, "  - ", "    ")
        ]
    if answer.round_at:
        text += ["", f"decided at {moment(answer.round_at)}, in the last round"]
    return text


def _change(change: ReallocationView) -> str:
    name = f" {safe(change.name)}" if change.name else ""
    line = f"job {change.job}{name}: {change.before} -> {change.after} GPUs"
    if change.ratio is not None:
        line += f", goodput x{number(change.ratio)}"
    return f"{line}: {safe(change.why)}"
