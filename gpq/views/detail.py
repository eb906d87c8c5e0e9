"""The text of `gpq show`."""

from __future__ import annotations

import shlex
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
)
from gpq.rpc.requests import ProofMessage, SpecMessage
from gpq.views import goodput_curve, loss_curve
from gpq.views.plain import Column, duration, moment, number, safe, table, wrapped
from gpq.views.queue import percent, remark, where

EVENTS = 12  # of the journal, the latest
KEY = 17  # columns of the names on the left
LOST = "freedoms lost by what its loop does"
NARROW = 40  # columns below which there is no room for them


def lines(answer: JobDetail, limit: int, bar: str = "█") -> list[str]:
    """Everything, in paragraphs."""
    job = answer.job
    text = wrapped(head(job), limit)
    text += _pairs(_asked(answer.spec, job), limit)
    text += paragraph("now", _pairs(_running(answer), limit))
    text += paragraph(LOST, habits(answer.habits, limit, answer.job.id))
    text += paragraph("replicas", replicas(answer, limit))
    text += paragraph(
        "goodput by number of GPUs, 1x = fewest", goodput_curve.lines(answer.curve, limit, bar)
    )
    text += paragraph(
        "loss", loss_curve.lines(answer.losses, limit, bar, answer.metrics.get("loss"))
    )
    text += paragraph(
        "attempts", table(_attempts(answer.attempts), limit) if answer.attempts else []
    )
    events = [
        line
        for event in answer.history[-EVENTS:]
        for line in wrapped(_event(event), limit, "  ", "      ")
    ]
    text += paragraph("latest events", events)
    notices = [
        line for notice in answer.notices for line in wrapped(safe(notice), limit, "  - ", "    ")
    ]
    text += paragraph("notices", notices)
    if job.state == "failed" and job.started_at:
        text += ["", *wrapped(f"why it failed: gpq logs {job.id}", limit)]
    return text


def paragraph(title: str, body: list[str]) -> list[str]:
    return ["", title, *body] if body else []


def head(job: JobView) -> str:
    text = f"job {job.id} {safe(job.name)} of {safe(job.user)}: {safe(job.state)}"
    if job.placement:
        text += f" on {places(job.placement)}"
    row = {"exit_status": job.exit_status, "state": job.state, "reason": job.reason}
    return f"{text}, {remark(row)}" if remark(row) else text


def places(parts: list[PartView]) -> str:
    return where(msgspec.to_builtins(parts))


def _seat(job: JobView) -> str:
    if job.array is None:
        return ""
    params = " ".join(f"{key}={value}" for key, value in job.params.items())
    return f"{job.array}, index {job.index}" + (f": {params}" if params else "")


def _asked(spec: SpecMessage, job: JobView) -> dict[str, str]:
    """What was asked, defaults left out."""
    most = "" if spec.max_gpus else " to whatever pays"
    if spec.max_gpus > spec.min_gpus:
        most = f" to {spec.max_gpus}"
    interpreter = f"{spec.python}{'' if spec.python_asked else ', unless a server has its own'}"
    pairs = {
        "command": shlex.join(spec.argv),
        "directory": spec.cwd,
        "code": f"{spec.code_from}; in {spec.code_cwd}" if spec.code else "",
        "kind": (
            {
                "black-box": "command, never moved",
                "signal": f"checkpoints on {spec.signal}",
            }.get(spec.level, "script" if job.level == "script" else f"script, {job.level}")
        ),
        "GPUs": f"{spec.min_gpus}{most}" + (", rigid" if spec.rigid else ""),
        "GPU type": spec.gpu_type,
        "GPU memory": f"at least {spec.min_gpu_memory_mib} MiB" if spec.min_gpu_memory_mib else "",
        "python": interpreter if spec.level == "script" and spec.python else "",
        "setup": spec.setup,
        "array": _seat(job),
        "after": (
            ", ".join(spec.after)
            + (f"; still waits for {', '.join(job.after)}" if job.after else "")
        ),
        "begins": moment(job.begin_at or ""),
        "background": "takes only what nobody else wants" if spec.background else "",
        "done file": spec.done_file,
        "priority": str(spec.priority) if spec.priority else "",
        "time limit": duration(spec.time_limit) if spec.time_limit else "",
        "retries": str(spec.retries) if spec.retries else "",
        "lease": (
            f"{duration(spec.requeue_on_lost)} of silence, then it is queued again"
            if spec.requeue_on_lost
            else ""
        ),
        "batch size": (
            f"{spec.batch_size or 'declared'}, at most {spec.max_batch_size or 'declared'}"
            if spec.batch_size or spec.max_batch_size
            else ""
        ),
        "atomic batch": (
            f"{spec.min_atomic_batch} to {spec.max_atomic_batch}" if spec.max_atomic_batch else ""
        ),
        "niceness": str(spec.attributes.nice) if spec.attributes and spec.attributes.nice else "",
        "accepted": ", ".join(spec.accept),
        "gpq check": _proof(spec.proof),
        "tags": ", ".join(spec.tags),
        "notifies": (
            f"{', '.join(spec.notify)} of {', '.join(spec.notify_on or [])}" if spec.notify else ""
        ),
    }
    return {key: safe(value) for key, value in pairs.items() if value}


def _proof(proof: ProofMessage | None) -> str:
    """`on 2026-11-27: accumulate, split, resize are safe`."""
    if proof is None:
        return ""
    safe_freedoms, unsafe_freedoms = ", ".join(proof.same), ", ".join(proof.lost)
    words = [
        f"safe: {safe_freedoms}" if safe_freedoms else "",
        f"not safe: {unsafe_freedoms} ({proof.message})" if unsafe_freedoms else "",
    ]
    return f"{'; '.join(filter(None, words))} (on {proof.at[:10]})"


def _metrics(answer: JobDetail) -> str:
    """`loss=nan (for 12 min) accuracy=0.4`; what is no number first."""
    divergences = [
        f"{divergence.metric}={divergence.value} (for {duration(divergence.seconds)})"
        for divergence in answer.job.diverged
    ]
    names = sorted(name for name in answer.metrics if not name.startswith("gpq_"))
    values = [(name, answer.metrics[name]) for name in names]
    return " ".join(
        [*divergences, *(f"{name}={value:.6g}" for name, value in values if value is not None)]
    )


def _running(answer: JobDetail) -> dict[str, str]:
    job = answer.job
    steps = (
        f"{job.atomic_batch} x {job.gpus or 1} GPU x"
        f" {counted(job.accum_steps + 1, 'pass', 'passes')}"
    )
    pairs = {
        "submitted": moment(job.submitted_at),
        "started": moment(job.started_at or ""),
        "ended": moment(job.ended_at or ""),
        "run time": duration(job.run_seconds) if job.started_at else "",
        "GPU time": duration(answer.gpu_seconds) if answer.gpu_seconds else "",
        "progress": _progress(job),
        "total batch": f"{job.total_batch} = {steps}" if job.total_batch else "",
        "goodput": f"{number(job.goodput)} examples/s" if job.goodput is not None else "",
        "throughput": f"{number(job.throughput)} examples/s" if job.throughput is not None else "",
        "efficiency": percent(job.efficiency) if job.efficiency is not None else "",
        "speedup": _speedup(answer),
        "fairness": (
            f"rho {number(job.rho)} (1 = as fast as with a fair share, lower is better)"
            if job.rho is not None
            else ""
        ),
        "noise scale": (
            f"{number(answer.noise_scale)} examples" if answer.noise_scale is not None else ""
        ),
        "profile": (
            f"{counted(answer.rows, 'configuration', 'configurations')} measured"
            if answer.rows
            else ""
        ),
        "model": " ".join(f"{key}={value:.4g}" for key, value in sorted(answer.model.items())),
        "learning rate": answer.learning_rate_rule,
        "metrics": _metrics(answer),
        "checkpoints": str(answer.checkpoints) if answer.checkpoints else "",
        "restarts": _restarts(answer),
    }
    return {key: safe(value) for key, value in pairs.items() if value}


def _speedup(answer: JobDetail) -> str:
    """Not to be mixed up with that of the curve, which is over the fewest GPUs. Of a job without
    GPUs there is none."""
    if answer.job.speedup is None or not answer.job.gpus:
        return ""
    share, fewest = answer.fair_share, answer.spec.min_gpus
    if share is None:
        return f"{number(answer.job.speedup)}x that of a fair share"
    if share < fewest:
        return (
            f"{number(answer.job.speedup)}x that of its fewest GPUs ({fewest}); a fair share is"
            f" {number(share)} now"
        )
    return f"{number(answer.job.speedup)}x that of a fair share ({number(share)} GPUs now)"


def _progress(job: JobView) -> str:
    if job.progress is None:
        return ""
    return percent(job.progress) + (
        f", {duration(job.eta_seconds)} left" if job.eta_seconds is not None else ""
    )


def _restarts(answer: JobDetail) -> str:
    job = answer.job
    if not job.restarts and not job.batch_changes:
        return ""
    changes = counted(job.batch_changes, "batch change", "batch changes")
    cost = (
        f", {duration(answer.restart_seconds)} each" if answer.restart_seconds is not None else ""
    )
    return (
        f"{job.restarts} ({job.resizes} with another number of GPUs{cost}); {changes} without one"
    )


def counted(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _pairs(pairs: dict[str, str], limit: int) -> list[str]:
    if 0 < limit < NARROW:  # the names on lines of their own
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
    """Of each habit: the freedoms, what the loop does, on what evidence, and what would give them
    back."""
    text = []
    for habit in views:
        freedoms = (
            f"{', '.join(habit.freedoms)}: {habit.message or 'a habit of the loop'} ({habit.code})"
        )
        text += wrapped(safe(freedoms), limit, "  - ", "    ")
        if habit.cure:
            text += wrapped(safe(f"cure: {habit.cure}"), limit, "    ", "    ")
        if habit.suspected:
            remark = (
                f"suspected, not observed: `gpq check` tries it, `gpq edit {job} --accept"
                f" {habit.code}` overrules it"
            )
            text += wrapped(safe(remark), limit, "    ", "    ")
        if habit.lent:
            text += wrapped(
                "an earlier job of this program did so; this one has yet to show",
                limit,
                "    ",
                "    ",
            )
    return text


def replicas(answer: JobDetail, limit: int) -> list[str]:
    """A line a rank: where it is, its time before it waits, how much it waits. Nothing where
    nothing was measured."""
    ranks = answer.ranks
    if not any(rank.compute_seconds is not None or rank.step is not None for rank in ranks):
        return []
    columns = [
        Column("  RANK", [str(rank.rank) for rank in ranks], 99, right=True),
        Column("SERVER", [safe(rank.node) for rank in ranks], 90, least=8),
        Column("GPU", [str(rank.index) for rank in ranks], 95, right=True),
        Column("BACKWARD", [_milliseconds(rank.compute_seconds) for rank in ranks], 96, right=True),
        Column("P95", [_milliseconds(rank.compute_p95_seconds) for rank in ranks], 60, right=True),
        Column("WAITS", [percent(rank.wait_share) for rank in ranks], 94, right=True),
        Column("DATA", [percent(rank.fetch_share) for rank in ranks], 70, right=True),
        Column("MARK", [_mark(rank) for rank in ranks], 93, least=9),
    ]
    notes = [
        line
        for rank in ranks
        if rank.note
        for line in wrapped(safe(rank.note), limit, "  - ", "    ")
    ]
    return [*table(columns, limit), *notes]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.4g} ms"


def _mark(rank: RankView) -> str:
    position = f"{safe(rank.phase)} in step {rank.step + 1}" if rank.step is not None else ""
    return ", ".join(part for part in ("straggler" if rank.straggler else "", position) if part)


def _attempts(attempts: list[AttemptView]) -> list[Column]:
    return [
        Column("  #", [str(attempt.attempt) for attempt in attempts], 99, right=True),
        Column("GPUS", [places(attempt.placement) for attempt in attempts], 90, least=8),
        Column("WHY THESE GPUS", [safe(attempt.why) for attempt in attempts], 80, least=24),
        Column("LAUNCHED", [moment(attempt.launched_at) for attempt in attempts], 60),
        Column("ENDED", [moment(attempt.ended_at or "-") for attempt in attempts], 50),
        Column("OUTCOME", [safe(attempt.outcome) or "-" for attempt in attempts], 95),
    ]


def _event(event: EventView) -> str:
    return f"{moment(event.at)} {safe(event.kind)}: {safe(event.text)}"
