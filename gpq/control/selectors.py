"""Jobs as a person names them: `42`, `3-7,9`, `@` (the last one), `@~1` (the one before), a name, `all` (live ones)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from gpq.core.models import Snapshot
from gpq.core.units import JobId
from gpq.errors import NotFound, UsageError
from gpq.ports import History

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LAST = re.compile(r"@(?:~(\d{1,9}))?")
_IDS = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
MAX_RANGE = 100_000
NEAR_POOL = 200  # ended jobs whose names are offered when one is misspelt


def is_selector(word: str) -> bool:
    """Would this word be read as something else than a name?"""
    return word == "all" or bool(_LAST.fullmatch(word) or _IDS.fullmatch(word))


def resolve(selectors: Sequence[str], snapshot: Snapshot, past: History) -> list[JobId]:
    """Ids in the order named, each once. Raises NotFound, naming near ones, and UsageError for nonsense."""
    found: dict[JobId, None] = {}
    for selector in selectors:
        for word in selector.split(","):
            found.update(dict.fromkeys(_one_word(word.strip(), snapshot, past)))
    return list(found)


def single(selector: str, snapshot: Snapshot, past: History) -> JobId:
    """The one job meant; of several with that name the newest. Raises as `resolve`."""
    found = resolve([selector], snapshot, past)
    if not found:
        raise NotFound(f"`{selector}` names no job", "`gpq status` lists what there is")
    return max(found)


def _one_word(word: str, snapshot: Snapshot, past: History) -> list[JobId]:
    if word == "all":
        return sorted(snapshot.jobs)
    if last := _LAST.fullmatch(word):
        return _numbers(
            word, range(snapshot.next_id - 1 - int(last[1] or 0), snapshot.next_id - int(last[1] or 0)), snapshot, past
        )
    if ids := _IDS.fullmatch(word):
        first, final = int(ids[1]), int(ids[2] or ids[1])
        if final < first:
            raise UsageError(f"`{word}`: a range goes upwards", f"write {final}-{first}")
        if final - first >= MAX_RANGE:
            raise UsageError(f"`{word}`: a range has at most {MAX_RANGE} jobs", "name a shorter one")
        return _numbers(word, range(first, final + 1), snapshot, past)
    if not NAME.fullmatch(word):
        raise UsageError(f"{word!r} names no job", "say an id, a range such as 3-7, a name, @ (the last) or all")
    named = [job.id for job in snapshot.jobs.values() if job.name == word]
    if named:
        return sorted(named)
    ended = past.history(names=[word], limit=1)
    if ended:
        return [ended[0].id]
    raise NotFound(f"no job is named `{word}`", _near_names(word, snapshot, past))


def _numbers(word: str, numbers: range, snapshot: Snapshot, past: History) -> list[JobId]:
    """Those of `numbers` that are or were jobs."""
    existing = [JobId(number) for number in numbers if 0 < number < snapshot.next_id]
    asked = [number for number in existing if number not in snapshot.jobs]
    ended = {job.id for job in past.history(ids=asked)} if asked else set()
    found = [number for number in existing if number in snapshot.jobs or number in ended]
    if not found:
        raise NotFound(f"there is no job {word}" if word[0] != "@" else f"`{word}`: no such job", _last_ids(snapshot))
    return found


def _last_ids(snapshot: Snapshot) -> str:
    if snapshot.next_id <= 1:
        return "no job was submitted yet: `gpq submit` does"
    live = sorted(snapshot.jobs)[-5:]
    listed = f"; live: {', '.join(map(str, live))}" if live else ""
    return f"the last one is {snapshot.next_id - 1}{listed}; `gpq status` lists them"


def _near_names(word: str, snapshot: Snapshot, past: History) -> str:
    names = {job.name for job in snapshot.jobs.values()} | {job.name for job in past.history(limit=NEAR_POOL)}
    near = difflib.get_close_matches(word, sorted(names - {""}), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "`gpq status` lists what there is"
