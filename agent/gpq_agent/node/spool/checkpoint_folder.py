"""The checkpoint folder: a marker that shows which servers share it, and which files of a job must
follow it.

<checkpoints>/.storage.json     {"id"}: random, written by the first server. Servers that read the
                                same id share the folder
<checkpoints>/42/               the files of job 42: gpq/step-*/ (the library's), own/ (saves of a
                                script), and any others
<checkpoints>/42.before-4/      what was there before its attempt 4 started from the beginning
<checkpoints>/.staging/NAME/    what is on its way here, see receiving.py
<checkpoints>/.code/HASH/       the code of a snapshot, unpacked

Of the library's checkpoints and of a script's saves only the newest complete one follows the job,
as the loader would choose it. Everything else that a job keeps there follows it too.
"""

import contextlib
import errno
import os
import re
import uuid
from json.encoder import encode_basestring_ascii
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from gpq_agent import records, wire
from gpq_agent.node.spool import trees
from gpq_agent.node.spool.trees import Entry, Immovable

MARKER = ".storage.json"
CODE, STAGING, CODE_PREFIX = ".code", ".staging", "code-"
HASH = re.compile(r"[0-9a-f]{64}")
LIBRARY, OWN = "gpq", "own"  # folders of a job, as gpq_agent.train writes them
BEFORE = ".before-"  # and the number of the attempt that started afresh
STEP, MANIFEST, STATE = "step-", "manifest.json", "state.pt"
RECORD = "saved.json"
ALONGSIDE = (LIBRARY + "/memory.json", LIBRARY + "/side-effects.json")  # of the whole job


class Marker(NamedTuple):
    """The content of MARKER in a checkpoint folder."""

    id: str


def storage_id(folder: str, damage: List[str]) -> str:
    """The id of the folder. Creates one if it has none, and returns "" if it cannot have one. Adds
    a sentence to `damage` about a file that it set aside. Raises OSError."""
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
            os.link(temporary, path)  # fails if another server was first, also over NFS
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        with contextlib.suppress(records.Damaged):
            marker = records.read_shape(Marker, path)
    return str((marker or {}).get("id", ""))


def listing(folder: str) -> List[Entry]:
    """What of the job's `folder` must follow it, sorted by path. Empty if there is nothing. Raises
    Immovable."""
    entries: List[Entry] = []
    size = 0
    try:
        for entry in _following(folder):
            entries.append(entry)
            size += len(encode_basestring_ascii(entry.path) + encode_basestring_ascii(entry.mark))
            if len(entries) > trees.MOST_ENTRIES or size > trees.MOST_BYTES:
                words = (
                    "it has more than {} files and folders, or their names have more than {} MiB"
                )
                raise Immovable(words.format(trees.MOST_ENTRIES, trees.MOST_BYTES >> 20))
    except OSError as error:
        if error.errno in (*records.SHORTAGES, errno.EIO):
            raise
        path = os.path.join("its folder", os.path.relpath(str(error.filename), folder))
        words = trees.display_name(trees.shared_name(os.path.normpath(path)))
        raise Immovable("{} cannot be read: {}".format(words, error.strerror)) from error
    return sorted(entries)


def age(files: List[Entry]) -> Tuple[int, int, int]:
    """The newer of two sets of a job has the larger value: (step, repetition, number of files)."""
    names = [
        file.path.split("/")[1] for file in files if file.path.startswith(LIBRARY + "/" + STEP)
    ]
    return (*max(map(step_of, names), default=(-1, 0)), len(files))


def step_of(name: str) -> Tuple[int, int]:
    """(step, repetition) of ``step-12.1``, as the loader orders them."""
    step, _, repeat = name[len(STEP) :].partition(".")
    return (int(step) if step.isdecimal() else -1, int(repeat) if repeat.isdecimal() else 0)


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
    except FileNotFoundError:
        return
    for name in map(trees.shared_name, names):
        if not is_kept_apart(folder, name):
            yield from trees.below(folder, name)


def is_kept_apart(folder: str, name: str) -> bool:
    """Does the library, or a script's saves, manage this name in a job's folder?"""
    if name == LIBRARY:
        return bool(steps(folder))
    return name == OWN and os.path.lexists(os.path.join(folder, OWN, RECORD))


def _of_library(folder: str) -> Iterator[Entry]:
    """The newest checkpoint whose state has the size that its manifest says. The loader verifies
    its content."""
    for name in steps(folder):
        place = "{}/{}".format(LIBRARY, name)
        state = trees.entry(folder, "{}/{}".format(place, STATE))
        manifest = _content(os.path.join(folder, place, MANIFEST))
        if state is None or state.size != manifest.get("bytes"):
            continue
        yield state
        for path in ("{}/{}".format(place, MANIFEST), *ALONGSIDE):
            entry = trees.entry(folder, path)
            if entry is not None:
                yield entry
        return


def _content(path: str) -> Dict[str, Any]:
    """The object in a file, {} if there is no valid one."""
    with contextlib.suppress(OSError, ValueError):
        return wire.read_json(path) or {}
    return {}


def _of_script(folder: str) -> Iterator[Entry]:
    """The last complete save of a script that saves on its own, and the record that names it."""
    complete = _content(os.path.join(folder, OWN, RECORD)).get("complete")
    if not isinstance(complete, list) or not complete or "/" in str(complete[0]):
        return
    record = trees.entry(folder, OWN + "/" + RECORD)
    if record is not None:
        yield record
        yield from trees.below(folder, "{}/{}".format(OWN, complete[0]))


def jobs(folder: str) -> Dict[str, List[Any]]:
    """What is here of any job and any snapshot: {"jobs": numbers, also of those on their way here,
    "code": hashes, "coming": hashes of code on its way here, "early": jobs that set checkpoints
    aside when they started afresh}. Of each as many as an answer holds, from the lowest."""

    def names(path: str) -> List[str]:
        return os.listdir(path) if os.path.isdir(path) else []

    staged_names = names(os.path.join(folder, STAGING))
    coming = [name[len(CODE_PREFIX) :] for name in staged_names if name.startswith(CODE_PREFIX)]
    early = (name.partition(BEFORE) for name in names(folder))
    content: Dict[str, List[Any]] = {
        "early": sorted({int(job) for job, word, _ in early if word and job.isdecimal()}),
        "jobs": sorted({int(name) for name in names(folder) + staged_names if name.isdecimal()}),
        "code": sorted(filter(HASH.fullmatch, names(os.path.join(folder, CODE)))),
        "coming": sorted(filter(HASH.fullmatch, coming)),
    }
    return {name: values[: wire.LENGTHS[name]] for name, values in content.items()}
