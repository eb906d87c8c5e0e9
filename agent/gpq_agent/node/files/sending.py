"""Files of a job as they are read for another server: a listing, pieces of large ones, many small
ones at once."""

import base64
import os
from typing import Any, Dict, Generator, List

from gpq_agent import records
from gpq_agent.node.files.arriving import inside
from gpq_agent.node.spool import checkpoint_folder, trees
from gpq_agent.node.spool.trees import SMALL, TIMED, Entry, Immovable

Message = Dict[str, Any]
Work = Generator[None, None, Message]  # long work, a little at a time

PIECE = 1 << 20  # bytes, at most, of one request


def files(folder: str) -> Work:
    """What has to follow the job. `stays`: why it cannot go elsewhere, "" where it can."""
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
    """Of one file from `offset` on: `skip` bytes of a hole, then data."""
    offset, limit = int(message["offset"]), min(max(int(message["limit"]), 1), PIECE)
    with os.fdopen(records.open_plain(_path(folder, message)), "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        begin = trees.data_at(stream.fileno(), offset, size) if offset < size else offset
        data = os.pread(stream.fileno(), limit, begin)
    return {"skip": begin - offset, "data": _encoded(data)}


def gather(folder: str, message: Message) -> Message:
    """Small files whole, the first of those that are asked for: as many as a piece holds."""
    contents: List[str] = []
    # in full, looked at once: a file itself is opened as no link
    parents: Dict[str, str] = {"": folder}
    room = PIECE
    for entry in _named(message["paths"]):
        parent, _, name = entry.path.rpartition("/")
        if parent not in parents:
            parents[parent] = inside(folder, parent)
        path = os.path.join(parents[parent], trees.local_name(name))
        with os.fdopen(records.open_plain(path), "rb") as stream:
            data = stream.read(SMALL + 1)
        room -= len(data)
        if contents and room < 0:
            break
        contents.append(_encoded(data))
    return {"data": contents}


def digest(folder: str, message: Message) -> Work:
    """SHA-256 of one file, as `trees.digest` has it."""
    result = yield from trees.digest(_path(folder, message))
    return {"digest": result}


def _path(folder: str, message: Message) -> str:
    [entry] = _named([message["path"]])
    return inside(folder, entry.path)


def _named(paths: Any) -> List[Entry]:
    """Raises ValueError for a path that leads out."""
    return trees.parsed([[path, 0, TIMED] for path in list(paths)])


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
