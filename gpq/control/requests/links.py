"""Measurements between servers -> an event, or a refusal that changed nothing. Pure."""

from __future__ import annotations

import math

from gpq.control.requests.drain import known
from gpq.core.model.events import Event, LinkMeasured
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import Seconds
from gpq.errors import UsageError
from gpq.rpc.node_answers import Kept
from gpq.rpc.requests import Measured

BACKENDS = ("gloo", "nccl")


def record_link(snapshot: Snapshot, request: Measured, now: Seconds) -> tuple[list[Event], Kept]:
    """The newest measurement of a pair replaces the previous one. Raises NotFound, UsageError."""
    ends = sorted({known(snapshot, name) for name in request.nodes})
    if len(ends) != 2 or len(request.nodes) != 2:
        raise UsageError("a link has two ends", "name two different servers")
    if request.backend not in BACKENDS:
        raise UsageError(
            f"unknown backend `{request.backend}`", f"use one of {', '.join(BACKENDS)}"
        )
    for number, least, most in ((request.latency, 1e-9, 1e3), (request.bandwidth, 1.0, 1e15)):
        if not (math.isfinite(number) and least <= number <= most):
            raise UsageError(
                f"invalid measurement {number:g}",
                "give the latency in seconds and the bandwidth in bytes a second",
            )
    event = LinkMeasured(
        now, (ends[0], ends[1]), request.latency, request.bandwidth, request.backend
    )
    return [event], Kept([str(end) for end in ends])
