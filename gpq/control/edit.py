"""`gpq edit`: new settings of a live job -> an event, or a refusal that changed nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gpq.control import dependencies, job_requests, submission
from gpq.control.event_text import stamp
from gpq.control.selectors import MOST_ELEMENTS
from gpq.core.freedoms import blame, cures
from gpq.core.model.events import Edited
from gpq.core.model.jobs import HOLDS_DEVICES, Dependency, Job, JobSpec, Level
from gpq.core.model.profile import RESIZE
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import Seconds
from gpq.errors import Refused, UsageError
from gpq.outward import NO_TARGETS, Notify
from gpq.rpc.requests import Edit, SpecMessage
from gpq.rpc.submit_table import OPTIONS, SECONDS, Editing

OPTION_OF = {field: option for option in OPTIONS for field in option.fields}


def _fields(edit: Editing) -> frozenset[str]:
    return frozenset(field for field, option in OPTION_OF.items() if option.edit == edit)


ALWAYS = _fields("always")
SIZE = _fields("resizable")  # also for a running job that gpq can resize
WAITING = _fields("waiting") - {"after"}  # which names jobs, and is checked separately


def check(request: Edit) -> None:
    """Raises UsageError."""
    unknown = sorted(request.changes.keys() - ALWAYS - SIZE - WAITING - {"after"})
    if unknown:
        raise UsageError(
            f"the `{unknown[0]}` of a job cannot be changed", "cancel it and submit another job"
        )
    if (
        not request.changes
        and not request.tags
        and not request.untags
        and request.array_limit is None
    ):
        raise UsageError("nothing to change", "e.g. gpq edit 42 --priority 5")
    if request.array_limit is not None and not 0 <= request.array_limit <= MOST_ELEMENTS:
        raise UsageError(
            f"invalid --array-limit {request.array_limit}",
            f"expected 0 (no limit) to {MOST_ELEMENTS} jobs at once",
        )


def judge(
    request: Edit,
    new_after: Sequence[Dependency] | None,
    snapshot: Snapshot,
    past: dependencies.Past,
    removed: dependencies.Removed,
    configured: Collection[str],
    notify: Notify = NO_TARGETS,
) -> job_requests.Judge:
    """A judge for `requests.changes`. `new_after` is what the request's `after` names, or None if
    it does not change. `notify` says whom jobs may notify."""

    def edit(job: Job, now: Seconds, by: str) -> job_requests.Verdict:
        has_ended = job.ended_at is not None
        if not has_ended:
            job_requests.refuse_while_ending(job)
        spec, awaits = edit_spec(job, request, new_after, notify), job.awaits
        if new_after is not None:
            awaits = dependencies.open_dependencies(new_after, snapshot, past, removed)
            dependencies.refuse_circle(job, awaits, snapshot)
        changes = differences(job.spec, spec)
        if not changes:
            return f"job {job.id} already has these values"
        refuse_while_running(job, spec)
        if any(
            getattr(spec, name) != getattr(job.spec, name)
            for name in SIZE | {"gpu_type", "min_gpu_memory_mib"}
        ):
            submission.fits(snapshot, spec, configured)
        summary = ", ".join(changes)
        if has_ended:
            summary += f". It has ended: `gpq requeue {job.id}` runs it with that"
        return Edited(now, job.id, spec, awaits, summary, by, job if has_ended else None)

    return edit


def edit_spec(
    job: Job, request: Edit, new_after: Sequence[Dependency] | None, notify: Notify = NO_TARGETS
) -> JobSpec:
    """The checked specification that `job` will have. Raises UsageError."""
    before = job.spec
    changes = {name: value for name, value in request.changes.items() if name != "after"}
    if not before.notify:  # if it now notifies somebody, use the default events
        changes.setdefault("notify_on", None)
    if "notify" not in changes:
        # a target that has left config.toml since then must not block other changes
        notify = notify._replace(targets={**notify.targets, **dict.fromkeys(before.notify, "")})
    fields = msgspec.structs.asdict(submission.message_of(before))
    try:
        message = msgspec.convert({**fields, **changes}, SpecMessage)
    except msgspec.ValidationError as error:
        raise UsageError(f"invalid value: {error}", "see `gpq edit --help`") from None
    tags = [tag for tag in message.tags if tag not in request.untags]
    tags += [tag for tag in dict.fromkeys(request.tags) if tag not in tags]
    message = message.having(tags=tags)
    spec = submission.spec_of(
        message, before.user, before.uid, before.grace, before.requeue_on_lost, notify
    )
    if "notify_on" in request.changes and not spec.notify:
        raise UsageError(f"job {job.id} notifies nobody", "add --notify NAME")
    after = before.after if new_after is None else tuple(new_after)
    seat = before.seat
    if request.array_limit is not None:
        if seat is None:
            raise UsageError(f"job {job.id} is not part of an array", "--array-limit is for arrays")
        seat = replace(seat, limit=request.array_limit)
    return spec.having(environment=before.environment, after=after, seat=seat)


def refuse_while_running(job: Job, spec: JobSpec) -> None:
    """Raises Refused for a change that a job with GPUs cannot make."""
    if job.state not in HOLDS_DEVICES:
        return
    fields = [*sorted(WAITING), "after", *([] if job.elastic else sorted(SIZE))]
    field = next((name for name in fields if getattr(spec, name) != getattr(job.spec, name)), None)
    if field is None:
        return
    is_size = field in SIZE
    if is_size and job.resumable and (cause := blame(job, RESIZE)):
        raise Refused(
            f"job {job.id} is {job.state}, and with another number of GPUs it would not resume"
            f" exactly: {cause}",
            ". ".join(cures(job, RESIZE))
            or f"to resize it anyway, `gpq hold {job.id}`, then edit and release it",
        )
    reason = (
        f"job {job.id} is {job.state}, and {OPTION_OF[field].flag} only takes effect when a job"
        " starts"
    )
    # gpq can resize or hold a script after its first batches under gpq, so the user has to wait
    if job_requests.may_declare(job) and not (job.spec.rigid and is_size):
        then = f"`gpq hold {job.id}`, edit and release it"
        if is_size:
            reason = f"job {job.id} has not declared itself to gpq yet, so gpq cannot resize it"
            then = "edit it again"
        raise Refused(
            reason,
            f"wait for its first steps, then {then}. `gpq why {job.id}` shows whether it has"
            " declared itself. A script that never calls gpq's library cannot change",
        )
    if is_size:
        is_script = job.spec.level is Level.SCRIPT
        what = "was submitted with --rigid" if is_script else "runs a command"
        reason = f"job {job.id} {what}, so it cannot be resized while it is {job.state}"
    hint = f"`gpq cancel {job.id}` and submit it again with this option: it loses its work"
    if job.resumable:
        hint = f"`gpq hold {job.id}`, then edit and release it: it resumes from its checkpoint"
    raise Refused(reason, hint)


def differences(before: JobSpec, now: JobSpec) -> list[str]:
    """`priority 0 -> 5`: one phrase for each difference."""
    phrases = []
    if (before.min_gpus, before.max_gpus) != (now.min_gpus, now.max_gpus):
        phrases.append(f"gpus {_range(before)} -> {_range(now)}")
    if before.tags != now.tags:
        phrases.append(f"tags {_show(','.join(before.tags))} -> {_show(','.join(now.tags))}")
    if before.after != now.after:
        phrases.append(
            f"after {_show(','.join(map(str, before.after)))} ->"
            f" {_show(','.join(map(str, now.after)))}"
        )
    if before.seat is not None and now.seat is not None and before.seat.limit != now.seat.limit:
        phrases.append(f"array limit {before.seat.limit or 'none'} -> {now.seat.limit or 'none'}")
    for name in sorted(ALWAYS | WAITING | {"rigid"}):
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            phrases.append(f"{name.replace('_', ' ')} {_value(name, old)} -> {_value(name, new)}")
    return phrases


def _range(spec: JobSpec) -> str:
    if spec.max_gpus == spec.min_gpus:
        return str(spec.min_gpus)
    return f"{spec.min_gpus}-{spec.max_gpus or ''}"


def _value(name: str, value: Any) -> str:
    if name == "begin":
        return stamp(value) if value else "now"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return _show(",".join(value))
    if OPTION_OF[name].kind in SECONDS:
        return f"{value:.0f} s" if value else "none"
    return _show(str(value))


def _show(text: str) -> str:
    return text or "none"
