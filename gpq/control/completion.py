"""Snapshot and history -> the words of shell completion. Of all jobs it offers only those that the
command can act on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpq.control import job_requests
from gpq.control.reader import Reader, node_word
from gpq.control.selectors import coverage, is_selector
from gpq.core.model.jobs import TERMINAL, DesiredState, Job
from gpq.errors import GpqError
from gpq.ports import History
from gpq.rpc.daemon_answers import Words
from gpq.rpc.requests import Complete

COMPLETED_JOBS = 50  # ended jobs among the words
MOST_WORDS = 500  # words offered for one prefix
MOST_IDS = 6  # in one description
# these commands ignore jobs that have ended
LIVE = ("cancel", "hold", "release", "edit", "wait", "submit")
ENDED = ("history",)  # this one ignores jobs that have not ended
ONE = ("show", "why", "logs")  # these take one job if several have the same name
JUDGES = {
    "hold": job_requests.hold,
    "release": job_requests.release,
    "requeue": job_requests.requeue,
}

Pair = tuple[str, str]  # word, description


def words(reader: Reader, past: History, request: Complete) -> Words:
    """The words that may complete the prefix."""
    if request.kind == "jobs":
        return _jobs(reader, past, request)
    snapshot = reader.snapshot
    pairs: list[Pair] = []
    if request.kind == "nodes":
        nodes = snapshot.nodes.values()
        pairs = [(str(node.id), node_word(snapshot, node, reader.now)) for node in nodes]
    elif request.kind in ("names", "users"):
        jobs = [*snapshot.jobs.values(), *past.history(limit=COMPLETED_JOBS)]
        pairs = [(user, "") for user in sorted({job.spec.user for job in jobs})]
        if request.kind == "names":
            pairs = [(job.name, str(job.state)) for job in jobs if job.name]
    descriptions: dict[str, str] = {}
    for word, description in pairs:
        if word.startswith(request.prefix):
            descriptions.setdefault(word, description)  # the first of several wins
    return Words([(word, descriptions[word]) for word in some(list(descriptions))])


def _fits(command: str, job: Job, now: float) -> bool:
    """Would the command act on this job alone?"""
    if job.state in TERMINAL:  # `requeue` runs it again
        return command not in LIVE
    if command in ENDED:
        return False
    if command in ("cancel", "edit"):
        return job.wish is not DesiredState.CANCEL
    if command not in JUDGES:
        return True
    try:
        return not isinstance(JUDGES[command](job, now, ""), str)
    except GpqError:
        return False


def _jobs(reader: Reader, past: History, request: Complete) -> Words:
    """Ids, then names. Only the words that are returned get a description, because there may be
    thousands."""
    live = reader.snapshot.jobs
    jobs = list(live.values())
    if request.command not in LIVE:
        jobs += [job for job in past.history(limit=COMPLETED_JOBS) if job.id not in live]
    coverings = [coverage(word, reader.snapshot) for word in request.given]
    # those that the command can act on and that the line does not name yet
    fit = [
        job
        for job in jobs
        if _fits(request.command, job, reader.now) and not any(covers(job) for covers in coverings)
    ]
    fit.sort(key=lambda job: job.id, reverse=True)
    jobs_by_id = {word: job for job in fit if (word := str(job.id)).startswith(request.prefix)}
    namesakes = _by_name(jobs, request.prefix)
    targets_by_name = _targets_by_name(fit, namesakes, request)
    pairs: list[Pair] = []
    for word in some([*jobs_by_id, *targets_by_name]):
        job = jobs_by_id.get(word)
        if job is not None:
            pairs.append((word, f"{job.name or job.spec.argv[0]} {job.state}"))
        else:
            meaning = _meaning(targets_by_name[word], namesakes[word], request.command)
            pairs.append((word, meaning))
    return Words(pairs)


def _targets_by_name(
    fit: Sequence[Job], namesakes: Mapping[str, Sequence[Job]], request: Complete
) -> Mapping[str, Sequence[Job]]:
    """For each name, the jobs that the command can act on. Its live jobs come first in
    `namesakes`, then the latest that ended."""
    targets_by_name = {}
    for name, candidates in _by_name(fit, request.prefix).items():
        if name in request.given or is_selector(name):
            continue
        targets, first = candidates, namesakes[name][0]
        if first.state not in TERMINAL:
            targets = [job for job in candidates if job.state not in TERMINAL]
        elif request.command not in ENDED:  # then the name means the latest job that ended
            targets = [job for job in candidates if job is first]
        if targets:
            targets_by_name[name] = targets
    return targets_by_name


def _by_name(jobs: Iterable[Job], prefix: str) -> Mapping[str, list[Job]]:
    jobs_by_name: dict[str, list[Job]] = {}
    for job in jobs:
        if (name := job.spec.name) and name.startswith(prefix):
            jobs_by_name.setdefault(name, []).append(job)
    return jobs_by_name


def _meaning(targets: Sequence[Job], namesakes: Sequence[Job], command: str) -> str:
    """What a name stands for: all of `targets`, or one of them. `namesakes` are all jobs with that
    name."""
    if len(targets) > 1 and command not in ONE:
        return f"{len(targets)} jobs: {_id_list(targets)}"
    newest = max(targets, key=lambda job: job.id)
    description = f"{newest.id} {newest.state}"
    if len(namesakes) == 1:
        return description
    return f"{description}, {len(namesakes)} jobs have this name: {_id_list(namesakes)}"


def _id_list(jobs: Sequence[Job]) -> str:
    ids = sorted(int(job.id) for job in jobs)
    if len(ids) <= MOST_IDS:
        return ", ".join(map(str, ids))
    return f"{', '.join(map(str, ids[: MOST_IDS - 1]))} to {ids[-1]}"


def some(words: Sequence[str]) -> Sequence[str]:
    """At most as many words as a shell lists without asking twice. The shell completes the prefix
    that all words share, so the first and the last word of the alphabet stay among them."""
    if len(words) <= MOST_WORDS:
        return words
    return list(dict.fromkeys([*words[:MOST_WORDS], min(words), max(words)]))
