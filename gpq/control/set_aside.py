"""Goes on without what a job has measured, if a pass fails over it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from gpq.core.model.events import Event, Profiled, Pulsed
from gpq.core.model.profile import Profile
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.rounds import Decision
from gpq.core.state.job_events import notice
from gpq.errors import GpqError

Pass = Callable[[Snapshot, Sequence[Event]], Decision]
SHOWN = 5000  # characters of the measurements of one job in the log
ASIDE = (
    "gpq failed over what it has measured and set that aside, which is a bug in gpq: {!r}."
    " `gpq daemon logs` has more"
)

log = logging.getLogger(__name__)


def decided(run: Pass, snapshot: Snapshot, events: Sequence[Event]) -> Decision:
    """The decision of the pass. Raises GpqError, or the pass's own error if no measurements are to
    blame."""
    try:
        return run(snapshot, events)
    except GpqError:
        raise
    except Exception as error:
        run(*_without(snapshot, events, snapshot.jobs))  # otherwise they are not to blame
        names = _culprits(run, snapshot, events, list(snapshot.jobs))
        decision = run(*_without(snapshot, events, names, ASIDE.format(error)))
        profiles = {name: repr(snapshot.jobs[name].profile)[:SHOWN] for name in names}
        reports = [event for event in events if _read(event, names) is not event]
        log.exception("a bug. Set aside: %s %.*s", profiles, SHOWN, reports)
        return decision


def _culprits(
    run: Pass, snapshot: Snapshot, events: Sequence[Event], names: Sequence[JobId]
) -> list[JobId]:
    """Those of `names` over whose measurements the pass fails, if only they have any."""
    try:
        run(*_without(snapshot, events, snapshot.jobs.keys() - names))
    except Exception:
        half = len(names) // 2
        parts = (names[:half], names[half:]) if half else ()
        return [name for part in parts for name in _culprits(run, snapshot, events, part)] or list(
            names
        )
    return []


def _without(
    snapshot: Snapshot, events: Sequence[Event], names: Collection[JobId], line: str = ""
) -> tuple[Snapshot, list[Event]]:
    """Without what these jobs have measured until now. `line`: why, for their users."""
    jobs = dict(snapshot.jobs)
    for name in names:
        old = jobs[name].profile
        profile = Profile(old.declared, habits=old.habits, script=old.script)
        bare = replace(jobs[name], profile=profile, marks=(), gains=(), pulses=())
        jobs[name] = notice(bare, line)
    return replace(snapshot, jobs=jobs), [_read(event, names) for event in events]


def _read(event: Event, names: Collection[JobId]) -> Event:
    """Of reports of these jobs, only that they were read, so that nobody reads them again."""
    if isinstance(event, Profiled | Pulsed) and event.job in names:
        offset = event.offset if isinstance(event, Profiled) else 0
        return Profiled(event.at, event.job, event.attempt, offset)
    return event
