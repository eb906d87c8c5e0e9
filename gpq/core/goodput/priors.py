"""What earlier jobs of the same program measured. A job's results are stored when it ends, and lent
to the next job until that has measured itself. Habits of its loop are stored as soon as they are
reported.

gpq lends nothing to a script that has not declared itself, because only then is it known to be the
same program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from posixpath import join, normpath

from gpq.core.freedoms import PROVEN, lend, merge_habits
from gpq.core.goodput.noise_curve import merge
from gpq.core.model.jobs import Job, Level
from gpq.core.model.profile import Noise, Prior, ProfileRow
from gpq.core.model.snapshot import Snapshot

MAX_PRIORS = 1000  # programs remembered, the latest to end a job
MAX_ROWS = 64  # rows of one program, the best known
# steps beyond this many count for no more, so that a row follows a machine that changed
KEPT_WEIGHT = 100.0
LENT_WEIGHT = 20.0  # steps that a lent row counts for: soon less than the job's own measurements
NOISE_MEMORY = 3.0  # past jobs together weigh at most this many times the newest one

REMEMBERED = 4096  # joined rows

Rows = tuple[ProfileRow, ...]


def program_of(job: Job) -> str:
    """The key of what this job trains: its user, the script's path, the number of parameters, and
    the base batch size.

    "" while that is not known: always for a command, and for a script until it has declared itself.
    """
    declared = job.profile.declared
    if job.spec.level is not Level.SCRIPT or declared is None or not job.spec.argv:
        return ""
    path = normpath(join(job.spec.cwd, job.spec.argv[0]))
    return f"{job.spec.user}:{path}:{declared.parameters}:{declared.batch_size}"


def absorb(prior: Prior, job: Job) -> Prior:
    """`prior` with the profile of one more job of the program mixed in."""
    before = {row.key: row for row in prior.rows}
    new = {row.key: _mix(before.get(row.key), row) for row in job.profile.rows}
    # Of rows with equal weights, the latest measurements stay.
    best = sorted({**new, **before, **new}.values(), key=lambda row: -row.weight)
    return Prior(
        rows=tuple(sorted(best[:MAX_ROWS], key=lambda row: row.key)),
        noise=_mean_noise(prior.noise, job.profile.early_noise),
        max_replicas=most_replicas(job, prior),
        noise_curve=merge(prior.noise_curve, job.profile.noise_curve),
        habits=prior.habits,  # as they were reported (`shared`)
    )


def remember(priors: Mapping[str, Prior], ended: Iterable[Job]) -> Mapping[str, Prior]:
    """`priors` with what ended jobs measured, at most MAX_PRIORS, the latest at the end. The same
    object if there is nothing new."""
    memory: dict[str, Prior] | None = None
    for job in ended:
        key = program_of(job)
        if not key or not (job.profile.rows or job.profile.early_noise):
            continue
        memory = dict(priors) if memory is None else memory
        memory[key] = absorb(memory.pop(key, Prior()), job)
    return priors if memory is None else _latest(memory)


def _latest(memory: dict[str, Prior]) -> dict[str, Prior]:
    for key in list(memory)[: max(len(memory) - MAX_PRIORS, 0)]:
        del memory[key]
    return memory


def share(priors: Mapping[str, Prior], before: Job, after: Job) -> tuple[Mapping[str, Prior], Job]:
    """`priors` and the job after a report of it, which turned `before` into `after`. Habits that
    its loop showed count for the program at once. Habits that it no longer has are dropped. A job
    that has just declared itself starts with the habits of the program. The same objects if nothing
    changes."""
    first = before.profile.declared is None and after.profile.declared is not None
    if not first and before.profile.habits is after.profile.habits:
        return priors, after
    key = program_of(after)
    if not key:
        return priors, after
    prior = priors.get(key, Prior())
    if first and prior.habits:
        after = lend(after, prior.habits)
    # without the habits that are fixed, and with those that the job itself has shown
    mended_codes = _codes(before) - _codes(after)
    lasting_habits = tuple(habit for habit in prior.habits if habit.code not in mended_codes)
    own_habits = [
        habit for habit in after.profile.habits if not habit.until and habit.code != PROVEN
    ]
    habits = merge_habits(lasting_habits, own_habits)
    if habits == prior.habits:
        return priors, after
    memory = dict(priors)
    memory.pop(key, None)
    return _latest({**memory, key: replace(prior, habits=habits)}), after


def _codes(job: Job) -> set[str]:
    return {habit.code for habit in job.profile.habits}


def inform(job: Job, prior: Prior | None) -> Job:
    """The job as if it had also measured what `prior` holds: rows of configurations that it lacks,
    and the noise scale while it has none. The same object if there is nothing to add or the script
    has not declared itself."""
    profile = job.profile
    if prior is None or profile.declared is None:
        return job
    rows = _join(profile.basis, prior.rows)
    noise = profile.noise_basis or prior.noise
    if rows is profile.basis and noise is profile.noise_basis:
        return job
    return replace(job, profile=replace(profile, model_rows=rows, model_noise=noise))


def with_times(job: Job, snapshot: Snapshot) -> Job:
    """The job with the rows of earlier jobs of its program, for the choice of its batch. The noise
    scale stays its own: lent data must never change how well a model learns."""
    if not snapshot.priors:
        return job
    profile, prior = job.profile, snapshot.priors.get(program_of(job))
    if prior is None:
        return job
    rows = _join(profile.basis, prior.rows)
    return job if rows is profile.basis else replace(job, profile=replace(profile, model_rows=rows))


def most_replicas(job: Job, prior: Prior | None) -> int:
    """The most replicas that this job or an earlier one of the program was measured with. 0 =
    none."""
    return max(job.profile.max_replicas, prior.max_replicas if prior is not None else 0)


def _mix(old: ProfileRow | None, new: ProfileRow) -> ProfileRow:
    """Weighted means. A `grad_time` of 0 was never measured and does not count
    (measurements.merge)."""
    new = replace(new, weight=min(new.weight, KEPT_WEIGHT))
    if old is None:
        return new
    weight = old.weight + new.weight
    grad = new.grad_time or old.grad_time
    if old.grad_time > 0 and new.grad_time > 0:
        grad = (old.weight * old.grad_time + new.weight * new.grad_time) / weight
    step = (old.weight * old.step_time + new.weight * new.step_time) / weight
    return replace(new, grad_time=grad, step_time=step, weight=min(weight, KEPT_WEIGHT))


def _mean_noise(old: Noise | None, new: Noise | None) -> Noise | None:
    """Means of both statistics by examples seen. The noise scale is estimated by the ratio of the
    means, not by the mean of ratios (McCandlish et al. 2018, appendix A)."""
    if old is None or new is None:
        return old or new
    if old.biased != new.biased:
        return old if new.biased else new
    past = min(float(old.samples), NOISE_MEMORY * new.samples)
    total = past + new.samples
    return Noise(
        sqr=(past * old.sqr + new.samples * new.sqr) / total,
        var=(past * old.var + new.samples * new.var) / total,
        samples=round(total),
        biased=new.biased,
    )


_joins: dict[
    tuple[int, int], tuple[Rows, Rows, Rows]
] = {}  # by the ids of the arguments, which are kept next to the answer


def _join(own: Rows, lent: Rows) -> Rows:
    """Own rows, and lent ones of other configurations with at most LENT_WEIGHT. `own` itself if
    there are none."""
    entry = _joins.get((id(own), id(lent)))
    if entry is not None:
        return entry[2]
    measured = {row.key for row in own}
    loans = [
        replace(row, weight=min(row.weight, LENT_WEIGHT)) for row in lent if row.key not in measured
    ]
    rows = tuple(sorted((*own, *loans), key=lambda row: row.key)) if loans else own
    while len(_joins) >= REMEMBERED:
        del _joins[next(iter(_joins))]
    _joins[id(own), id(lent)] = own, lent, rows
    return rows
