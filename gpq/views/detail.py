"""The text of `gpq show` and `gpq why`, with bars of the goodput model and the loss curve."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec

from gpq.rpc.job_answers import (
    AttemptView,
    CurvePoint,
    Explanation,
    HabitView,
    JobDetail,
    JobView,
    LossView,
    PartView,
    RestartView,
)
from gpq.rpc.requests import ProofMessage, SpecMessage
from gpq.views.plain import (
    Head,
    columns,
    duration,
    moment,
    number,
    safe,
    table,
    wrap,
    wrap_all,
)
from gpq.views.queue import ENDED, percent, remark, where

EVENTS = 12  # the latest events that are shown
KEY = 17  # width of the names on the left
LOST = "freedoms lost to habits of the loop"
NARROW = 40  # below this width the names go on lines of their own
MOST_POINTS = 16  # lines. Longer curves leave out points
LEVELS = "▁▂▃▄▅▆▇█"
WIDEST = 80  # the widest curve in columns
Value = TypeVar("Value")
RANKS = (
    Head("  RANK", 99, right=True), Head("SERVER", 90, least=8), Head("GPU", 95, right=True),
    Head("BACKWARD", 96, right=True), Head("P95", 60, right=True), Head("WAITS", 94, right=True),
    Head("DATA", 70, right=True), Head("MARK", 93, least=9),
)  # fmt: skip
ATTEMPTS = (
    Head("  #", 99, right=True), Head("GPUS", 90, least=8), Head("WHY THESE GPUS", 80, least=24),
    Head("LAUNCHED", 60), Head("ENDED", 50), Head("OUTCOME", 95),
)  # fmt: skip
RESTARTS = (
    Head("  #", 99, right=True), Head("BY", 90), Head("TOOK", 95, right=True),
    Head("STOP", 80, right=True), Head("SAVE", 60, right=True), Head("START", 80, right=True),
    Head("LOAD", 60, right=True), Head("GPUS", 85), Head("PROMISED", 84, right=True),
    Head("MEASURED", 86, right=True),
)  # fmt: skip


def lines(answer: JobDetail, limit: int, bar: str = "█") -> list[str]:
    """Everything, in paragraphs."""
    job = answer.job
    curve = goodput_curve(answer.curve, limit, bar)
    losses = loss_curve(answer.losses, limit, bar, answer.metrics.get("loss"))
    text = wrap(head(job), limit)
    text += _pairs(demands(answer.spec, job), limit)
    text += paragraph("now", _pairs(progress(answer), limit))
    text += paragraph(LOST, habits(answer.habits, limit, job.id))
    text += paragraph("replicas", replicas(answer, limit))
    text += paragraph("goodput by number of GPUs, 1x = fewest", curve)
    text += paragraph("loss", losses)
    if answer.attempts:
        text += paragraph("attempts", _attempts(answer.attempts, limit))
    if answer.restart_times:
        text += paragraph("restarts", _restarts(answer.restart_times, limit))
    events = [
        f"{moment(event.at)} {safe(event.kind)}: {safe(event.text)}"
        for event in answer.history[-EVENTS:]
    ]
    text += paragraph("latest events", wrap_all(events, limit, "  ", "      "))
    text += paragraph("notes", _bullets(answer.notices, limit))
    if job.state == "failed" and job.started_at:
        text += ["", *wrap(f"why it failed: gpq logs {job.id}", limit)]
    return text


def paragraph(title: str, body: list[str]) -> list[str]:
    return ["", title, *body] if body else []


def head(job: JobView) -> str:
    text = f"job {job.id} {safe(job.name)} of {safe(job.user)}: {safe(job.state)}"
    if job.placement:
        text += f" on {places(job.placement)}"
    row = {"exit_status": job.exit_status, "state": job.state, "reason": job.reason}
    return ", ".join(filter(None, (text, remark(row))))


def places(parts: list[PartView]) -> str:
    return where(msgspec.to_builtins(parts))


def if_any(show: Callable[[Value], str], value: Value | None) -> str:
    """`show(value)`, or "" if the value is None, zero or empty."""
    return show(value) if value else ""


def if_known(show: Callable[[Value], str], value: Value | None) -> str:
    """`show(value)`, or "" if the value is None."""
    return show(value) if value is not None else ""


def demands(spec: SpecMessage, job: JobView) -> dict[str, str]:
    """The request, without defaults. Facts without content are empty."""
    seat = f"{job.array}, index {job.index}" if job.array is not None else ""
    if job.params:
        seat += f": {' '.join(f'{key}={value}' for key, value in job.params.items())}"
    predecessors = ", ".join(spec.after)
    if job.after:
        predecessors += f", still waiting for {', '.join(job.after)}"
    batch_size = micro_batch = ""
    if spec.batch_size or spec.max_batch_size:
        least, most = spec.batch_size or "declared", spec.max_batch_size or "declared"
        batch_size = f"{least}, at most {most}"
    if spec.max_atomic_batch:
        micro_batch = f"{spec.min_atomic_batch} to {spec.max_atomic_batch}"
    lease = notifications = ""
    if spec.requeue_on_lost:
        span = duration(spec.requeue_on_lost)
        lease = f"restart elsewhere if the server is unreachable for {span}"
    if spec.notify:
        notifications = f"{', '.join(spec.notify)} on {', '.join(spec.notify_on or [])}"
    return {
        "command": shlex.join(spec.argv),
        "directory": spec.cwd,
        "code": f"{spec.code_from}, in {spec.code_cwd}" if spec.code else "",
        "stdin": if_any("a copy, sha256 {:.12}".format, spec.stdin),
        "kind": _kind(spec, job),
        "GPUs": _gpus(spec),
        "GPU type": spec.gpu_type,
        "GPU memory": if_any("at least {} MiB".format, spec.min_gpu_memory_mib),
        "python": _interpreter(spec),
        "setup": spec.setup,
        "array": seat,
        "after": predecessors,
        "begins": moment(job.begin_at or ""),
        "background": "uses only GPUs that nobody else wants" if spec.background else "",
        "launcher": spec.launcher,
        "done file": spec.done_file,
        "priority": if_any(str, spec.priority),
        "time limit": if_any(duration, spec.time_limit),
        "retries": if_any(str, spec.retries),
        "lease": lease,
        "batch size": batch_size,
        "micro-batch": micro_batch,
        "niceness": if_any(str, spec.attributes and spec.attributes.nice),
        "accepted": ", ".join(spec.accept),
        "gpq check": if_known(_proof, spec.proof),
        "tags": ", ".join(spec.tags),
        "notifies": notifications,
    }


def progress(answer: JobDetail) -> dict[str, str]:
    """The progress of the job."""
    job = answer.job
    done = if_known(percent, job.progress)
    if done and job.eta_seconds is not None:
        done += f", {duration(job.eta_seconds)} left"
    total_batch = restarts = ""
    if job.total_batch:
        gpus = count(job.gpus or 1, "GPU", "GPUs")
        parts = count(job.accum_steps + 1, "micro-batch", "micro-batches")
        total_batch = f"{job.total_batch} = {job.atomic_batch} x {gpus} x {parts}"
    if job.restarts or job.batch_changes:
        changes = count(job.batch_changes, "batch change", "batch changes")
        cost = ""
        if job.restarts and answer.restart_seconds is not None:
            cost = f", {duration(answer.restart_seconds)} each"
        restarts = (
            f"{job.restarts} ({job.resizes} on another number of GPUs{cost}), {changes} without a"
            " restart"
        )
    rows = count(answer.rows, "configuration", "configurations")
    rho = f"rho {number(job.rho)} (1 is as fast as on a fair share, lower is better)"
    return {
        "submitted": moment(job.submitted_at),
        "started": moment(job.started_at or ""),
        "ended": moment(job.ended_at or ""),
        "run time": duration(job.run_seconds) if job.started_at else "",
        "GPU time": if_any(duration, answer.gpu_seconds),
        "progress": done,
        "batch size": total_batch,
        "goodput": if_known(_rate, job.goodput),
        "throughput": if_known(_rate, job.throughput),
        "efficiency": if_known(percent, job.efficiency),
        "speedup": _speedup(answer),
        "fairness": rho if job.rho is not None else "",
        "noise scale": if_known(_examples, answer.noise_scale),
        "profile": f"{rows} measured" if answer.rows else "",
        "model": " ".join(f"{key}={value:.4g}" for key, value in sorted(answer.model.items())),
        "learning rate": answer.learning_rate_rule,
        "adapter": answer.adapter,
        "metrics": _metrics(answer),
        "checkpoints": if_any(str, answer.checkpoints),
        "restarts": restarts,
    }


def _kind(spec: SpecMessage, job: JobView) -> str:
    match spec.level:
        case "black-box":
            return "command, never moved"
        case "signal":
            return f"command, saves a checkpoint on {spec.signal}"
    if job.level == "script":
        return "script"
    return f"script, {job.level}"


def _gpus(spec: SpecMessage) -> str:
    text = str(spec.min_gpus)
    if spec.max_gpus > spec.min_gpus:
        text += f" to {spec.max_gpus}"
    elif not spec.max_gpus:
        text += " to as many as help"
    if spec.rigid:
        text += ", rigid"
    return text


def _interpreter(spec: SpecMessage) -> str:
    if spec.level != "script" or not spec.python:
        return ""
    if spec.python_asked:
        return spec.python
    return f"{spec.python}, unless a server has its own"


def _proof(proof: ProofMessage) -> str:
    """`safe: accumulate, split, resize (on 2026-11-27)`."""
    words = []
    if proof.same:
        words.append(f"safe: {', '.join(proof.same)}")
    if proof.lost:
        words.append(f"not safe: {', '.join(proof.lost)} ({proof.message})")
    return f"{' / '.join(words)} (on {proof.at[:10]})"


def _rate(value: float) -> str:
    return f"{_examples(value)}/s"


def _examples(value: float) -> str:
    return f"{number(value)} examples"


def _metrics(answer: JobDetail) -> str:
    """`loss=nan (for 12 min) accuracy=0.4`, with non-finite values first."""
    divergences = [
        f"{divergence.metric}={divergence.value} (for {duration(divergence.seconds)})"
        for divergence in answer.job.diverged
    ]
    values = [
        f"{name}={value:.6g}"
        for name, value in sorted(answer.metrics.items())
        if value is not None and not name.startswith("gpq_")
    ]
    return " ".join([*divergences, *values])


def _speedup(answer: JobDetail) -> str:
    """The speedup relative to the fair share, not to the fewest GPUs as in the curve. Jobs without
    GPUs have none."""
    if answer.job.speedup is None or not answer.job.gpus:
        return ""
    share, fewest = answer.fair_share, answer.spec.min_gpus
    speedup = f"{number(answer.job.speedup)}x the goodput on"
    if share is None:
        return f"{speedup} a fair share"
    if share < fewest:
        minimum = f"its minimum of {count(fewest, 'GPU', 'GPUs')}"
        return f"{speedup} {minimum} (the fair share is {number(share)} now)"
    return f"{speedup} a fair share ({number(share)} GPUs now)"


def count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _pairs(pairs: dict[str, str], limit: int) -> list[str]:
    text = []
    for key, value in pairs.items():
        if value and 0 < limit < NARROW:  # names on lines of their own
            text += [*wrap(key, limit, "  ", "  "), *wrap(safe(value), limit, "    ", "    ")]
        elif value:
            text += wrap(safe(value), limit, f"  {key:{KEY - 2}}", " " * KEY)
    return text


def habits(views: Sequence[HabitView], limit: int, job: int) -> list[str]:
    """For each habit: the freedoms, what the loop does, the evidence, and the cure."""
    text = []
    for habit in views:
        message = habit.message or "a habit of the loop"
        freedoms = f"{', '.join(habit.freedoms)}: {message} ({habit.code})"
        text += wrap(safe(freedoms), limit, "  - ", "    ")
        remarks = []
        if habit.cure:
            remarks.append(f"cure: {safe(habit.cure)}")
        if habit.suspected:
            remarks.append(
                "suspected, not observed: test it with `gpq check`, or ignore it with"
                f" `gpq edit {job} --accept {safe(habit.code)}`"
            )
        if habit.lent:
            remarks.append("seen in an earlier job of this program, but not in this job yet")
        text += wrap_all(remarks, limit, "    ", "    ")
    return text


def replicas(answer: JobDetail, limit: int) -> list[str]:
    """One line per replica: its place, its time before it waits, and how much it waits. Nothing if
    nothing was measured."""
    ranks = answer.ranks
    if not any(rank.compute_seconds is not None or rank.step is not None for rank in ranks):
        return []
    rows = []
    for rank in ranks:
        step = f"{safe(rank.phase)} in step {rank.step + 1}" if rank.step is not None else ""
        row = (
            str(rank.rank), safe(rank.node), str(rank.index), _milliseconds(rank.compute_seconds),
            _milliseconds(rank.compute_p95_seconds), percent(rank.wait_share),
            percent(rank.fetch_share),
            ", ".join(filter(None, ("straggler" if rank.straggler else "", step))),
        )  # fmt: skip
        rows.append(row)
    notes = [rank.note for rank in ranks if rank.note]
    return [*table(columns(RANKS, rows), limit), *_bullets(notes, limit)]


def _milliseconds(seconds: float | None) -> str:
    return f"{1000 * seconds:.4g} ms" if seconds is not None else "-"


def _attempts(attempts: list[AttemptView], limit: int) -> list[str]:
    rows = [
        (
            str(attempt.attempt), places(attempt.placement), safe(attempt.why),
            moment(attempt.launched_at), moment(attempt.ended_at or "-"),
            safe(attempt.outcome) or "-",
        )
        for attempt in attempts
    ]  # fmt: skip
    return table(columns(ATTEMPTS, rows), limit)


def _restarts(restarts: list[RestartView], limit: int) -> list[str]:
    rows = [
        (
            str(times.attempt), "standby" if times.warm else "new",
            _seconds((times.stop or 0.0) + times.start), _seconds(times.stop),
            _seconds(times.save), _seconds(times.start), _seconds(times.restore),
            f"{times.before} -> {times.after}" if times.before is not None else "-",
            number(times.promised, "x"), number(times.measured, "x"),
        )
        for times in restarts
    ]  # fmt: skip
    return table(columns(RESTARTS, rows), limit)


def _seconds(seconds: float | None) -> str:
    return f"{seconds:.1f}s" if seconds is not None else "-"


def _bullets(texts: Iterable[str], limit: int) -> list[str]:
    return wrap_all(list(map(safe, texts)), limit, "  - ", "    ")


def goodput_curve(points: Sequence[CurvePoint], limit: int, bar: str = "█") -> list[str]:
    """`2 |██████ 241 (1.62x, batch 256) <- now`: bars as long as `limit` allows."""
    shown_points = thin(points)
    if not shown_points:
        return []
    digits = max(len(str(point.gpus)) for point in shown_points)
    remarks = [
        f"{number(point.goodput)} ({number(point.speedup)}x, batch {point.total_batch})"
        f"{' <- now' if point.current else ''}"
        for point in shown_points
    ]
    room = min(max((limit or 100) - digits - 5 - max(map(len, remarks)), 4), 40)
    top = max(point.goodput for point in shown_points) or 1.0
    return [
        f"  {point.gpus:{digits}} {bar * max(round(room * point.goodput / top), 1):{room}} {remark}"
        for point, remark in zip(shown_points, remarks, strict=True)
    ]


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
    latest = f", last {last:.3g}" if last is not None else ""
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
    # the headline may be the whole reason
    text += _bullets((reason for reason in answer.reasons if reason != answer.headline), limit)
    if answer.remedies:
        text += ["", "what to do:" if answer.state in ENDED else "what would change that:"]
        text += _bullets(answer.remedies, limit)
    reasons = " ".join([answer.headline, *answer.reasons])
    notes = [note for note in answer.notes if note not in reasons]
    if notes:
        text += ["", "notes:", *_bullets(notes, limit)]
    if answer.curve:
        text += [
            "",
            "goodput by number of GPUs, 1x = fewest:",
            *goodput_curve(answer.curve, limit, bar),
        ]
    if answer.changes:
        text += ["", f"the last change of GPUs, {moment(answer.changed_at or '')}:"]
        for change in answer.changes:
            line = " ".join(filter(None, ("job", str(change.job), change.name)))
            line += f": {change.before} -> {change.after} GPUs"
            if change.ratio is not None:
                line += f", goodput x{number(change.ratio)}"
            text += wrap(safe(f"{line}: {change.why}"), limit, "  - ", "    ")
    if answer.round_at:
        text += ["", f"decided at {moment(answer.round_at)}, in the last round"]
    return text
