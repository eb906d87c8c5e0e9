"""Habits of a training loop: how gpq stores them, what they leave of the script's declaration, and
what gpq says about them.

The library notices a habit. Here habits only count. `freedoms` knows what they mean for the
allocation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from gpq.core.model.jobs import Job
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
    culprits = [habit for habit in job.profile.habits if freedom in habit.freedoms]
    return " and ".join(
        f"{habit.message or 'its loop has a habit'} ({_evidence(habit)})" for habit in culprits
    )


def _evidence(habit: Habit) -> str:
    return f"{habit.code}, suspected" if habit.suspected else habit.code


def cures(job: Job, *freedoms: str) -> list[str]:
    """What would give any of these freedoms back, one line for each habit."""
    return [
        f"fix for {habit.code} (which takes away {', '.join(habit.freedoms)}):"
        f" {habit.cure}{_appeal(job, habit)}"
        for habit in job.profile.habits
        if habit.cure and any(freedom in habit.freedoms for freedom in freedoms)
    ]


def _appeal(job: Job, habit: Habit) -> str:
    if not habit.suspected:
        return ""
    return f". If gpq is wrong: gpq edit {job.id} --accept {habit.code}"


def warning(job: Job) -> str:
    """What a stop or another number of GPUs costs a job that lost `resize`. "" for any other
    job."""
    why = blame(job, RESIZE)
    if not why:
        return ""
    return f"it has a checkpoint, but does not resume exactly after a restart: {why}"
