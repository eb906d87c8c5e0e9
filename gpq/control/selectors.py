"""Jobs as a person names them: `42`, `3-7,9`, `@` (the last one), `@~1` (the one before), a name,
`all` (live ones); the id of an array is all of its jobs, `42_3` or `42_0-9` some of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence

from gpq.core.model.jobs import TERMINAL, Job, JobState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.errors import NotFound, UsageError
from gpq.ports import History

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LAST = re.compile(r"@(?:~(\d{1,9}))?")
_ELEMENTS = re.compile(r"(\d{1,12})_(\d{1,10})(?:-(\d{1,10}))?")
_IDS = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
MAX_RANGE = 100_000
NEAR_POOL = 200  # ended jobs whose names are offered when one is misspelt


def is_selector(word: str) -> bool:
    """Would this word be read as something else than a name?"""
    return word == "all" or bool(
        _LAST.fullmatch(word) or _IDS.fullmatch(word) or _ELEMENTS.fullmatch(word)
    )


def covered(word: str, snapshot: Snapshot) -> Callable[[Job], bool]:
    """Does this word name that job? For completion: looks nothing up and never raises; nonsense
    names none."""
    if word == "all":
        return lambda job: job.state not in TERMINAL
    if last := _LAST.fullmatch(word):
        number = snapshot.next_id - 1 - int(last[1] or 0)
        return lambda job: job.id == number
    if elements := _ELEMENTS.fullmatch(word):
        array, low, high = int(elements[1]), int(elements[2]), int(elements[3] or elements[2])
        return lambda job: (
            (seat := job.spec.seat) is not None
            and seat.array == array
            and low <= seat.index <= high
        )
    if ids := _IDS.fullmatch(word):
        first, final = int(ids[1]), int(ids[2] or ids[1])
        array = first if not ids[2] else 0
        return lambda job: (
            first <= job.id <= final
            or ((seat := job.spec.seat) is not None and seat.array == array)
        )
    return lambda job: job.name == word


def resolve(selectors: Sequence[str], snapshot: Snapshot, past: History) -> list[JobId]:
    """Ids in the order named, each once. Raises NotFound, naming near ones, and UsageError for
    nonsense."""
    ids: dict[JobId, None] = {}
    for selector in selectors:
        for word in selector.split(","):
            ids.update(dict.fromkeys(_one_word(word.strip(), snapshot, past)))
    return list(ids)


def single(selector: str, snapshot: Snapshot, past: History) -> JobId:
    """The one job meant; of several with that name the newest. Raises as `resolve`."""
    ids = resolve([selector], snapshot, past)
    if not ids:
        raise NotFound(f"`{selector}` names no job", "`gpq status` lists what there is")
    if len(ids) > 1 and re.fullmatch(r"\d+(_.*)?", selector):
        array = selector.partition("_")[0]
        raise UsageError(
            f"`{selector}` is an array of {len(ids)} jobs",
            f"name one: {array}_0, or its id; `gpq status {array}` lists them",
        )
    return max(ids)


def _one_word(word: str, snapshot: Snapshot, past: History) -> list[JobId]:
    if word == "all":
        return sorted(snapshot.jobs)
    if last := _LAST.fullmatch(word):
        number = snapshot.next_id - 1 - int(last[1] or 0)
        job_ids = _numbers(word, range(number, number + 1), snapshot, past)
        return job_ids if last[1] else _with_its_array(job_ids[0], snapshot, past)
    if elements := _ELEMENTS.fullmatch(word):
        return _elements(
            word,
            JobId(int(elements[1])),
            int(elements[2]),
            int(elements[3] or elements[2]),
            snapshot,
            past,
        )
    if ids := _IDS.fullmatch(word):
        whole = _array(JobId(int(ids[1])), snapshot, past) if not ids[2] else []
        if whole:
            return [job.id for job in whole]
        first, final = int(ids[1]), int(ids[2] or ids[1])
        if final < first:
            raise UsageError(f"`{word}`: a range goes upwards", f"write {final}-{first}")
        if final - first >= MAX_RANGE:
            raise UsageError(
                f"`{word}`: a range has at most {MAX_RANGE} jobs", "name a shorter one"
            )
        return _numbers(word, range(first, final + 1), snapshot, past)
    if not NAME.fullmatch(word):
        raise UsageError(
            f"{word!r} names no job", "say an id, a range such as 3-7, a name, @ (the last) or all"
        )
    live_ids = [job.id for job in snapshot.jobs.values() if job.name == word]
    if live_ids:
        return sorted(live_ids)
    ended = past.history(names=[word], limit=1)
    if ended:
        return [ended[0].id]
    if word in set(JobState):
        raise NotFound(
            f"no job is named `{word}`", f"`gpq status state={word}` lists the jobs in that state"
        )
    raise NotFound(f"no job is named `{word}`", _near_names(word, snapshot, past))


def _array(name: JobId, snapshot: Snapshot, past: History) -> list[Job]:
    """The jobs of the array of this id, by id; empty where it is none. The ids of its jobs follow
    it."""
    if name in snapshot.jobs or not 0 < name < snapshot.next_id:
        return []
    first = snapshot.jobs.get(JobId(name + 1)) or next(
        iter(past.history(ids=[JobId(name + 1)])), None
    )
    seat = first.spec.seat if first is not None else None
    if seat is None or seat.array != name:
        return []
    element_ids = [JobId(number) for number in range(name + 1, name + seat.size + 1)]
    live = [snapshot.jobs[element_id] for element_id in element_ids if element_id in snapshot.jobs]
    ended = (
        past.history(
            ids=[element_id for element_id in element_ids if element_id not in snapshot.jobs]
        )
        if len(live) < len(element_ids)
        else []
    )
    return sorted([*live, *ended], key=lambda job: job.id)


def _with_its_array(name: JobId, snapshot: Snapshot, past: History) -> list[JobId]:
    job = snapshot.jobs.get(name) or next(iter(past.history(ids=[name])), None)
    seat = job.spec.seat if job is not None else None
    return (
        [name] if seat is None else [element.id for element in _array(seat.array, snapshot, past)]
    )


def _elements(
    word: str, name: JobId, low: int, high: int, snapshot: Snapshot, past: History
) -> list[JobId]:
    if high < low:
        raise UsageError(f"`{word}`: a range goes upwards", f"write {name}_{high}-{low}")
    jobs = _array(name, snapshot, past)
    if not jobs:
        raise NotFound(f"`{word}`: there is no array {name}", _last_ids(snapshot))
    indices = {job.spec.seat.index: job.id for job in jobs if job.spec.seat is not None}
    job_ids = [indices[index] for index in sorted(indices) if low <= index <= high]
    if not job_ids:
        raise NotFound(
            f"`{word}`: no such job", f"array {name} has {min(indices)} to {max(indices)}"
        )
    return job_ids


def _numbers(word: str, numbers: range, snapshot: Snapshot, past: History) -> list[JobId]:
    """Those of `numbers` that are or were jobs."""
    existing = [JobId(number) for number in numbers if 0 < number < snapshot.next_id]
    absent_ids = [number for number in existing if number not in snapshot.jobs]
    ended = {job.id for job in past.history(ids=absent_ids)} if absent_ids else set()
    job_ids = [number for number in existing if number in snapshot.jobs or number in ended]
    if not job_ids:
        raise NotFound(
            f"there is no job {word}" if word[0] != "@" else f"`{word}`: no such job",
            _last_ids(snapshot),
        )
    return job_ids


def _last_ids(snapshot: Snapshot) -> str:
    if snapshot.next_id <= 1:
        return "no job was submitted yet: `gpq submit` does"
    live = sorted(snapshot.jobs)[-5:]
    live_text = f"; live: {', '.join(map(str, live))}" if live else ""
    return f"the last one is {snapshot.next_id - 1}{live_text}; `gpq status` lists them"


def _near_names(word: str, snapshot: Snapshot, past: History) -> str:
    names = {job.name for job in snapshot.jobs.values()} | {
        job.name for job in past.history(limit=NEAR_POOL)
    }
    suggestions = difflib.get_close_matches(word, sorted(names - {""}), n=3, cutoff=0.5)
    return (
        f"did you mean {' or '.join(suggestions)}?"
        if suggestions
        else "`gpq status` lists what there is"
    )
