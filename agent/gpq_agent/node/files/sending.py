"""Sends the files of a job: the listing first, then what the other end lacks."""

import os
from typing import Any, BinaryIO, Dict

from gpq_agent import records
from gpq_agent.node.files.stream import LONG, PIECE, Pace, Seal, read_line, write_line
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool import checkpoint_folder, trees
from gpq_agent.node.spool.trees import Entry


def send(folder: str, source: BinaryIO, sink: BinaryIO, pace: Pace) -> None:
    """Send what must follow the job whose folder it is. Raises EOFError, Immovable, SpoolError,
    OSError and ValueError."""
    entries = checkpoint_folder.listing(folder)
    if not entries:
        raise SpoolError("the job has no files there any more", "try again", "busy")
    write_line(sink, {"files": trees.as_json(entries)})
    sink.flush()
    for number in read_line(source, LONG)["missing"]:
        if not isinstance(number, int) or not 0 <= number < len(entries):
            raise ValueError("{!r} is not a file of this transfer".format(number))
        _send_file(folder, entries[number], sink, pace)
    sink.flush()


def _send_file(folder: str, entry: Entry, sink: BinaryIO, pace: Pace) -> None:
    path = os.path.join(folder, trees.local_name(entry.path))
    seal, offset = Seal(), 0
    line: Dict[str, Any] = {}
    with os.fdopen(records.open_plain(path), "rb", buffering=0) as file:
        while "sha256" not in line:
            offset = trees.data_at(file.fileno(), offset, entry.size)
            data = os.pread(file.fileno(), min(PIECE, entry.size - offset), offset)
            line = {"at": offset, "size": len(data)} if data else {}
            seal.add(offset, data)
            offset += len(data)
            if not data or offset == entry.size:
                _check_unchanged(file.fileno(), entry)
                line["sha256"] = seal.hex()
            write_line(sink, line)
            sink.write(data)
            pace.spend(len(data))


def _check_unchanged(descriptor: int, entry: Entry) -> None:
    status = os.fstat(descriptor)
    if (status.st_size, status.st_mtime_ns) != (entry.size, entry.changed):
        name = trees.display_name(entry.path)
        raise SpoolError("{} changed while it was read".format(name), "try again", "busy")
