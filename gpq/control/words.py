"""Snapshot and history -> the words of shell completion: of jobs, only those that the command can do something with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpq.control import requests
from gpq.control.answers import Reader, node_word
from gpq.control.selectors import covered, is_selector
from gpq.core.models import TERMINAL, Job, Wish
from gpq.errors import GpqError
from gpq.ports import History
from gpq.rpc.messages import Complete, Words

COMPLETED_JOBS = 50  # that ended, among the words
MOST_WORDS = 500  # that complete one word
MOST_IDS = 6  # in one description
LIVE = ("cancel", "hold", "release", "edit", "wait", "submit")  # have nothing to do with a job that ended
ENDED = ("history",)  # nor with one that has not
ONE = ("show", "why", "logs")  # of several jobs with a name they take one
JUDGES = {"hold": requests.hold, "release": requests.release, "requeue": requests.requeue}

Pair = tuple[str, str]  # word, description


def words(reader: Reader, past: History, request: Complete) -> Words:
    """What may complete the prefix."""
    live = reader.snapshot.jobs.values()
    found: list[Pair]
    match request.kind:
        case "jobs":
            found = _jobs(_Known.of(reader, past, request), request.command)
        case "names":
            found = [(job.name, str(job.state)) for job in [*live, *past.history(limit=COMPLETED_JOBS)] if job.name]
        case "nodes":
            found = [(str(node.id), node_word(reader.snapshot, node)) for node in reader.snapshot.nodes.values()]
        case "users":
            found = [
                (user, "") for user in sorted({job.spec.user for job in [*live, *past.history(limit=COMPLETED_JOBS)]})
            ]
        case _:
            found = []
    first = dict(reversed([pair for pair in found if pair[0].startswith(request.prefix)]))  # the first of several wins
    return Words([(word, first[word]) for word in some([word for word in dict(found) if word in first])])


class _Known(NamedTuple):
    """Jobs by their state, each newest first; `fit`: the command can do something with them, and they are not named yet."""

    live: Sequence[Job]
    ended: Sequence[Job]
    fit: Sequence[Job]
    named: Collection[str]  # words on the line

    @classmethod
    def of(cls, reader: Reader, past: History, request: Complete) -> _Known:
        jobs = reader.snapshot.jobs
        live = list(jobs.values())
        over = [] if request.command in LIVE else past.history(limit=COMPLETED_JOBS)
        ended = [job for job in over if job.id not in jobs]
        given = [covered(word, reader.snapshot) for word in request.given]
        everything = sorted([*live, *ended], key=lambda job: job.id, reverse=True)
        fit = [
            job for job in everything if not any(of(job) for of in given) and _fits(request.command, job, reader.now)
        ]
        return cls(live, ended, fit, request.given)


def _fits(command: str, job: Job, now: float) -> bool:
    """Would the command do something with this job, alone?"""
    if job.state in TERMINAL:  # `requeue` submits it again
        return command not in LIVE
    if command in ENDED:
        return False
    if command in ("cancel", "edit"):
        return job.wish is not Wish.CANCEL
    if command not in JUDGES:
        return True
    try:
        return not isinstance(JUDGES[command](job, now, ""), str)
    except GpqError:
        return False


def _jobs(known: _Known, command: str) -> list[Pair]:
    """Ids, then names."""
    ids = [(str(job.id), f"{job.name or job.spec.argv[0]} {job.state}") for job in known.fit]
    having = _by_name([*known.live, *known.ended])
    fitting = _by_name(known.fit)
    live = {job.name for job in known.live}
    names = []
    for name in fitting:
        if not name or is_selector(name) or name in known.named:
            continue
        meant = [job for job in fitting[name] if name not in live or job.state not in TERMINAL]
        if name not in live and command not in ENDED:  # then it is the latest that ended
            meant = [job for job in meant if job is having[name][0]]
        if meant:
            names.append((name, _meaning(meant, having[name], command)))
    return [*ids, *names]


def _by_name(jobs: Iterable[Job]) -> Mapping[str, list[Job]]:
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.name, []).append(job)
    return found


def _meaning(meant: Sequence[Job], having: Sequence[Job], command: str) -> str:
    """What a name stands for: all of `meant`, or one of them; the others in `having` are called the same."""
    if len(meant) > 1 and command not in ONE:
        return f"{len(meant)} jobs: {_listed(meant)}"
    one = max(meant, key=lambda job: job.id)
    said = f"{one.id} {one.state}"
    return f"{said}; {len(having)} jobs have this name: {_listed(having)}" if len(having) > 1 else said


def _listed(jobs: Sequence[Job]) -> str:
    ids = sorted(int(job.id) for job in jobs)
    if len(ids) <= MOST_IDS:
        return ", ".join(map(str, ids))
    return f"{', '.join(map(str, ids[: MOST_IDS - 1]))} to {ids[-1]}"


def some(words: Sequence[str]) -> Sequence[str]:
    """No more than a shell lists without asking twice. What all begin with is what some begin with: the first and the last
    of the alphabet are among them."""
    if len(words) <= MOST_WORDS:
        return words
    return list(dict.fromkeys([*words[:MOST_WORDS], min(words), max(words)]))
