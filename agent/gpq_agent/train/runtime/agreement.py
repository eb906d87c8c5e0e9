"""Makes all replicas follow the same order at the same step.

Rank 0's proposal is broadcast one step before it is used. The broadcast is asynchronous and a few
integers long, so a step never waits for it. Decides nothing itself.
"""

import json
from typing import Any, Callable, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from gpq_agent.train.errors import GpqTrainError

LONGEST_VALUE = 1 << 24  # bytes


class Proposal(NamedTuple):
    """What rank 0 knows and all must know.

    Only integers: it travels as one tensor of shape (7,), int64.
    """

    seq: int = 0
    stop: int = 0  # 0 no, 1 ordered, 2 on SIGTERM
    atomic_batch: int = 0
    accum_steps: int = 0
    report: int = 0  # at this step: 1 gather the statistics, 2 also the times of each replica
    sample_every: int = 0
    pause: int = 1  # steps until the next agreement


class Agreement:
    """One per job. Every replica must call `step` the same number of times.

    With one replica nothing is communicated.
    """

    def __init__(
        self, group: Optional[dist.ProcessGroup], rank: int, propose: Callable[[], Proposal]
    ) -> None:
        self.propose = propose  # asked on rank 0
        self._group = group
        self._rank = rank
        self._countdown = 0
        self._pending: Optional[torch.Tensor] = None
        self._work: Optional[dist.Work] = None
        self._is_first = True

    def step(self) -> Optional[Proposal]:
        """Call once per step boundary. Returns what all replicas agreed on, or None.

        It is the same on each. The first call waits, so that the first step already follows the
        order that the job started with.
        """
        proposal = self._wait()
        if proposal is not None:
            self._countdown = max(proposal.pause - 1, 0)
            return proposal
        if self._countdown > 0:
            self._countdown -= 1
            return None
        self._post()
        if self._is_first or self._group is None:
            self._is_first = False
            proposal = self._wait()
            self._countdown = max(proposal.pause - 1, 0) if proposal else 0
        return proposal

    def broadcast_flag(self, success: bool) -> bool:
        """Rank 0's answer, on every replica. Waits for it."""
        if self._group is None:
            return success
        flag = torch.tensor([int(success)])
        dist.broadcast(flag, src=0, group=self._group)
        return bool(flag.item())

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value on every replica, see `broadcast_value`. Waits for it."""
        if self._group is None:
            return value
        return broadcast_value(value, self._group)

    def all_reduce_max(self, values: List[float]) -> List[float]:
        """The elementwise maximum over the replicas.

        All must call it at the same step, with the same number of values.
        """
        if self._group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
        return [float(value) for value in tensor.tolist()]

    def all_reduce_sum(self, values: List[float]) -> List[float]:
        """Elementwise sum over the replicas.

        All must call it at the same step, with as many values.
        """
        if self._group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self._group)
        return [float(value) for value in tensor.tolist()]

    def gather(self, values: List[float]) -> List[List[float]]:
        """The values of every replica, by rank.

        All must call it at the same step, with the same number of values.
        """
        if self._group is None:
            return [values]
        tensor = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, tensor, group=self._group)
        return [[float(value) for value in row.tolist()] for row in rows]

    def all_reduce_sum_int(self, values: List[int]) -> List[int]:
        """Elementwise sum over the replicas.

        All must call it at the same step, with as many values.
        """
        if self._group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, group=self._group)
        return [int(value) for value in tensor.tolist()]

    def drain(self) -> None:
        """There is nothing more to agree on: wait for what is still running."""
        self._wait()

    def _post(self) -> None:
        values = self.propose() if self._rank == 0 else Proposal()
        self._pending = torch.tensor(list(values), dtype=torch.int64)
        if self._group is not None:
            self._work = dist.broadcast(self._pending, src=0, group=self._group, async_op=True)

    def _wait(self) -> Optional[Proposal]:
        if self._pending is None:
            return None
        if self._work is not None:
            self._work.wait()
        values = [int(value) for value in self._pending.tolist()]
        self._pending = self._work = None
        return Proposal(*values)


def broadcast_value(value: Any, group: Optional[dist.ProcessGroup], source: int = 0) -> Any:
    """The value of the replica `source` on every replica: what JSON can hold, so tuples arrive as
    lists. Collective.

    torch's own functions for objects run code that the bytes of another replica name.
    Raises GpqTrainError if the bytes are no such value, or more than LONGEST_VALUE.
    """
    content = json.dumps(value).encode() if dist.get_rank(group) == source else b""
    size = torch.tensor([len(content)])
    dist.broadcast(size, src=source, group=group)
    if not 0 < int(size) <= LONGEST_VALUE:
        raise GpqTrainError("a replica sends {} bytes for a value".format(int(size)))
    data = torch.empty(int(size), dtype=torch.uint8)
    if content:
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    dist.broadcast(data, src=source, group=group)
    try:
        return json.loads(data.numpy().tobytes())
    except ValueError as error:
        raise GpqTrainError("a replica sends no value: {}".format(error)) from error
