"""Dependencies: the words of `--after` -> what a job waits for, or a refusal. Reads snapshot and
history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpq.control.selectors import resolve
from gpq.core.feasibility.gates import is_met, unmet_line
from gpq.core.model.jobs import Dependency, Job, On
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.errors import Refused, UsageError
from gpq.ports import History

MOST = 1000
UNTIE = "first change what it waits for: `gpq edit JOB --after none`"  # for a job that comes back
EXAMPLE = "e.g. --after 12 or --after 12:any,13:notok (ok is the default)"
Past = Callable[[Sequence[JobId]], Iterable[Job]]
Removed = Callable[[Sequence[JobId]], Sequence[JobId]]


class StillEnding(Exception):
    """A job has left the snapshot but is not in the history yet. It will be a moment later."""


def dependencies(words: Sequence[str], snapshot: Snapshot, past: History) -> tuple[Dependency, ...]:
    """Sorted by id, each one once. Raises UsageError and NotFound."""
    conditions: dict[JobId, On] = {}
    for word in (part.strip() for text in words for part in text.split(",")):
        # `12`, `13:notok` or `3-7:any`
        selector, separator, outcome = word.partition(":")
        if not selector or (separator and outcome not in set(On)):
            raise UsageError(
                f"--after {word}: no such condition", f"use ok, notok or any, {EXAMPLE}"
            )
        if selector == "all":
            raise UsageError("--after cannot be `all`", "name the jobs, or their array")
        on = On(outcome or On.OK)
        for name in resolve([selector], snapshot, past):
            if conditions.setdefault(name, on) is not on:
                raise UsageError(
                    f"--after names job {name} twice, with different conditions",
                    "use `any` to allow both",
                )
    if len(conditions) > MOST:
        raise UsageError(
            f"--after names {len(conditions)} jobs, but can name only {MOST}",
            "submit one job that waits for those, and wait for that one",
        )
    return tuple(Dependency(name, on) for name, on in sorted(conditions.items()))


def open_dependencies(
    conditions: Sequence[Dependency],
    snapshot: Snapshot,
    past: Past,
    removed: Removed,
    hint: str = "leave it out of --after",
) -> tuple[Dependency, ...]:
    """The dependencies that have not ended yet. Raises StillEnding, and Refused if one ended
    otherwise than required or was removed since. `hint`: what to do then."""
    absent_ids = [one.job for one in conditions if one.job not in snapshot.jobs]
    states = {job.id: job.state for job in past(absent_ids)} if absent_ids else {}
    live_dependencies = []
    for dependency in conditions:
        if dependency.job in snapshot.jobs:
            live_dependencies.append(dependency)
            continue
        state = states.get(dependency.job)
        if state is None and removed([dependency.job]):
            line = f"--after {dependency}: job {dependency.job} ended long ago and was removed"
            raise Refused(line, hint)
        if state is None:
            raise StillEnding
        if not is_met(dependency, state):
            raise Refused(
                f"--after {dependency}: {unmet_line(dependency, state)}", "nothing was queued"
            )
    return tuple(live_dependencies)


def refuse_circle(job: Job, awaits: Sequence[Dependency], snapshot: Snapshot) -> None:
    """Raises Refused if `job` would wait for itself."""
    queue, visited_ids = [dependency.job for dependency in awaits], set[JobId]()
    while queue:
        name = queue.pop()
        if name == job.id:
            raise Refused(
                f"job {job.id} would wait for itself", "`gpq show` shows which jobs wait for which"
            )
        predecessor = snapshot.jobs.get(name)
        if predecessor is not None and name not in visited_ids:
            queue += [dependency.job for dependency in predecessor.awaits]
        visited_ids.add(name)
