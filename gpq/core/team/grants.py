"""What the arbiter answers a member's daemon: which devices each of its jobs may have, and what the
daemon checks before it believes that.

An answer follows from one statement. It says nothing about jobs that the statement did not name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpq.config_rules import USER_NAME
from gpq.core.feasibility.device_status import gpus
from gpq.core.feasibility.shapes import gpu_range
from gpq.core.model.jobs import ANY_NUMBER, Level
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.core.team.claims import Claim, DeviceView, Parts, Statement, job_of

VALID: Seconds = 20.0  # a job that does not start within this time needs another grant
MOST_HOLDINGS = 1000


@dataclass(frozen=True, slots=True)
class Grant:
    """`parts` name servers as the member does."""

    job: JobId
    parts: Parts


class Holding(NamedTuple):
    """What a member has, as all members may see it."""

    member: str
    gpus: int
    floor: int
    waiting: int  # jobs


@dataclass(frozen=True, slots=True)
class Grants:
    """The answer to the statement `seq`. A job that holds devices and is not named gives them
    back."""

    epoch: int  # of the arbiter. It grows with each start
    round: int
    seq: int
    grants: tuple[Grant, ...] = ()
    floor: int = 0  # GPUs that the member can count on
    why: tuple[
        tuple[JobId, tuple[str, ...]], ...
    ] = ()  # lines on jobs that wait, the headline first
    gpus: int = 0  # of the team
    # the receiver's, then those of others who have GPUs or wait. Empty in a team of one
    holdings: tuple[Holding, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """An answer that was checked: what it grants to which job, and the claims that it follows
    from."""

    at: Seconds
    grants: dict[JobId, Parts] = field(default_factory=dict)
    claims: dict[JobId, Claim] = field(default_factory=dict)
    floor: int = 0
    why: dict[JobId, tuple[str, ...]] = field(default_factory=dict)


def basis(claims: Iterable[Claim]) -> set[tuple[JobId, int, Parts]]:
    """What grants follow from. If it changes, the same grants ask for something else."""
    return {(claim.job, claim.attempt, claim.parts) for claim in claims}


def flaw(answer: Grants, statement: Statement) -> str:
    """The first thing that an honest arbiter would not say to `statement`, or ""."""
    claims = {claim.job: claim for claim in statement.claims}
    devices = {
        server.name: {device.id: device for device in server.devices}
        for server in statement.servers
    }
    numbers = [answer.floor, answer.gpus]
    numbers += [number for holding in answer.holdings for number in holding[1:]]
    if not all(0 <= number <= ANY_NUMBER for number in numbers):
        return "a number of GPUs or jobs that no team has"
    names = [holding.member for holding in answer.holdings]
    if len(names) > MOST_HOLDINGS or not all(map(USER_NAME.fullmatch, names)):
        return "too many members, or one with a name that no member has"
    places: set[tuple[NodeId, DeviceId]] = set()
    for grant in answer.grants:
        claim = claims.pop(grant.job, None)
        if claim is None:
            return f"job {grant.job}, which was not told or is named twice"
        for problem in _flaws(grant.parts, claim, devices):
            return f"{problem} for job {grant.job}"
        own = {(server, device) for server, ids in grant.parts for device in ids}
        if places & own:
            return f"a device of another job for job {grant.job}"
        places |= own
    return ""


def _flaws(
    parts: Parts, claim: Claim, devices: dict[NodeId, dict[DeviceId, DeviceView]]
) -> Iterator[str]:
    names = [server for server, _ in parts]
    if not parts or len(set(names)) < len(names) or not all(ids for _, ids in parts):
        yield "no device, or a server twice or without devices"
    if not all(server in devices for server in names):
        yield "a server that was not told"
        return
    places = [(server, device) for server, ids in parts for device in ids]
    views = [devices[server][device] for server, device in places if device in devices[server]]
    if len(views) < len(places) or len(set(places)) < len(places):
        yield "a device that was not told or is named twice"
    if parts == claim.parts:  # it may keep whatever it holds
        return
    if claim.servers and not set(names) <= set(claim.servers):
        yield "a server where it cannot run"
    if len(parts) > 1 and claim.level is not Level.SCRIPT:
        yield f"{len(parts)} servers, but it needs all of its GPUs on one"
    fewest, most = gpu_range(job_of(claim, claim.job, "", "", None, 0.0), ANY_NUMBER)
    if not fewest <= len(views) <= most:
        yield f"{gpus(len(views))}, but it asked for {fewest} to {most}"
    if len({view.type for view in views}) > 1:
        yield "GPUs of several types"
    if any(claim.gpu_type.casefold() not in view.type.casefold() for view in views):
        yield "GPUs of another type than it asked for"
    if any(view.memory_mib < claim.min_gpu_memory_mib for view in views):
        yield "GPUs with less memory than it asked for"
