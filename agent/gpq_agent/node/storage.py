"""The folder of the checkpoints: a marker that tells which servers share it, and what of a job's files must follow it.

<checkpoints>/.storage.json     {"id"}: random, made by whoever comes first; who reads the same id shares the folder
<checkpoints>/42/               the files of job 42: gpq/step-*/ (the library's), own/ (saves of a script), or any others
<checkpoints>/.staging/NAME/    what is on its way here; see staging.py
<checkpoints>/.code/HASH/       the code of a snapshot, unpacked

Only the newest complete checkpoint follows, as the loader would choose it; of a job without either kind, all its files.
"""

import hashlib
import os
import re
import stat
import uuid
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.spool import SpoolError

MARKER = ".storage.json"
CODE, STAGING, CODE_PREFIX = ".code", ".staging", "code-"
HASH = re.compile(r"[0-9a-f]{64}")
LIBRARY, OWN = "gpq", "own"  # folders of a job, as gpq_agent.train writes them
STEP, MANIFEST, STATE = "step-", "manifest.json", "state.pt"
RECORD, MEMORY = "saved.json", "memory.json"
SMALL = 1 << 16  # bytes: files up to here are hashed at once
MOST_FILES = 20_000  # of one job that follow it


class File(NamedTuple):
    """One file of a set: `mark` is its SHA-256 where that is known, else "t" and its time of change in whole seconds."""

    path: str  # below the job's folder
    size: int
    mark: str


def storage_id(folder: str) -> str:
    """The id that the folder has, made where it has none. Raises OSError."""
    path = os.path.join(folder, MARKER)
    known = wire.read_json(path)
    if known is None:
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
        known = wire.read_json(path)
    return str((known or {}).get("id", ""))


def listing(folder: str) -> List[File]:
    """What of the job's `folder` has to follow it, sorted by path; empty where there is nothing."""
    found = _of_library(folder) + _of_script(folder) + _others(folder)
    if len(found) > MOST_FILES:
        raise SpoolError("{} holds more than {} files".format(folder, MOST_FILES), "keep fewer files as checkpoints")
    return sorted(found)


def age(files: List[File]) -> Tuple[int, int, int]:
    """Of two sets of one job the newer one has the larger: (step, repetition, number of files)."""
    names = [file.path.split("/")[1] for file in files if file.path.startswith(LIBRARY + "/" + STEP)]
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


def _of_library(folder: str) -> List[File]:
    """The newest one whose state is as long as its manifest says; its content is proved where it arrives."""
    for name in steps(folder):
        place = os.path.join(folder, LIBRARY, name)
        try:
            manifest = wire.read_json(os.path.join(place, MANIFEST)) or {}
            size = os.stat(os.path.join(place, STATE)).st_size
        except (OSError, ValueError):
            continue
        if size != manifest.get("bytes") or not isinstance(manifest.get("sha256"), str):
            continue
        state = File("{}/{}/{}".format(LIBRARY, name, STATE), size, str(manifest["sha256"]))
        more = [_file(folder, "{}/{}/{}".format(LIBRARY, name, MANIFEST)), _file(folder, LIBRARY + "/" + MEMORY)]
        return [state] + [file for file in more if file is not None]
    return []


def _of_script(folder: str) -> List[File]:
    """The last complete save of a script that saves by itself, and the record that says which it is."""
    record = _file(folder, OWN + "/" + RECORD)
    if record is None:
        return []
    try:
        complete = (wire.read_json(os.path.join(folder, OWN, RECORD)) or {}).get("complete") or []
    except (OSError, ValueError):
        return []
    if not complete or "/" in str(complete[0]):
        return []
    return [record, *_below(folder, "{}/{}".format(OWN, complete[0]))]


def _others(folder: str) -> List[File]:
    """Whatever else a job keeps there, e.g. one that checkpoints on a signal."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = []  # type: List[File]
    for name in names:
        if name in (LIBRARY, OWN) or name.startswith("."):
            continue
        one = _file(folder, name)
        found += [one] if one is not None else list(_below(folder, name))
    return found


def _below(folder: str, path: str) -> Iterator[File]:
    for place, _, names in os.walk(os.path.join(folder, path)):  # follows no links
        for name in names:
            one = _file(folder, os.path.relpath(os.path.join(place, name), folder))
            if one is not None:
                yield one


def _file(folder: str, path: str) -> Optional[File]:
    """None for what is no plain file."""
    full = os.path.join(folder, path)
    try:
        status = os.lstat(full)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > SMALL:
            return File(path, status.st_size, "t{}".format(int(status.st_mtime)))
        with open(full, "rb") as stream:
            content = stream.read(SMALL + 1)
    except OSError:
        return None
    return File(path, len(content), hashlib.sha256(content).hexdigest())


def parsed(message: Any) -> List[File]:
    """A listing from what came over the wire. Raises ValueError for a path that would lead out of its folder."""
    if not isinstance(message, list) or len(message) > MOST_FILES:
        raise ValueError("a listing is a list of files")
    files = []
    for path, size, mark in message:
        parts = path.split("/") if isinstance(path, str) else [""]
        if "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise ValueError("{!r} is no path below a folder".format(path))
        if not isinstance(size, int) or size < 0 or not isinstance(mark, str):
            raise ValueError("{!r} has no size or no mark".format(path))
        files.append(File(path, size, mark))
    if len({file.path for file in files}) != len(files):
        raise ValueError("a path is listed twice")
    return files


def same(folder: str, file: File) -> bool:
    """Is that file there already? Of the library's states the manifest beside them says so; its loader proves it."""
    state = "/" + STATE
    if file.path.startswith(LIBRARY + "/" + STEP) and file.path.endswith(state):
        try:
            manifest = wire.read_json(os.path.join(folder, file.path[: -len(state)], MANIFEST)) or {}
            size = os.stat(os.path.join(folder, file.path)).st_size
        except (OSError, ValueError):
            return False
        return bool(size == file.size == manifest.get("bytes") and manifest.get("sha256") == file.mark)
    return _file(folder, file.path) == file


def as_json(files: List[File]) -> List[List[Any]]:
    return [list(file) for file in files]


def jobs(folder: str) -> Dict[str, List[Any]]:
    """What lies here of any job and of any snapshot, or was on its way here: {"jobs": numbers, "code": hashes}."""

    def names(path: str) -> List[str]:
        return os.listdir(path) if os.path.isdir(path) else []

    coming = names(os.path.join(folder, STAGING))
    code = names(os.path.join(folder, CODE)) + [name[len(CODE_PREFIX) :] for name in coming]
    return {
        "jobs": sorted({int(name) for name in names(folder) + coming if name.isdigit()}),
        "code": sorted({name for name in code if HASH.fullmatch(name)}),
    }
