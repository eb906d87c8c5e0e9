"""Goes on without what a pass fails over: what a job has measured, or a piece of news."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Literal

from gpq.core.model.events import Event, Profiled
from gpq.core.model.jobs import Job, with_notices
from gpq.core.model.profile import Profile
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.rounds import Decision
from gpq.errors import GpqError

Pass = Callable[[Snapshot, Sequence[Event]], Decision]
Suspect = tuple[Literal["job", "news"], int]  # the measurements of a job, or news by its place
SHOWN = 5000  # characters of each culprit in the log
ASIDE = (
    "gpq failed over what it has measured or heard, and set that aside, which is a bug in gpq:"
    " {!r:.200}. `gpq daemon logs` has more"
)

log = logging.getLogger(__name__)


def decision_of(
    run: Pass, snapshot: Snapshot, news: Sequence[Event], asked: Sequence[Event]
) -> Decision:
    """The decision of the pass on news and on what was asked for. Raises GpqError, or the pass's
    own error if neither measurements nor news are to blame."""
    try:
        return run(snapshot, [*news, *asked])
    except GpqError:
        raise
    except Exception as error:

        def without(suspects: Collection[Suspect], line: str = "") -> Decision:
            rest, events = _without(snapshot, news, suspects, line)
            return run(rest, [*events, *asked])

        suspects: list[Suspect] = [("job", name) for name in snapshot.jobs]
        suspects += [("news", place) for place in range(len(news))]
        without(suspects)  # otherwise they are not to blame
        culprits = set(suspects)
        _restore(suspects, culprits, without)
        log.exception("a bug. gpq sets this aside:")
        for kind, number in sorted(culprits):
            content = snapshot.jobs[JobId(number)].profile if kind == "job" else news[number]
            log.error("%.*s", SHOWN, content)
        return without(culprits, ASIDE.format(error))


def _restore(
    group: Sequence[Suspect],
    culprits: set[Suspect],
    without: Callable[[Collection[Suspect]], Decision],
) -> None:
    """Take those of `group` off the culprits with which the pass succeeds."""
    try:
        without(culprits.difference(group))
    except Exception:
        half = len(group) // 2
        for part in (group[:half], group[half:]) if half else ():
            _restore(part, culprits, without)
    else:
        culprits.difference_update(group)


def _without(
    snapshot: Snapshot, news: Sequence[Event], suspects: Collection[Suspect], line: str
) -> tuple[Snapshot, list[Event]]:
    """`line`: why, for the users of these jobs."""
    jobs = dict(snapshot.jobs)
    for kind, number in suspects:
        name = getattr(news[number], "job", None) if kind == "news" else JobId(number)
        if name in jobs:
            jobs[name] = with_notices(_bare(jobs[name]) if kind == "job" else jobs[name], line)
    events = [
        replaced
        for place, event in enumerate(news)
        for replaced in ([event] if ("news", place) not in suspects else _remains(event))
    ]
    return replace(snapshot, jobs=jobs), events


def _bare(job: Job) -> Job:
    """Without what it has measured until now."""
    old = job.profile
    profile = Profile(old.declared, habits=old.habits, script=old.script)
    return replace(job, profile=profile, marks=(), gains=(), pulses=())


def _remains(event: Event) -> list[Event]:
    """Of a report, that it was read, so that nobody reads it again."""
    if isinstance(event, Profiled):
        return [Profiled(event.at, event.job, event.attempt, event.offset)]
    return []
