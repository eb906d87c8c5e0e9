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
    if value:
        return show(value)
    return ""


def if_known(show: Callable[[Value], str], value: Value | None) -> str:
    """`show(value)`, or "" if the value is None."""
    if value is None:
        return ""
    return show(value)


def demands(spec: SpecMessage, job: JobView) -> dict[str, str]:
    """The request, without defaults."""
    return _safe(
        {
            "command": shlex.join(spec.argv),
            "directory": spec.cwd,
            "code": _code(spec),
            "stdin": if_any("a copy, sha256 {:.12}".format, spec.stdin),
            "kind": _kind(spec, job),
            "GPUs": _gpus(spec),
            "GPU type": spec.gpu_type,
            "GPU memory": if_any("at least {} MiB".format, spec.min_gpu_memory_mib),
            "python": _interpreter(spec),
            "setup": spec.setup,
            "array": _seat(job),
            "after": _predecessors(spec, job),
            "begins": moment(job.begin_at or ""),
            "background": "uses only GPUs that nobody else wants" if spec.background else "",
            "launcher": spec.launcher,
            "done file": spec.done_file,
            "priority": if_any(str, spec.priority),
            "time limit": if_any(duration, spec.time_limit),
            "retries": if_any(str, spec.retries),
            "lease": if_any(_lease, spec.requeue_on_lost),
            "batch size": _batch_size(spec),
            "micro-batch": _atomic_batch(spec),
            "niceness": if_any(str, spec.attributes and spec.attributes.nice),
            "accepted": ", ".join(spec.accept),
            "gpq check": if_known(_proof, spec.proof),
            "tags": ", ".join(spec.tags),
            "notifies": _notifications(spec),
        }
    )


def progress(answer: JobDetail) -> dict[str, str]:
    """The progress of the job."""
    job = answer.job
    return _safe(
        {
            "submitted": moment(job.submitted_at),
            "started": moment(job.started_at or ""),
            "ended": moment(job.ended_at or ""),
            "run time": duration(job.run_seconds) if job.started_at else "",
            "GPU time": if_any(duration, answer.gpu_seconds),
            "progress": _progress(job),
            "batch size": _total_batch(job),
            "goodput": if_known(_rate, job.goodput),
            "throughput": if_known(_rate, job.throughput),
            "efficiency": if_known(percent, job.efficiency),
            "speedup": _speedup(answer),
            "fairness": if_known(_fairness, job.rho),
            "noise scale": if_known(_examples, answer.noise_scale),
            "profile": if_any(_profile, answer.rows),
            "model": " ".join(f"{key}={value:.4g}" for key, value in sorted(answer.model.items())),
            "learning rate": answer.learning_rate_rule,
            "metrics": _metrics(answer),
            "checkpoints": if_any(str, answer.checkpoints),
            "restarts": _restarts(answer),
        }
    )


def _safe(pairs: dict[str, str]) -> dict[str, str]:
    return {key: safe(value) for key, value in pairs.items() if value}


def _code(spec: SpecMessage) -> str:
    if spec.code:
        return f"{spec.code_from}, in {spec.code_cwd}"
    return ""


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


def _seat(job: JobView) -> str:
    if job.array is None:
        return ""
    seat = f"{job.array}, index {job.index}"
    params = " ".join(f"{key}={value}" for key, value in job.params.items())
    if params:
        return f"{seat}: {params}"
    return seat


def _predecessors(spec: SpecMessage, job: JobView) -> str:
    text = ", ".join(spec.after)
    if job.after:
        text += f", still waiting for {', '.join(job.after)}"
    return text


def _lease(seconds: float) -> str:
    return f"restart elsewhere if the server is unreachable for {duration(seconds)}"


def _batch_size(spec: SpecMessage) -> str:
    if not spec.batch_size and not spec.max_batch_size:
        return ""
    return f"{spec.batch_size or 'declared'}, at most {spec.max_batch_size or 'declared'}"


def _atomic_batch(spec: SpecMessage) -> str:
    if not spec.max_atomic_batch:
        return ""
    return f"{spec.min_atomic_batch} to {spec.max_atomic_batch}"


def _proof(proof: ProofMessage) -> str:
    """`safe: accumulate, split, resize (on 2026-11-27)`."""
    safe_freedoms, unsafe_freedoms = ", ".join(proof.same), ", ".join(proof.lost)
    words = []
    if safe_freedoms:
        words.append(f"safe: {safe_freedoms}")
    if unsafe_freedoms:
        words.append(f"not safe: {unsafe_freedoms} ({proof.message})")
    return f"{' / '.join(words)} (on {proof.at[:10]})"


def _notifications(spec: SpecMessage) -> str:
    if not spec.notify:
        return ""
    return f"{', '.join(spec.notify)} on {', '.join(spec.notify_on or [])}"


def _rate(value: float) -> str:
    return f"{_examples(value)}/s"


def _examples(value: float) -> str:
    return f"{number(value)} examples"


def _fairness(rho: float) -> str:
    return f"rho {number(rho)} (1 is as fast as on a fair share, lower is better)"


def _profile(rows: int) -> str:
    return f"{count(rows, 'configuration', 'configurations')} measured"


def _total_batch(job: JobView) -> str:
    if not job.total_batch:
        return ""
    gpus = count(job.gpus or 1, "GPU", "GPUs")
    parts = count(job.accum_steps + 1, "micro-batch", "micro-batches")
    return f"{job.total_batch} = {job.atomic_batch} x {gpus} x {parts}"


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
    if share is None:
        return f"{number(answer.job.speedup)}x the goodput on a fair share"
    if share < fewest:
        return (
            f"{number(answer.job.speedup)}x the goodput on its minimum of"
            f" {count(fewest, 'GPU', 'GPUs')} (the fair share is {number(share)} now)"
        )
    return f"{number(answer.job.speedup)}x the goodput on a fair share ({number(share)} GPUs now)"


def _progress(job: JobView) -> str:
    if job.progress is None:
        return ""
    if job.eta_seconds is None:
        return percent(job.progress)
    return f"{percent(job.progress)}, {duration(job.eta_seconds)} left"


def _restarts(answer: JobDetail) -> str:
    job = answer.job
    if not job.restarts and not job.batch_changes:
        return ""
    changes = count(job.batch_changes, "batch change", "batch changes")
    cost = if_known(_cost, answer.restart_seconds) if job.restarts else ""
    return (
        f"{job.restarts} ({job.resizes} on another number of GPUs{cost}), {changes} without a"
        " restart"
    )


def _cost(seconds: float) -> str:
    return f", {duration(seconds)} each"


def count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"
