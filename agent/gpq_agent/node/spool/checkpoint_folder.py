"""The folder of the checkpoints: a marker that tells which servers share it, and what of a job's
files must follow it.

<checkpoints>/.storage.json     {"id"}: random, made by whoever comes first; who reads the same id
                                shares the folder
<checkpoints>/42/               the files of job 42: gpq/step-*/ (the library's), own/ (saves of a
                                script), and any others
<checkpoints>/.staging/NAME/    what is on its way here; see staging.py
<checkpoints>/.code/HASH/       the code of a snapshot, unpacked

Of the library's checkpoints and of a script's saves only the newest complete one follows, as the
loader would choose it; of whatever else a job keeps there, everything.
"""

import contextlib
import os
import re
import uuid
from typing import Any, Dict, Generator, Iterator, List, NamedTuple, Tuple

from gpq_agent import records, wire
from gpq_agent.node.spool import trees
from gpq_agent.node.spool.trees import Entry, Immovable

MARKER = ".storage.json"
CODE, STAGING, CODE_PREFIX = ".code", ".staging", "code-"
HASH = re.compile(r"[0-9a-f]{64}")
LIBRARY, OWN = "gpq", "own"  # folders of a job, as gpq_agent.train writes them
STEP, MANIFEST, STATE = "step-", "manifest.json", "state.pt"
RECORD, MEMORY = "saved.json", "memory.json"


class Marker(NamedTuple):
    """Of a folder of checkpoints: MARKER."""

    id: str


def storage_id(folder: str, damage: List[str]) -> str:
    """The id that the folder has, made where it has none; "" where it cannot have one. What was set
    aside for it is added to `damage`, in words. Raises OSError."""
    path = os.path.join(folder, MARKER)
    try:
        marker = records.read_shape(Marker, path)
    except records.Damaged as error:
        damage.append(records.put_away(error))
        marker = None
    if marker is None:
        temporary = "{}.{}.new".format(path, uuid.uuid4().hex[:8])
        wire.write_json(temporary, {"id": uuid.uuid4().hex})
        try:
            os.link(temporary, path)  # fails where another server was first, also over NFS
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(temporary, path)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
        with contextlib.suppress(records.Damaged):
            marker = records.read_shape(Marker, path)
    return str((marker or {}).get("id", ""))


def listing(folder: str) -> Generator[None, None, List[Entry]]:
    """What of the job's `folder` has to follow it, sorted by path; empty where there is nothing.
    Raises Immovable."""
    entries: List[Entry] = []
    for entry in _following(folder):
        entries.append(entry)
        if len(entries) > trees.MOST_ENTRIES:
            raise Immovable("it has more than {} files".format(trees.MOST_ENTRIES))
        yield
    return sorted(entries)


def age(files: List[Entry]) -> Tuple[int, int, int]:
    """Of two sets of one job the newer one has the larger: (step, repetition, number of files)."""
    names = [
        file.path.split("/")[1] for file in files if file.path.startswith(LIBRARY + "/" + STEP)
    ]
    return (*max(map(step_of, names), default=(-1, 0)), len(files))


def step_of(name: str) -> Tuple[int, int]:
    """(step, repetition) of ``step-12.1``, as the loader orders them."""
    step, _, repeat = name[len(STEP) :].partition(".")
    return (int(step) if step.isdigit() else -1, int(repeat) if repeat.isdigit() else 0)


def steps(folder: str) -> List[str]:
    """Names of the library's checkpoints, the newest first."""
    try:
        names = os.listdir(os.path.join(folder, LIBRARY))
    except OSError:
        return []
    return sorted((name for name in names if name.startswith(STEP)), key=step_of, reverse=True)


def _following(folder: str) -> Iterator[Entry]:
    yield from _of_library(folder)
    yield from _of_script(folder)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in map(trees.shared_name, names):
        if not is_kept_apart(folder, name):
            yield from trees.below(folder, name)


def is_kept_apart(folder: str, name: str) -> bool:
    """Is this name in a job's folder where the library, or a script's saves, have their own
    order?"""
    if name == LIBRARY:
        return bool(steps(folder))
    return name == OWN and os.path.lexists(os.path.join(folder, OWN, RECORD))


def _of_library(folder: str) -> Iterator[Entry]:
    """The newest one whose state is as long as its manifest says; its content is proved where it
    arrives."""
    for name in steps(folder):
        place = "{}/{}".format(LIBRARY, name)
        state = trees.entry(folder, "{}/{}".format(place, STATE))
        manifest = _manifest(folder, place)
        if (
            state is None
            or state.size != manifest.get("bytes")
            or not isinstance(manifest.get("sha256"), str)
        ):
            continue
        yield state._replace(mark=str(manifest["sha256"]))
        for path in ("{}/{}".format(place, MANIFEST), LIBRARY + "/" + MEMORY):
            entry = trees.entry(folder, path)
            if entry is not None:
                yield entry
        return


def _manifest(folder: str, step: str) -> Dict[str, Any]:
    try:
        return wire.read_json(os.path.join(folder, step, MANIFEST)) or {}
    except (OSError, ValueError):
        return {}


def _of_script(folder: str) -> Iterator[Entry]:
    """The last complete save of a script that saves by itself, and the record that says which it
    is."""
    try:
        complete = (wire.read_json(os.path.join(folder, OWN, RECORD)) or {}).get("complete") or []
    except (OSError, ValueError):
        return
    record = trees.entry(folder, OWN + "/" + RECORD)
    if not isinstance(complete, list) or not complete or "/" in str(complete[0]) or record is None:
        return
    yield record
    yield from trees.below(folder, "{}/{}".format(OWN, complete[0]))


def is_same(folder: str, entry: Entry) -> bool:
    """Is its content there already? Of the library's states the manifest beside them says so; its
    loader proves it."""
    step, _, name = entry.path.rpartition("/")
    if step.startswith(LIBRARY + "/" + STEP) and name == STATE:
        present, manifest = trees.entry(folder, entry.path), _manifest(folder, step)
        return (
            present is not None
            and present.size == entry.size == manifest.get("bytes")
            and manifest.get("sha256") == entry.mark
        )
    return trees.is_same(folder, entry)


def jobs(folder: str) -> Dict[str, List[Any]]:
    """What lies here of any job and of any snapshot, or was on its way here: {"jobs": numbers,
    "code": hashes}."""

    def names(path: str) -> List[str]:
        return os.listdir(path) if os.path.isdir(path) else []

    staged_names = names(os.path.join(folder, STAGING))
    code = names(os.path.join(folder, CODE)) + [name[len(CODE_PREFIX) :] for name in staged_names]
    return {
        "jobs": sorted({int(name) for name in names(folder) + staged_names if name.isdigit()}),
        "code": sorted({name for name in code if HASH.fullmatch(name)}),
    }
