"""Job states: the only place that knows them. A table, and `advance`. `attempt_end` reads the end
of an attempt.

This file does not know why a round wants anything. It says what follows from a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpq.core.model.events import (
    Cancelled,
    Event,
    Failed,
    Held,
    Launched,
    Released,
    RequeueAsked,
    Started,
    Stopped,
    StopSent,
    Succeeded,
    TimeLimitReached,
)
from gpq.core.model.jobs import JobState

_ENDS: Mapping[type, JobState] = {
    Succeeded: JobState.COMPLETED,
    Failed: JobState.FAILED,
    Cancelled: JobState.CANCELLED,
    TimeLimitReached: JobState.TIMEOUT,
}
_ATTEMPT_OVER: Mapping[type, JobState] = {Stopped: JobState.PENDING, **_ENDS}
_AGAIN: Mapping[type, JobState] = {RequeueAsked: JobState.PENDING}

TRANSITIONS: Mapping[JobState, Mapping[type, JobState]] = MappingProxyType(
    {
        JobState.PENDING: {
            Launched: JobState.STARTING,
            Held: JobState.HELD,
            Cancelled: JobState.CANCELLED,
        },
        JobState.HELD: {Released: JobState.PENDING, Cancelled: JobState.CANCELLED},
        JobState.STARTING: {
            Started: JobState.RUNNING,
            StopSent: JobState.STOPPING,
            **_ATTEMPT_OVER,
        },
        JobState.RUNNING: {StopSent: JobState.STOPPING, **_ATTEMPT_OVER},
        # A second StopSent is a harder one: a cancel overtakes a checkpoint.
        JobState.STOPPING: {StopSent: JobState.STOPPING, **_ATTEMPT_OVER},
        JobState.COMPLETED: _AGAIN,
        JobState.FAILED: _AGAIN,
        JobState.CANCELLED: _AGAIN,
        JobState.TIMEOUT: _AGAIN,
    }
)


class InvalidTransition(Exception):
    """An event that has no cell in the table: a bug in gpq, never a user's mistake. Nothing was
    changed."""


def advance(state: JobState, event: Event) -> JobState:
    """The state after `event`. Raises InvalidTransition, naming state and event, if the table has
    no such cell."""
    try:
        return TRANSITIONS[state][type(event)]
    except KeyError:
        raise InvalidTransition(
            f"{type(event).__name__} cannot happen to a job that is {state}"
        ) from None
