"""The checkpoint that all replicas resume from."""

from typing import Any, Callable, Dict, Optional

import torch
import torch.distributed as dist

from gpq_agent.train.checkpoints.store import CheckpointStore
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.runtime.agreement import broadcast_value
from gpq_agent.train.runtime.environment import Environment
from gpq_agent.train.runtime.process_group import finish


def choose_state(
    store: Optional[CheckpointStore],
    group: Optional[dist.ProcessGroup],
    environment: Environment,
    notice: Callable[[str], None],
) -> Optional[Dict[str, Any]]:
    """The newest whole checkpoint that rank 0 can see, the same on every replica, or None. Every
    replica maps its file, so none holds a checkpoint in memory. Collective. Raises GpqTrainError if
    a server lacks it: gpq starts an attempt once all of its servers have it."""
    if store is None:
        return None
    name = (store.newest(notice) or "") if environment.rank == 0 else ""
    if group is None:
        return store.read(name) if name else None
    name, manifest = broadcast_value([name, store.manifest(name) if name else {}], group)
    if not name:
        return None
    # The manifest has the digest, because another server may have a checkpoint of the same step
    # from another attempt.
    has_file = torch.tensor([int(store.manifest(name) == manifest)])
    finish(dist.all_reduce(has_file, dist.ReduceOp.MIN, group=group, async_op=True))
    if not has_file:
        raise GpqTrainError(
            "a server of the job lacks the checkpoint {} that rank 0 resumes from".format(name),
            "submit the job to gpq, which copies checkpoints, or share their folder",
        )
    return store.read(name)
