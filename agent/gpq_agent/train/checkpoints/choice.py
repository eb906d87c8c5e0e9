"""The checkpoint that all replicas resume from, and its way to servers that lack it.

Works without a shared file system: a server without the chosen file gets it from rank 0, in pieces
and into a file of its own. Every replica maps its file, so none holds a checkpoint in memory.
"""

import os
import shutil
from typing import Any, Callable, Dict, Iterator, Optional

import torch
import torch.distributed as dist

from gpq_agent import records
from gpq_agent.train.checkpoints.loading import read_state
from gpq_agent.train.checkpoints.store import STATE, CheckpointStore
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.runtime.agreement import broadcast_value
from gpq_agent.train.runtime.environment import Environment
from gpq_agent.train.runtime.process_group import finish

PIECE = 1 << 26  # bytes


def choose_state(
    store: Optional[CheckpointStore],
    group: Optional[dist.ProcessGroup],
    environment: Environment,
    notice: Callable[[str], None],
) -> Optional[Dict[str, Any]]:
    """The newest whole checkpoint that rank 0 can see, the same on every replica, or None.
    Collective. Raises GpqTrainError if a server cannot keep it while it is read."""
    if store is None:
        return None
    rank = environment.rank
    name = (store.newest(notice) or "") if rank == 0 else ""
    if group is None:
        return store.read(name) if name else None
    name, manifest = broadcast_value([name, store.manifest(name) if name else {}], group)
    if not name:
        return None
    # The manifest has the digest, because another server may have a checkpoint of the same step
    # from another attempt.
    has_file = store.manifest(name) == manifest
    if _all(group, has_file):
        return store.read(name)
    leader = rank - environment.local_rank  # the replica of this server that writes the file
    folder = os.path.join(store.folder, ".{}.for-{}.tmp".format(name, leader))
    path = os.path.join(folder, STATE)
    is_writer = rank == leader and not has_file
    try:
        error = ""
        if rank == 0:
            _send(store.path(name), manifest["bytes"], group)
        else:
            error = _receive(path if is_writer else "", manifest["bytes"], group)
        if not _all(group, not error):
            raise GpqTrainError(
                "a server cannot keep the checkpoint that rank 0 sends {}".format(error).rstrip(),
                "free space in the folder of the checkpoints on every server of the job",
            )
        state = store.read(name) if has_file else read_state(path)
        _all(group, True)  # whoever needs the file has mapped it
        return state
    finally:
        if is_writer:
            shutil.rmtree(folder, ignore_errors=True)


def _send(path: str, size: int, group: dist.ProcessGroup) -> None:
    with os.fdopen(records.open_plain(path), "rb") as stream:
        for piece in _pieces(size):
            stream.readinto(piece.numpy().data)
            dist.broadcast(piece, src=0, group=group)


def _receive(path: str, size: int, group: dist.ProcessGroup) -> str:
    """Write what rank 0 sends to this file, or drop it. Returns why it cannot be written, or ""."""
    error = ""
    if path:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)  # of an attempt that was killed
    for piece in _pieces(size):
        dist.broadcast(piece, src=0, group=group)
        if not path or error:
            continue  # others still get their pieces
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "ab") as stream:
                stream.write(piece.numpy().data)
        except OSError as problem:
            error = "({})".format(problem)
    return error


def _pieces(size: int) -> Iterator[torch.Tensor]:
    """Room for one piece after the other, always the same memory. Shape (bytes,), uint8."""
    room = torch.empty(min(PIECE, size), dtype=torch.uint8)
    for begin in range(0, size, PIECE):
        yield room[: size - begin]


def _all(group: dist.ProcessGroup, value: bool) -> bool:
    """Is it true on all replicas? Collective."""
    flag = torch.tensor([int(value)])
    finish(dist.all_reduce(flag, dist.ReduceOp.MIN, group=group, async_op=True))
    return bool(flag)
