"""Makes all replicas follow the same order at the same step.

Rank 0 proposes one step before it is used. All send a few integers asynchronously, so a step never
waits for them. Decides nothing itself.
"""

import json
from datetime import timedelta
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.process.process_group import finish

LONGEST_VALUE = 1 << 24  # bytes
LOOK_SECONDS = 1.0  # between two looks at replicas that wait
MEET_SECONDS = 15.0  # seconds that another replica may wait for one that waits here
# What a script does when its replicas agree on something.
LOOP, STEP, SKIPPED = "a loop over job.loader()", "the next step", "a step without backward()"
EPOCH, END = "the end of an epoch", "the end of the training"
CALLS = (
    "gpq.init()", "job.loader()", "job.prepare()", "job.saved()", "job.weigh()",
    "scheduler.step()", "job.should_stop()", LOOP, STEP, SKIPPED, EPOCH, END,
)  # fmt: skip
TOGETHER = (
    "make these calls on every replica, and run backward() for every batch (multiply an unwanted "
    "loss by 0). One replica alone may call the model, job.log(), job.eval() and job.state()"
)


class Proposal(NamedTuple):
    """What rank 0 knows and all must know. Of other replicas only `stop` counts."""

    seq: int = 0
    stop: int = 0  # 0 no, 1 ordered, 2 on SIGTERM
    atomic_batch: int = 0
    accum_steps: int = 0
    report: int = 0  # at this step: 1 gather the statistics, 2 also the times of each replica
    sample_every: int = 0
    pause: int = 1  # steps until the next agreement


NOTHING = Proposal()
Rows = Tuple[List[torch.Tensor], Optional[dist.Work]]


class Agreement:
    """One per job. Every replica must make the same calls, in the same order.

    With one replica nothing is communicated. call: what the script does now, one of CALLS.
    place: steps that have begun. propose: what this replica knows. is_awaited: does another replica
    wait for this one elsewhere? Methods raise GpqTrainError if replicas are at different calls.
    """

    def __init__(
        self,
        group: Optional[dist.ProcessGroup],
        rank: int,
        propose: Callable[[], Proposal],
        is_awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        self.propose = propose
        self.call, self.place = "gpq.init()", 0
        self._group = group
        self._rank = rank
        self._is_awaited = is_awaited
        self._countdown = 0
        self._pending: Optional[Rows] = None
        self._is_first = True

    def step(self) -> Optional[Proposal]:
        """Call once per step boundary. Returns what all replicas agreed on, or None. It is the same
        on each. The first call waits, so that the first step already follows the order that the job
        started with."""
        proposal = self.drain() if self._pending is not None else None
        if proposal is not None:
            self._countdown = max(proposal.pause - 1, 0)
            return proposal
        if self._countdown > 0:
            self._countdown -= 1
            return None
        self._pending = self._send(self.propose())
        if self._is_first or self._group is None:
            self._is_first = False
            proposal = self.drain()
            self._countdown = max(proposal.pause - 1, 0) if proposal else 0
        return proposal

    def broadcast_flag(self, success: bool) -> bool:
        """Rank 0's answer, on every replica. Waits for it."""
        return bool(self.gather([float(success)])[0][0])

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value on every replica, see `broadcast_value`. Waits for it."""
        if self._group is None:
            return value
        self.meet()
        return broadcast_value(value, self._group)

    def all_reduce_max(self, values: List[float]) -> List[float]:
        """The elementwise maximum over the replicas, of as many values on each."""
        return [max(column) for column in zip(*self.gather(values))]

    def all_reduce_sum(self, values: List[float]) -> List[float]:
        """The elementwise sum over the replicas, of as many values on each."""
        return [sum(column) for column in zip(*self.gather(values))]

    def gather(self, values: List[float]) -> List[List[float]]:
        """The values of every replica, by rank, as many on each."""
        own = torch.tensor(values, dtype=torch.float64)
        if self._group is None:
            return [own.tolist()]
        self.meet()
        tensors = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        finish(dist.all_gather(tensors, own, group=self._group, async_op=True))
        return [tensor.tolist() for tensor in tensors]

    def meet(self, is_awaited: Optional[Callable[[], bool]] = None) -> None:
        """Wait for the same call of the others. `is_awaited`: by default that of this job."""
        if self._group is not None:
            self._receive(self._send(), is_awaited or self._is_awaited)

    def unlike(self, values: List[Any]) -> Optional[Tuple[int, int]]:
        """Rank and place of the first value that differs from rank 0's in the same place."""
        pairs = enumerate(zip(values, self.broadcast(values)))
        place = next((place for place, (own, other) in pairs if own != other), -1)
        rows = enumerate(self.gather([float(place)]))
        return next(((rank, int(row[0])) for rank, row in rows if row[0] >= 0), None)

    def drain(self) -> Optional[Proposal]:
        """Wait for what is still running."""
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        proposals = [Proposal(*row[2:]) for row in self._receive(pending, self._is_awaited)]
        # A signal may reach any replica.
        return proposals[0]._replace(stop=max(proposal.stop for proposal in proposals))

    def _send(self, proposal: Proposal = NOTHING) -> Rows:
        """Tell the others where this replica is. All that replicas agree on starts with this, so
        different calls find each other."""
        own = torch.tensor([CALLS.index(self.call), self.place, *proposal])
        if self._group is None:
            return [own], None
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        return rows, dist.all_gather(rows, own, group=self._group, async_op=True)

    def _receive(self, pending: Rows, is_awaited: Callable[[], bool]) -> List[List[int]]:
        """The rows of all replicas, by rank."""
        tensors, work = pending
        seconds = 0.0  # only those in which this process ran: it may be suspended
        while work is not None:
            is_done = True
            try:
                work.wait(timedelta(seconds=LOOK_SECONDS))
            except RuntimeError:
                is_done = work.is_completed()  # perhaps at the last moment
            try:
                if is_done:
                    finish(work)
                    break
            except RuntimeError as error:
                words = "replica {} lost the others in {}: {}"
                raise GpqTrainError(words.format(self._rank, self.call, error)) from error
            seconds = seconds + LOOK_SECONDS if is_awaited() else 0.0
            if seconds > MEET_SECONDS:
                words = "replica {} waits in {}, and another one waits for it in backward()"
                raise GpqTrainError(words.format(self._rank, self.call), TOGETHER)
        rows: List[List[int]] = [tensor.tolist() for tensor in tensors]
        for rank, row in enumerate(rows):
            if row[:2] != rows[0][:2]:
                words = "replica 0 is in {} (step {}), but replica {} in {} (step {})"
                (call, place, *_), (other_call, other_place, *_) = rows[0], row
                sides = CALLS[call], place, rank, CALLS[other_call], other_place
                raise GpqTrainError(words.format(*sides), TOGETHER)
        return rows


def broadcast_value(value: Any, group: Optional[dist.ProcessGroup], source: int = 0) -> Any:
    """The value of the replica `source` on every replica: what JSON can hold, so tuples arrive as
    lists. Collective. torch's own functions for objects run code that the bytes of another replica
    name. Raises GpqTrainError if the bytes are no such value, or more than LONGEST_VALUE."""
    content = json.dumps(value).encode() if dist.get_rank(group) == source else b""
    size = torch.tensor([len(content)])
    finish(dist.broadcast(size, src=source, group=group, async_op=True))
    if not 0 < int(size) <= LONGEST_VALUE:
        raise GpqTrainError("a replica sends {} bytes for a value".format(int(size)))
    data = torch.empty(int(size), dtype=torch.uint8)
    if content:
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    finish(dist.broadcast(data, src=source, group=group, async_op=True))
    try:
        return json.loads(data.numpy().tobytes())
    except ValueError as error:
        raise GpqTrainError("a replica sends no value: {}".format(error)) from error
