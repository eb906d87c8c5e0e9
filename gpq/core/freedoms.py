"""What gpq may do to a job: accumulate, split, resize, retune. Habits of its loop take some of
these freedoms away. What remains limits the shapes and batches that a policy may offer.

A habit is what the training library saw or `gpq check` proved. Nothing here detects one. No policy
knows of habits: a job that may not be resized asks for the GPUs that it has, and a job that may not
accumulate asks for as many as hold its base batch at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from gpq.core.model.jobs import DesiredState, Job, JobState
from gpq.core.model.profile import (
    ACCUMULATE,
    FREEDOMS,
    RESIZE,
    RETUNE,
    SPLIT,
    Declared,
    Habit,
    Profile,
    Progress,
)
from gpq.core.model.snapshot import Snapshot

MAX_HABITS = 32  # of a job
PROVEN = "proven"  # the code of what gpq check found of one job. The next job may be fixed
# After this many optimizer steps, a habit that only an earlier job of the program had counts as
# fixed. The library reports what it sees in the first steps. What only a full epoch shows is
# reported when it shows.
MENDED_AFTER = 200
MEANING = {
    ACCUMULATE: "a step in several micro-batches",
    SPLIT: "a step in two, to measure the noise scale",
    RESIZE: "a restart with another number of GPUs",
    RETUNE: "another batch size",
}
RESTRICTIONS = {  # of a batch
    RETUNE: "gpq keeps its base batch size",
    ACCUMULATE: "gpq splits no step into several micro-batches",
    SPLIT: "gpq splits no step to measure its noise scale",
}


def least_at_once(declared: Declared) -> int:
    """GPUs on which a share of the base batch is no larger than the largest micro-batch, on any
    type. 1 if there is no limit."""
    bounds = [most for _, _, most in declared.atomic_by_type] or [declared.max_atomic_batch]
    return max([1, *(-(-declared.batch_size // most) for most in bounds if most > 0)])


def bind(job: Job, snapshot: Snapshot) -> Job:
    """The job with the range of GPUs that its lost freedoms leave. The same object if they leave it
    unchanged. If no number of GPUs suits the job, its range stays. Each GPU then runs its share at
    once, whatever its size."""
    declared = job.profile.declared
    if not job.profile.habits or declared is None or not job.resumable:
        return job
    lost_freedoms, least, most = job.profile.lost, job.spec.min_gpus, job.spec.max_gpus
    target = job.target
    if RESIZE in lost_freedoms:
        least = most = gpus_kept(job)
    elif ACCUMULATE in lost_freedoms:
        # as many as hold its base batch at once, if it may have them
        needed = least_at_once(declared)
        if least < needed <= _most(job, declared, snapshot):
            least = needed
    if target is not None and (
        target.replicas < least or (RESIZE in lost_freedoms and target.replicas > least)
    ):
        target = None
    if (least, most, target) == (job.spec.min_gpus, job.spec.max_gpus, job.target):
        return job
    return replace(job, spec=job.spec.having(min_gpus=least, max_gpus=most), target=target)


def gpus_kept(job: Job) -> int:
    """GPUs of a job that may not be resized: as many as it has or had, within its user's present
    request."""
    spec = job.spec
    if job.placement is not None:
        return job.replicas
    return max(min(job.last_replicas, spec.max_gpus or job.last_replicas), spec.min_gpus)


def _most(job: Job, declared: Declared, snapshot: Snapshot) -> int:
    """The GPUs of one type that it may have, whoever holds them."""
    spec = job.spec
    types = Counter(
        device.type
        for node in snapshot.nodes.values()
        for device in node.devices
        if spec.gpu_type.casefold() in device.type.casefold()
        and device.memory_mib >= spec.min_gpu_memory_mib
    )
    most = max(types.values(), default=0)
    largest = declared.largest_batch
    return min(most, spec.max_gpus or most, max(largest // max(declared.min_atomic_batch, 1), 1))


def is_cramped(job: Job) -> bool:
    """Does it hold fewer GPUs than its base batch needs at once, although it may not accumulate?"""
    declared = job.profile.declared
    return (
        job.placement is not None
        and declared is not None
        and ACCUMULATE in job.profile.lost
        and job.replicas < least_at_once(declared)
    )


def is_asked_for(job: Job) -> bool:
    """Does it have as many GPUs as its user now asks for?"""
    return job.spec.min_gpus <= job.replicas <= (job.spec.max_gpus or job.replicas)


def runs_cramped(job: Job) -> bool:
    """Should gpq move the job to more GPUs when they are free?"""
    running = job.state is JobState.RUNNING and job.wish is DesiredState.RUN
    return running and job.elastic and is_cramped(job) and is_asked_for(job)


def merge_habits(previous: tuple[Habit, ...], reports: Iterable[Habit]) -> tuple[Habit, ...]:
    """`previous` with the reported habits, one for each code. The same object if nothing is new. A
    lost freedom stays lost. Beyond MAX_HABITS only the freedoms of a new habit are kept, with the
    last one."""
    habits_by_code = {habit.code: habit for habit in previous}
    for habit in reports:
        old = habits_by_code.get(habit.code)
        if old is not None:
            habits_by_code[habit.code] = replace(habit, freedoms=_union(old, habit))
        elif len(habits_by_code) < MAX_HABITS:
            habits_by_code[habit.code] = habit
        else:
            last = next(reversed(habits_by_code))
            habits_by_code[last] = replace(
                habits_by_code[last], freedoms=_union(habits_by_code[last], habit), until=0
            )
    habits = tuple(habits_by_code.values())
    return previous if habits == previous else habits


def without_accepted(habits: tuple[Habit, ...], accepted: Collection[str]) -> tuple[Habit, ...]:
    """Without the suspected habits that the user accepted. The same object if all stay."""
    open_habits = tuple(
        habit for habit in habits if not (habit.suspected and habit.code in accepted)
    )
    return open_habits if len(open_habits) < len(habits) else habits


def _union(first: Habit, second: Habit) -> tuple[str, ...]:
    return tuple(
        freedom for freedom in FREEDOMS if freedom in first.freedoms or freedom in second.freedoms
    )


def lend(job: Job, habits: Iterable[Habit]) -> Job:
    """A job that has just declared itself, with the habits of earlier jobs of its program."""
    own = {habit.code for habit in job.profile.habits}
    until = _steps(job.profile.progress) + MENDED_AFTER
    open_habits = without_accepted(tuple(habits), job.spec.accept)
    lent_habits = [replace(habit, until=until) for habit in open_habits if habit.code not in own]
    return replace(
        job, profile=with_habits(job.profile, merge_habits(job.profile.habits, lent_habits))
    )


def without_mended(habits: tuple[Habit, ...], progress: Progress | None) -> tuple[Habit, ...]:
    """Without the habits that an earlier job had and that this job has not shown after as many
    steps. The same object if all stay."""
    steps = _steps(progress)
    lasting_habits = tuple(habit for habit in habits if not 0 < habit.until <= steps)
    return lasting_habits if len(lasting_habits) < len(habits) else habits


def _steps(progress: Progress | None) -> int:
    return progress.step if progress is not None else 0


def with_habits(
    profile: Profile, habits: tuple[Habit, ...], declared: Declared | None = None
) -> Profile:
    """The profile with exactly these habits. `declared` is the script's new declaration, if there
    is one."""
    if habits is profile.habits and declared is None:
        return profile
    script = declared or profile.script or profile.declared
    profile = replace(profile, habits=habits)
    if script is None:
        return profile
    declaration = restrict(script, profile.lost)
    return replace(
        profile, declared=declaration, script=script if declaration is not script else None
    )


def restrict(declared: Declared, lost_freedoms: frozenset[str]) -> Declared:
    """The declaration without these freedoms. The same object if it loses nothing."""
    declaration = declared
    if ACCUMULATE in lost_freedoms and declared.accumulation:
        declaration = replace(declaration, accumulation=False)
    if RETUNE in lost_freedoms and declared.adaptive:
        declaration = replace(declaration, adaptive=False)
    return declaration


def blame(job: Job, freedom: str) -> str:
    """``the loop does so (its-code)``: the habits that take this freedom away. "" if it is not
    lost."""
    return " and ".join(
        f"{habit.message or 'its loop has a habit'}"
        f" ({habit.code}{', suspected' if habit.suspected else ''})"
        for habit in job.profile.habits
        if freedom in habit.freedoms
    )


def cures(job: Job, *freedoms: str) -> list[str]:
    """What would give any of these freedoms back, one line for each habit."""
    lines = []
    for habit in job.profile.habits:
        if habit.cure and not {*freedoms}.isdisjoint(habit.freedoms):
            line = f"fix for {habit.code} (which takes away {', '.join(habit.freedoms)}):"
            line += f" {habit.cure}"
            if habit.suspected:
                line += f". If gpq is wrong: gpq edit {job.id} --accept {habit.code}"
            lines.append(line)
    return lines


def warning(job: Job) -> str:
    """What a stop or another number of GPUs costs a job that lost `resize`. "" for any other
    job."""
    why = blame(job, RESIZE)
    if not why:
        return ""
    return f"it has a checkpoint, but does not resume exactly after a restart: {why}"


def of_size(snapshot: Snapshot, job: Job) -> list[str]:
    """Why it has or needs exactly this number of GPUs."""
    declared, bound_job = job.profile.declared, bind(job, snapshot)
    if declared is None:
        return []
    if job.resumable and (why := blame(job, RESIZE)):
        if job.placement is not None:
            return [
                "gpq neither resizes nor moves it. It would not resume exactly after a restart,"
                f" because {why}"
            ]
        return [
            f"it resumes with {_gpus(bound_job.spec.min_gpus)} or not at all. Another number would"
            f" change its results, because {why}"
        ]
    why, needed = blame(job, ACCUMULATE), _gpus(least_at_once(declared))
    if is_cramped(job) and bound_job is job:
        return [
            "no number of GPUs that it may have can hold its base batch at once. Each GPU runs its"
            f" whole share, because {why}"
        ]
    if is_cramped(job) and is_asked_for(job):
        return [
            f"it moves to {needed} or more when they are free. Until then each GPU runs its whole"
            f" share at once, because gpq may not split its base batch: {why}"
        ]
    if why and bound_job is not job:
        return [
            f"it gets at least {needed}, which hold its base batch at once. gpq may not split the"
            f" batch, because {why}"
        ]
    return []


def of_batch(job: Job) -> list[str]:
    """Why it has this batch and no other."""
    lost_freedoms = job.profile.lost
    return [
        f"{restriction}, because {blame(job, freedom)}"
        for freedom, restriction in RESTRICTIONS.items()
        if freedom in lost_freedoms
    ]


def remedies(job: Job) -> list[str]:
    """A line for each habit that can be fixed, and the remedy for a job that waits for its former
    number of GPUs."""
    lines = cures(job, *sorted(job.profile.lost))
    if RESIZE in job.profile.lost and job.resumable and job.placement is None:
        lines.append(
            f"`gpq edit {job.id} --gpus N` lets it resume with another number anyway, but not"
            " exactly"
        )
    return lines


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
