"""The measurements of a job manager, and which of them are failures. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Burst:
    """Jobs that waited when the controller was killed. `lost`: acknowledged, but neither run to
    their end nor known after everything had run. `oldest_ack`: seconds from the oldest
    acknowledgement to the kill, the longest of all rounds."""

    rounds: int
    acknowledged: int
    lost: int
    reused_ids: int
    doubled: int
    oldest_ack: float


@dataclass(frozen=True, slots=True)
class Running:
    """Jobs that ran when the controller was killed. `said`: the last words of the job manager."""

    moment: str
    tries: int
    lived_on: int  # to their own end
    code_known: int
    code_wrong: int
    doubled: int
    said: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """A job whose server was cut off. `before`, `after`: words of the job manager before and after
    the link was repaired."""

    variant: str
    cut_seconds: float
    runs: int
    overlap_seconds: float  # two runs at once
    first_lived: float  # seconds from the cut to the last sign of life of the first run
    before: tuple[str, ...]
    after: tuple[str, ...]
    exit_code: int | None
    code_right: bool


@dataclass(frozen=True, slots=True)
class Findings:
    """`partitions`: None if there is no network between controller and jobs."""

    system: str
    settings: tuple[str, ...]
    better: tuple[str, ...]
    burst: Burst
    running: tuple[Running, ...]
    partitions: tuple[Partition, ...] | None


def failures(found: Findings) -> list[str]:
    """The failures, one line each."""
    bad = []
    if found.burst.lost:
        bad.append(f"{found.burst.lost} acknowledged jobs lost")
    if found.burst.reused_ids:
        bad.append(f"{found.burst.reused_ids} job ids handed out again")
    if found.burst.doubled:
        bad.append(f"{found.burst.doubled} queued jobs run more than once")
    for each in found.running:
        if each.lived_on < each.tries:
            bad.append(f"{each.tries - each.lived_on} jobs did not live on ({each.moment})")
        if each.code_known < each.tries:
            bad.append(
                f"{each.tries - each.code_known} exit codes not known or wrong ({each.moment})"
            )
        if each.doubled:
            bad.append(f"{each.doubled} jobs run more than once ({each.moment})")
    for cut in found.partitions or ():
        if cut.overlap_seconds:
            bad.append(f"{cut.overlap_seconds:.1f} s of two runs at once ({cut.variant})")
        if not cut.code_right:
            bad.append(f"exit code {cut.exit_code} after a partition ({cut.variant})")
    return bad
