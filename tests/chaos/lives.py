"""What the jobs of a stress run note themselves, and what it proves: when and where each attempt lived, and its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

# `job.py USER SECONDS CODE` notes who it is, the boot clock while it lives, and its code before it ends. All servers of
# a laboratory share that clock. TERM does not end it, so only KILL cuts its notes short.
JOB = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
user, seconds, code = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
clock = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
job, attempt = os.environ["GPQ_JOB_ID"], os.environ["GPQ_ATTEMPT"]
with open(f"stress/{user}-{job}-{attempt}", "a", buffering=1) as notes:
    end = clock() + seconds
    notes.write(json.dumps({"devices": os.environ["GPQ_DEVICES"]}) + "\\n")
    while clock() < end:
        notes.write(json.dumps({"at": clock()}) + "\\n")
        time.sleep(0.03)
    notes.write(json.dumps({"at": clock(), "code": code}) + "\\n")
    notes.flush()
    os.fsync(notes.fileno())
sys.exit(code)
"""


@dataclass
class Order:
    """What a user asked for, and was told that it is done."""

    code: int
    lease: bool
    starts: int = 1  # that it may have without a lease
    cancelled: bool = False  # or that was tried


@dataclass(frozen=True)
class Life:
    """One start of an attempt, by its own notes. `code`: with which it ended, None if it was cut short."""

    server: str
    devices: tuple[str, ...]
    first: float
    last: float
    code: int | None


Attempts = Mapping[int, Sequence[Life]]  # by number, and more than one life of one is wrong
Lives = Mapping[tuple[str, int], Attempts]  # by user and job


def lives_of(folders: Mapping[str, Path]) -> Lives:
    """`folders`: with the notes, by server."""
    lives: dict[tuple[str, int], dict[int, list[Life]]] = {}
    for server, folder in folders.items():
        for path in sorted(folder.iterdir()):
            user, job, attempt = path.name.split("-")
            attempts = lives.setdefault((user, int(job)), {})
            attempts.setdefault(int(attempt), []).extend(_lives(server, [*_notes(path.read_text())]))
    return lives


def _notes(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with suppress(ValueError):  # a kill may tear the last line
            yield json.loads(line)


def _lives(server: str, notes: Sequence[Mapping[str, Any]]) -> Iterator[Life]:
    starts = [number for number, note in enumerate(notes) if "devices" in note]
    for start, end in pairwise([*starts, len(notes)]):
        times = [note["at"] for note in notes[start + 1 : end]]
        devices = tuple(notes[start]["devices"].split(","))
        yield Life(server, devices, min(times, default=0.0), max(times, default=0.0), notes[end - 1].get("code"))


def copies(attempts: Attempts) -> int:
    """How often the job started."""
    return sum(map(len, attempts.values()))


def agrees(state: str, status: int | None, reason: str, order: Order, attempts: Attempts) -> bool:
    """Does the end that gpq shows agree with the notes of the last attempt?"""
    code = attempts[max(attempts)][-1].code if attempts else None
    if state == "completed":
        return code == 0
    if state == "cancelled":
        return order.cancelled
    if code is not None and status == code:
        return code != 0
    return bool(reason) and status != order.code  # a power cut, or a kill of its supervisor: gpq says so


def overlaps(lives: Lives) -> list[str]:
    """Two attempts of a job, or two jobs on a slot, that lived at the same time."""
    spans: dict[str, list[tuple[float, float, str]]] = {}
    for (user, job), attempts in lives.items():
        for attempt, of_attempt in attempts.items():
            for life in of_attempt:
                span = (life.first, life.last, f"{user} {job}.{attempt} on {life.server}")
                for place in (f"{user} {job}", *(f"{life.server} {device}" for device in life.devices)):
                    spans.setdefault(place, []).append(span)
    return [
        f"{place}: {early} and {late}"
        for place, group in spans.items()
        for early, late in pairwise(sorted(group))
        if late[0] < early[1]
    ]
