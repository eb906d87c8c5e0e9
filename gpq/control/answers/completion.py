"""Snapshot and history -> the words of shell completion: of jobs, only those that the command can
do something with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpq.control.answers.reader import Reader, node_word
from gpq.control.requests import job_requests
from gpq.control.selectors import covered, is_selector
from gpq.core.model.jobs import TERMINAL, Job, Wish
from gpq.errors import GpqError
from gpq.ports import History
from gpq.rpc.daemon_answers import Words
from gpq.rpc.requests import Complete

COMPLETED_JOBS = 50  # that ended, among the words
MOST_WORDS = 500  # that complete one word
MOST_IDS = 6  # in one description
# have nothing to do with a job that ended
LIVE = ("cancel", "hold", "release", "edit", "wait", "submit")
ENDED = ("history",)  # nor with one that has not
ONE = ("show", "why", "logs")  # of several jobs with a name they take one
JUDGES = {
    "hold": job_requests.hold,
    "release": job_requests.release,
    "requeue": job_requests.requeue,
}

Pair = tuple[str, str]  # word, description


def words(reader: Reader, past: History, request: Complete) -> Words:
    """What may complete the prefix."""
    found: list[Pair]
    match request.kind:
        case "jobs":
            return _jobs(_Known.of(reader, past, request), request.command, request.prefix)
        case "names":
            found = [(job.name, str(job.state)) for job in _latest(reader, past) if job.name]
        case "nodes":
            found = [
                (str(node.id), node_word(reader.snapshot, node, reader.now))
                for node in reader.snapshot.nodes.values()
            ]
        case "users":
            found = [
                (user, "") for user in sorted({job.spec.user for job in _latest(reader, past)})
            ]
        case _:
            found = []
    # the first of several wins
    first = dict(reversed([pair for pair in found if pair[0].startswith(request.prefix)]))
    return Words(
        [(word, first[word]) for word in some([word for word in dict(found) if word in first])]
    )


def _latest(reader: Reader, past: History) -> list[Job]:
    return [*reader.snapshot.jobs.values(), *past.history(limit=COMPLETED_JOBS)]


class _Known(NamedTuple):
    """Jobs by their state, each newest first; `fit`: the command can do something with them, and
    they are not named yet."""

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
        fit = [job for job in [*live, *ended] if _fits(request.command, job, reader.now)]
        for of in [covered(word, reader.snapshot) for word in request.given]:
            fit = [job for job in fit if not of(job)]
        fit.sort(key=lambda job: job.id, reverse=True)
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


def _jobs(known: _Known, command: str, prefix: str) -> Words:
    """Ids, then names. Of thousands only those that are told are described."""
    ids = {word: job for job in known.fit if (word := str(job.id)).startswith(prefix)}
    having = _by_name([*known.live, *known.ended], prefix)
    live = {job.name for job in known.live}
    names = {}
    for name, fitting in _by_name(known.fit, prefix).items():
        if name in known.named or ((not name[0].isalpha() or name == "all") and is_selector(name)):
            continue
        meant = [job for job in fitting if name not in live or job.state not in TERMINAL]
        if name not in live and command not in ENDED:  # then it is the latest that ended
            meant = [job for job in meant if job is having[name][0]]
        if meant:
            names[name] = meant
    return Words(
        [
            (word, f"{job.name or job.spec.argv[0]} {job.state}")
            if (job := ids.get(word)) is not None
            else (word, _meaning(names[word], having[word], command))
            for word in some([*ids, *names])
        ]
    )


def _by_name(jobs: Iterable[Job], prefix: str) -> Mapping[str, list[Job]]:
    found: dict[str, list[Job]] = {}
    for job in jobs:
        if (name := job.spec.name) and name.startswith(prefix):
            found.setdefault(name, []).append(job)
    return found


def _meaning(meant: Sequence[Job], having: Sequence[Job], command: str) -> str:
    """What a name stands for: all of `meant`, or one of them; the others in `having` are called the
    same."""
    if len(meant) > 1 and command not in ONE:
        return f"{len(meant)} jobs: {_listed(meant)}"
    one = max(meant, key=lambda job: job.id)
    said = f"{one.id} {one.state}"
    return (
        f"{said}; {len(having)} jobs have this name: {_listed(having)}" if len(having) > 1 else said
    )


def _listed(jobs: Sequence[Job]) -> str:
    ids = sorted(int(job.id) for job in jobs)
    if len(ids) <= MOST_IDS:
        return ", ".join(map(str, ids))
    return f"{', '.join(map(str, ids[: MOST_IDS - 1]))} to {ids[-1]}"


def some(words: Sequence[str]) -> Sequence[str]:
    """No more than a shell lists without asking twice. What all begin with is what some begin with:
    the first and the last of the alphabet are among them."""
    if len(words) <= MOST_WORDS:
        return words
    return list(dict.fromkeys([*words[:MOST_WORDS], min(words), max(words)]))
