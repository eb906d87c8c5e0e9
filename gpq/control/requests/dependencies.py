"""Dependencies: the words of `--after` -> what a job waits for, or a refusal. Reads snapshot and
history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpq.control.selectors import resolve
from gpq.core.feasibility.gates import met, unmet_line
from gpq.core.model.jobs import Dependency, Job, On
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.errors import Refused, UsageError
from gpq.ports import History

MOST = 1000
EXAMPLE = "e.g. --after 12, --after 12:any,13:notok; ok is the default"
Past = Callable[[Sequence[JobId]], Iterable[Job]]


class StillEnding(Exception):
    """A job has left the snapshot and is not in the history yet: a moment later it is."""


def dependencies(words: Sequence[str], snapshot: Snapshot, past: History) -> tuple[Dependency, ...]:
    """By id, each once. Raises UsageError and NotFound."""
    found: dict[Dependency, None] = {}
    for word in (part.strip() for text in words for part in text.split(",")):
        selector, given, how = word.partition(":")
        if not selector or (given and how not in set(On)):
            raise UsageError(f"--after {word}: no such condition", f"ok, notok or any: {EXAMPLE}")
        if selector == "all":
            raise UsageError("--after all: which ones?", "name them, or the array that they are of")
        found.update(
            dict.fromkeys(
                Dependency(name, On(how or On.OK)) for name in resolve([selector], snapshot, past)
            )
        )
    if len(found) > MOST:
        raise UsageError(
            f"--after names {len(found)} jobs, and can name {MOST}",
            "submit one job after those, and wait for it",
        )
    names = [one.job for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"--after names job {twice} twice, with different conditions", "`any` is both"
        )
    return tuple(sorted(found, key=lambda one: one.job))


def awaited(asked: Sequence[Dependency], snapshot: Snapshot, past: Past) -> tuple[Dependency, ...]:
    """Those that have not ended. Raises Refused for one that ended otherwise than it was to,
    StillEnding."""
    absent = [one for one in asked if one.job not in snapshot.jobs]
    ended = {job.id: job.state for job in past([one.job for one in absent])} if absent else {}
    for one in absent:
        if one.job not in ended:
            raise StillEnding
        if not met(one, ended[one.job]):
            raise Refused(f"--after {one}: {unmet_line(one, ended[one.job])}", "nothing was queued")
    return tuple(one for one in asked if one.job in snapshot.jobs)


def refuse_circle(job: Job, awaits: Sequence[Dependency], snapshot: Snapshot) -> None:
    """Raises Refused when `job` would wait for itself."""
    todo, seen = [one.job for one in awaits], set[JobId]()
    while todo:
        name = todo.pop()
        if name == job.id:
            raise Refused(
                f"job {job.id} would wait for itself", "`gpq show` says what waits for what"
            )
        other = snapshot.jobs.get(name)
        if other is not None and name not in seen:
            todo += [one.job for one in other.awaits]
        seen.add(name)
