"""Reads files of a job for another server: a listing, pieces of large files, many small files at
once."""

import base64
import os
from typing import Any, Dict, Generator, List

from gpq_agent import records
from gpq_agent.node.files.arriving import inside
from gpq_agent.node.spool import checkpoint_folder, trees
from gpq_agent.node.spool.trees import SMALL, TIMED, Entry, Immovable

Message = Dict[str, Any]
Work = Generator[None, None, Message]  # long work, a little at a time

PIECE = 1 << 20  # most bytes in one request


def files(folder: str) -> Work:
    """What must follow the job. `stays`: why it cannot move, "" if it can."""
    entries: List[Entry] = []
    try:
        entries = yield from checkpoint_folder.listing(folder)
    except Immovable as error:
        return {"files": [], "age": list(checkpoint_folder.age([])), "stays": str(error)}
    return {
        "files": trees.as_json(entries),
        "age": list(checkpoint_folder.age(entries)),
        "stays": "",
    }


def fetch(folder: str, message: Message) -> Message:
    """From `offset` of one file: `skip` bytes of a hole, then data."""
    offset, limit = int(message["offset"]), min(max(int(message["limit"]), 1), PIECE)
    with os.fdopen(records.open_plain(_path(folder, message)), "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        begin = trees.data_at(stream.fileno(), offset, size) if offset < size else offset
        data = os.pread(stream.fileno(), limit, begin)
    return {"skip": begin - offset, "data": _encode(data)}


def gather(folder: str, message: Message) -> Message:
    """Complete small files, the first of those requested: as many as fit into one piece."""
    contents: List[str] = []
    # full paths, checked once. The file itself is never opened through a link
    parents: Dict[str, str] = {"": folder}
    room = PIECE
    for entry in _entries(message["paths"]):
        parent, _, name = entry.path.rpartition("/")
        if parent not in parents:
            parents[parent] = inside(folder, parent)
        path = os.path.join(parents[parent], trees.local_name(name))
        with os.fdopen(records.open_plain(path), "rb") as stream:
            data = stream.read(SMALL + 1)
        room -= len(data)
        if contents and room < 0:
            break
        contents.append(_encode(data))
    return {"data": contents}


def digest(folder: str, message: Message) -> Work:
    """SHA-256 of one file, see `trees.digest`."""
    result = yield from trees.digest(_path(folder, message))
    return {"digest": result}


def _path(folder: str, message: Message) -> str:
    [entry] = _entries([message["path"]])
    return inside(folder, entry.path)


def _entries(paths: Any) -> List[Entry]:
    """Raises ValueError for a path that leads outside."""
    return trees.parse([[path, 0, TIMED] for path in list(paths)])


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
