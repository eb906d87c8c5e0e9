"""Why a job waits, or why it has these GPUs and not more or fewer. Read from the round that decided
it."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.explain.obstacles import JobReasons, node_silence, reason
from gpq.core.explain.pending import why_pending
from gpq.core.explain.running_job import why_running
from gpq.core.feasibility.leases import Silence, silence
from gpq.core.model.jobs import DesiredState, Job, JobState, StopReason
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.planning import stop_of
from gpq.core.rounds.reconcile import stuck_reason


def explain(snapshot: Snapshot, allocation: Mapping[JobId, Shape] | None, job: Job) -> JobReasons:
    """The whole answer about one live job. `allocation` is that of the last round, or None before
    the first one."""
    silent = silence(snapshot, job, snapshot.now)
    if silent is not None:
        return _why_unknown(snapshot, job, silent)
    line = stuck_reason(snapshot, job)
    if line:
        stuck_gpus = reason("stuck-gpus", placement=job.placement, servers=job.nodes)
        return JobReasons(
            reason("stuck", line=line),
            (reason("stuck-process", line=line), stuck_gpus),
            (reason("reboot", servers=job.nodes),),
        )
    if job.wish is DesiredState.CANCEL:
        return JobReasons(reason("cancelling"), (reason("ending-processes"),))
    match job.state:
        case JobState.HELD:
            return _why_held(job)
        case JobState.PENDING:
            return why_pending(snapshot, allocation, job)
        case JobState.STARTING:
            return JobReasons(
                reason("starting"), (reason("starting-processes", placement=job.placement),)
            )
        case JobState.STOPPING:
            order = stop_of(job, job.stop or StopReason.RESIZE, "")
            since = snapshot.now - job.stop_sent_at if job.stop_sent_at is not None else 0.0
            code = "asked-to-end" if order.mode == "kill" else "asked-to-checkpoint"
            order_reason = reason(code, since=max(since, 0.0), stop=job.stop, grace=order.grace)
            return JobReasons(reason("stopping", stop=job.stop), (order_reason,))
        case _:
            return why_running(snapshot, job)


def _why_held(job: Job) -> JobReasons:
    line, headline = "", reason("held-by-user")
    notice = "".join(job.notices[-1:])
    # otherwise the notice is from an earlier hold
    by_gpq = job.unmet or job.quick_failures or job.crashes
    if by_gpq and notice.startswith("held"):
        line, headline = notice, reason("held-by-gpq", line=notice)
    reasons = [headline]
    if job.unmet and job.unmet not in line:
        reasons.append(reason("unmet-dependency", line=job.unmet))
    remedies = [reason("requeue-other", job=name) for name, _ in job.unmet_by[:1]]
    return JobReasons(headline, tuple(reasons), (*remedies, reason("release", job=job.id)))


def _why_unknown(snapshot: Snapshot, job: Job, silent: Silence) -> JobReasons:
    """Nobody can tell whether it runs. That is no reason to end it or to start it twice."""
    headline = reason("server-silent", line=str(silent))
    removed = [name for name in silent.nodes if name not in snapshot.nodes]
    reasons = [
        node_silence(snapshot, snapshot.nodes[name]) for name in silent.nodes if name not in removed
    ]
    reasons += [reason("server-unconfigured", server=name) for name in removed]
    reasons.append(reason("may-run-on"))
    if silent.connecting:  # the server will tell in a moment
        return JobReasons(headline, tuple(reasons))
    if job.wish is DesiredState.CANCEL:
        reasons.append(reason("cancel-waits", servers=silent.nodes))
    elif job.stop is not None:
        reasons.append(reason("stop-waits", servers=silent.nodes, stop=job.stop))
    requeue = reason("no-requeue-on-lost")
    if silent.requeue_in is not None:
        lease = job.spec.requeue_on_lost
        requeue = reason("requeue-on-lost", lease=lease, wait=silent.requeue_in)
    remedy = reason("give-up-silent", servers=silent.nodes, job=job.id)
    if removed:
        remedy = reason("give-up-unconfigured", job=job.id)
    return JobReasons(headline, (*reasons, requeue), (remedy,))
