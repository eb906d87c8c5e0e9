"""Jobs as a person names them: `42`, `3-7,9`, `@` (the last job), `@~1` (the one before it), a
name, or `all` (live jobs). The id of an array means all its jobs. `42_3` and `42_0-9` are some of
them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from itertools import islice

from gpq.core.model.jobs import TERMINAL, Job, JobState, Seat
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.errors import NotFound, UsageError
from gpq.ports import History, Wanted

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LAST = re.compile(r"@(?:~(\d{1,9}))?")
_ELEMENTS = re.compile(r"(\d{1,12})_(\d{1,10})(?:-(\d{1,10}))?")
_IDS = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
MAX_RANGE = 100_000
MOST_ELEMENTS = 10_000  # jobs of an array
NEAR_POOL = 200  # ended jobs whose names are suggested for a misspelt name


def is_selector(word: str) -> bool:
    """Would gpq read this word as something other than a name?"""
    return word == "all" or bool(
        _LAST.fullmatch(word) or _IDS.fullmatch(word) or _ELEMENTS.fullmatch(word)
    )


def coverage(word: str, snapshot: Snapshot) -> Callable[[Job], bool]:
    """Does this word name that job? For completion: it looks nothing up and never raises. An
    invalid word names no job."""
    if word == "all":
        return lambda job: job.state not in TERMINAL
    if last := _LAST.fullmatch(word):
        number = _last_number(last, snapshot)
        return lambda job: job.id == number
    if elements := _ELEMENTS.fullmatch(word):
        indices = _range(elements[2], elements[3])
        return lambda job: _index_in(int(elements[1]), job) in indices
    if ids := _IDS.fullmatch(word):
        numbers, array = _range(ids[1], ids[2]), 0 if ids[2] else int(ids[1])
        return lambda job: job.id in numbers or _index_in(array, job) is not None
    return lambda job: job.name == word


def _index_in(array: int, job: Job) -> int | None:
    """None if it is not of this array."""
    seat = job.spec.seat
    return seat.index if seat is not None and seat.array == array else None


def _last_number(last: re.Match[str], snapshot: Snapshot) -> int:
    """The id that `@` or `@~1` stands for."""
    return snapshot.next_id - 1 - int(last[1] or 0)


def _range(low: str, high: str | None) -> range:
    """Both ends and everything between them, or only `low` if there is no `high`."""
    return range(int(low), int(high or low) + 1)


def resolve(selectors: Sequence[str], snapshot: Snapshot, past: History) -> list[JobId]:
    """The ids in the order named, each one once. Raises NotFound, which suggests similar names, and
    UsageError for invalid words."""
    ids: dict[JobId, None] = {}
    for selector in selectors:
        for word in selector.split(","):
            ids.update(dict.fromkeys(_one_word(word.strip(), snapshot, past)))
    return list(ids)


def single(selector: str, snapshot: Snapshot, past: History) -> JobId:
    """The one job that is meant, or the newest of several with that name. Raises as `resolve`."""
    ids = resolve([selector], snapshot, past)
    if not ids:
        raise NotFound(f"`{selector}` names no job", "`gpq status` lists the jobs")
    if len(ids) > 1 and re.fullmatch(r"\d+(_.*)?", selector):
        array = selector.partition("_")[0]
        raise UsageError(
            f"`{selector}` is an array of {len(ids)} jobs",
            f"name one, e.g. {array}_0, or use its id. `gpq status {array}` lists them",
        )
    return max(ids)


def find_job(name: JobId, snapshot: Snapshot, past: History) -> Job:
    """The live or ended job. Raises NotFound."""
    jobs = _jobs([name], snapshot, past)
    if not jobs:
        raise NotFound(f"there is no job {name}", "`gpq status` lists the jobs")
    return jobs[0]


def _one_word(word: str, snapshot: Snapshot, past: History) -> list[JobId]:
    if word == "all":
        return sorted(snapshot.jobs)
    if last := _LAST.fullmatch(word):
        number = _last_number(last, snapshot)
        job_ids = _numbers(word, range(number, number + 1), snapshot, past)
        return job_ids if last[1] else _with_its_array(job_ids[0], snapshot, past)
    if elements := _ELEMENTS.fullmatch(word):
        indices = _range(elements[2], elements[3])
        return _elements(word, JobId(int(elements[1])), indices, snapshot, past)
    if ids := _IDS.fullmatch(word):
        return _ids(word, ids, snapshot, past)
    if not NAME.fullmatch(word):
        raise UsageError(
            f"{word!r} names no job", "use an id, a range such as 3-7, a name, @ (the last) or all"
        )
    return _bearers(word, snapshot, past)


def _ids(word: str, ids: re.Match[str], snapshot: Snapshot, past: History) -> list[JobId]:
    """All jobs of the array for `42` if it is an array. For `3-7` all those that exist or
    existed."""
    numbers = _range(ids[1], ids[2])
    if not ids[2]:
        elements = _element_ids(JobId(numbers[0]), snapshot, past)
        return _numbers(word, elements or numbers, snapshot, past)
    if not numbers:
        raise UsageError(
            f"`{word}`: range end is below its start", f"write {int(ids[2])}-{int(ids[1])}"
        )
    if len(numbers) > MAX_RANGE:
        raise UsageError(f"`{word}`: a range has at most {MAX_RANGE} jobs", "use a shorter one")
    return _numbers(word, numbers, snapshot, past)


def _bearers(name: str, snapshot: Snapshot, past: History) -> list[JobId]:
    """The live jobs with this name, or the latest ended one with its array."""
    live_ids = [job.id for job in snapshot.jobs.values() if job.name == name]
    if live_ids:
        return sorted(live_ids)
    ended = past.history(names=[name], limit=1)
    if ended:
        return _with_its_array(ended[0].id, snapshot, past)
    if name in set(JobState):
        raise NotFound(
            f"no job is named `{name}`", f"`gpq status state={name}` lists the jobs in that state"
        )
    names = {job.name for job in [*snapshot.jobs.values(), *past.history(limit=NEAR_POOL)]}
    suggestions = difflib.get_close_matches(name, sorted(names - {""}), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else ""
    raise NotFound(f"no job is named `{name}`", hint or "`gpq status` lists the jobs")


def _element_ids(name: JobId, snapshot: Snapshot, past: History) -> range:
    """The ids of the jobs of the array with this id, which follow its own. Empty if it is not an
    array."""
    if name in snapshot.jobs or not 0 < name < snapshot.next_id - 1 or past.ids(Wanted([name])):
        return range(0)
    possible = range(name + 1, min(name + 1 + MOST_ELEMENTS, snapshot.next_id))
    live_ids = (JobId(number) for number in possible if number in snapshot.jobs)
    # the first that is left, for long ended ones may have been removed
    ids = [*islice(live_ids, 1), *past.ids(Wanted(list(map(JobId, possible))))]
    seat = _seat(min(ids), snapshot, past) if ids else None
    if seat is None or seat.array != name:
        return range(0)
    return range(name + 1, name + seat.size + 1)


def _jobs(ids: Sequence[JobId], snapshot: Snapshot, past: History) -> list[Job]:
    live = [snapshot.jobs[name] for name in ids if name in snapshot.jobs]
    if len(live) == len(ids):
        return live
    return [*live, *past.history(ids=[name for name in ids if name not in snapshot.jobs])]


def _seat(name: JobId, snapshot: Snapshot, past: History) -> Seat | None:
    """The place of this job in an array."""
    jobs = _jobs([name], snapshot, past)
    return jobs[0].spec.seat if jobs else None


def _with_its_array(name: JobId, snapshot: Snapshot, past: History) -> list[JobId]:
    seat = _seat(name, snapshot, past)
    if seat is None:
        return [name]
    elements = _element_ids(seat.array, snapshot, past)
    return _numbers(str(name), elements, snapshot, past)


def _elements(
    word: str, name: JobId, choice: range, snapshot: Snapshot, past: History
) -> list[JobId]:
    if not choice:
        raise UsageError(
            f"`{word}`: range end is below its start",
            f"write {name}_{choice.stop - 1}-{choice.start}",
        )
    jobs = _jobs(list(map(JobId, _element_ids(name, snapshot, past))), snapshot, past)
    if not jobs:
        raise _absence(word, f"`{word}`: there is no array {name}", [name], snapshot, past)
    indices = {job.spec.seat.index: job.id for job in jobs if job.spec.seat is not None}
    job_ids = [indices[index] for index in sorted(indices) if index in choice]
    if not job_ids:
        raise NotFound(
            f"`{word}`: no such job", f"array {name} has indices {min(indices)} to {max(indices)}"
        )
    return job_ids


def _numbers(word: str, numbers: range, snapshot: Snapshot, past: History) -> list[JobId]:
    """Those of `numbers` that are or were jobs. Reads no job, because there may be a hundred
    thousand."""
    possible = range(max(numbers.start, 1), min(numbers.stop, snapshot.next_id))
    live_ids = {JobId(number) for number in possible if number in snapshot.jobs}
    other_ids = [JobId(number) for number in possible if number not in live_ids]
    job_ids = sorted(live_ids.union(past.ids(Wanted(other_ids)) if other_ids else ()))
    if not job_ids:
        problem = f"`{word}`: no such job" if word[0] == "@" else f"there is no job {word}"
        raise _absence(word, problem, other_ids, snapshot, past)
    return job_ids


def _absence(
    word: str, problem: str, ids: Sequence[JobId], snapshot: Snapshot, past: History
) -> NotFound:
    """With `problem`, or that they were removed. The id after that of an array is its first job."""
    if ids and past.removed_ids([*ids, JobId(ids[-1] + 1)]):
        problem = f"`{word}`: ended long ago and was removed"
    return NotFound(problem, _last_ids(snapshot))


def _last_ids(snapshot: Snapshot) -> str:
    if snapshot.next_id <= 1:
        return "there are no jobs yet: submit one with `gpq submit`"
    live = sorted(snapshot.jobs)[-5:]
    live_text = f", live jobs are {', '.join(map(str, live))}" if live else ""
    return f"the last job is {snapshot.next_id - 1}{live_text}. `gpq status` lists them"
