"""The facts about one job as names and texts: the request, and the progress. Facts without content
are left out."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TypeVar

from gpq.rpc.job_answers import JobDetail, JobView
from gpq.rpc.requests import ProofMessage, SpecMessage
from gpq.views.plain import duration, moment, number, safe
from gpq.views.queue import percent

Value = TypeVar("Value")


def if_any(show: Callable[[Value], str], value: Value | None) -> str:
    """`show(value)`, or "" if the value is None, zero or empty."""
    return show(value) if value else ""


def if_known(show: Callable[[Value], str], value: Value | None) -> str:
    """`show(value)`, or "" if the value is None."""
    return show(value) if value is not None else ""


def demands(spec: SpecMessage, job: JobView) -> dict[str, str]:
    """The request, without defaults."""
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
    return _safe(
        {
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
    )


def progress(answer: JobDetail) -> dict[str, str]:
    """The progress of the job."""
    job = answer.job
    progress = if_known(percent, job.progress)
    if progress and job.eta_seconds is not None:
        progress += f", {duration(job.eta_seconds)} left"
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
    return _safe(
        {
            "submitted": moment(job.submitted_at),
            "started": moment(job.started_at or ""),
            "ended": moment(job.ended_at or ""),
            "run time": duration(job.run_seconds) if job.started_at else "",
            "GPU time": if_any(duration, answer.gpu_seconds),
            "progress": progress,
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
            "metrics": _metrics(answer),
            "checkpoints": if_any(str, answer.checkpoints),
            "restarts": restarts,
        }
    )


def _safe(pairs: dict[str, str]) -> dict[str, str]:
    return {key: safe(value) for key, value in pairs.items() if value}


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
    safe_freedoms, unsafe_freedoms = ", ".join(proof.same), ", ".join(proof.lost)
    words = []
    if safe_freedoms:
        words.append(f"safe: {safe_freedoms}")
    if unsafe_freedoms:
        words.append(f"not safe: {unsafe_freedoms} ({proof.message})")
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
    names = sorted(name for name in answer.metrics if not name.startswith("gpq_"))
    values = [(name, answer.metrics[name]) for name in names]
    return " ".join(
        [*divergences, *(f"{name}={value:.6g}" for name, value in values if value is not None)]
    )


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
