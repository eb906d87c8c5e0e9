"""Which examples come next: one cursor over one permutation per epoch, the same for any number of replicas.

Every replica runs its own copy and they agree because they see the same orders at the same issued step. Refuses data
sets without a length: what cannot be counted cannot be visited exactly once.
"""

import hashlib
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from .batches import Configuration, Step, shape_step
from .errors import GpqTrainError

# A step is sampled for the gradient noise scale this often; the session tunes it to what sampling costs here.
SAMPLE_EVERY = 20
AHEAD = 4096  # examples of the order that are converted at once
EARLY_SAMPLES = 20  # so many first, one step in two, while the window is empty


class Cursor(NamedTuple):
    """Where the job is in the data: `consumed` examples of `epoch` are done."""

    epoch: int
    consumed: int


class Issued(NamedTuple):
    """One micro-batch handed to the data loader: its step, and its place in it, from 0."""

    step: Step
    place: int
    indices: List[int] = []  # examples that count, in order

    @property
    def last(self) -> bool:
        return self.place == len(self.step.counts) - 1


def stable_seed(*parts: int) -> int:
    """63 bits that depend on the parts only, the same on every machine and Python."""
    text = ":".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("ascii"), digest_size=8).digest(), "big") >> 1


def permutation(seed: int, epoch: int, size: int, shuffle: bool) -> torch.Tensor:
    """The order of the examples of an epoch; shape (size,), int64. Depends on the arguments only."""
    if not shuffle:
        return torch.arange(size)
    generator = torch.Generator()
    generator.manual_seed(stable_seed(seed, epoch))
    return torch.randperm(size, generator=generator)


class GlobalSampler:
    """Batch sampler of one replica: iterating yields the index lists of micro-batches until the epoch is used up.

    What has been issued (perhaps prefetched) and what has been consumed are counted apart; only the second is saved.
    """

    def __init__(self, size: int, configuration: Configuration, *, replicas: int, rank: int, seed: int, shuffle: bool):
        if size <= 0:
            raise GpqTrainError("the data set is empty", "job.loader() needs at least one example")
        self.size = size
        self.seed = seed
        self.configuration = configuration
        self.sample_every = 0  # 0: never
        self.reshape: Optional[Callable[[Step, int], Step]] = None  # of a step, with so many examples left
        self._replicas = replicas
        self._rank = rank
        self._shuffle = shuffle
        self._cursor = Cursor(0, 0)
        self._issued: Deque[Issued] = deque()
        self._steps_issued = 0
        self._samples_issued = 0
        self._order: Tuple[Optional[int], torch.Tensor] = (None, torch.empty(0))

    @property
    def cursor(self) -> Cursor:
        return self._cursor

    def seek(self, epoch: int, consumed: int = 0) -> None:
        """Continue from here; what was issued and not consumed is forgotten."""
        self._cursor = Cursor(epoch, consumed)
        self._issued.clear()

    def configure(self, configuration: Configuration) -> None:
        """Takes effect with the next step to be issued; what is prefetched keeps its size."""
        self.configuration = configuration

    def received(self) -> Issued:
        """What the batch just received is: batches arrive in the order in which they were issued."""
        return self._issued.popleft()

    def consumed(self, step: Step) -> None:
        """The optimiser step is done."""
        self._cursor = Cursor(step.epoch, step.start + step.total)

    def order(self) -> torch.Tensor:
        """The order of the running epoch."""
        if self._order[0] != self._cursor.epoch:
            self._order = (
                self._cursor.epoch, permutation(self.seed, self._cursor.epoch, self.size, self._shuffle)
            )  # fmt: skip
        return self._order[1]

    def state_dict(self) -> Dict[str, int]:
        return {"epoch": self._cursor.epoch, "consumed": self._cursor.consumed, "size": self.size, "seed": self.seed}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Raises GpqTrainError when the data set is not the one of the checkpoint."""
        if state["size"] != self.size:
            raise GpqTrainError(
                "the data set has {} examples, the checkpoint was made with {}".format(self.size, state["size"]),
                "restore the data set, or start a new job",
            )
        self.seed = state["seed"]
        self._order = (None, torch.empty(0))
        self.seek(state["epoch"], state["consumed"])

    def __len__(self) -> int:
        """Micro-batches left in the epoch at the present batch size."""
        left = self.size - self._cursor.consumed
        full, tail = divmod(left, self.configuration.total)
        micros = self.configuration.accum_steps + 1
        return full * micros + -(-tail // (self.configuration.atomic_batch * self._replicas))

    def __iter__(self) -> Iterator[List[int]]:
        self._issued.clear()
        epoch, at = self._cursor
        order = self.order()
        ahead: List[int] = []  # a part of the order that starts at `begun`, as Python's own integers
        begun = at
        while at < self.size:
            step = shape_step(
                epoch, at, self.size - at, self.configuration, self._replicas, self._rank, self._sample_now()
            )
            if self.reshape is not None:
                step = self.reshape(step, self.size - at)
            self._samples_issued += step.sampled
            if at + step.total > begun + len(ahead):
                begun, ahead = at, order[at : at + max(step.total, AHEAD)].tolist()
            place = at - begun
            share = ahead[place + self._rank : place + step.total : self._replicas]
            begin = 0
            for index, count in enumerate(step.counts):
                indices = share[begin : begin + count]
                self._issued.append(Issued(step, index, indices))
                # An empty micro-batch still has to take part in the all-reduce: repeat an example, with weight zero.
                yield indices or [ahead[place]]
                begin += count
            at += step.total

    def _sample_now(self) -> bool:
        self._steps_issued += 1
        if not self.sample_every:
            return False
        every = 2 if self._samples_issued < EARLY_SAMPLES else self.sample_every
        return self._steps_issued % every == 0
