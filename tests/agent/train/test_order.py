"""A script's own sampler: it alone decides an epoch, which is the same on every replica and after a restart."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from gpq_agent.train.data.batches import Limits, ordered_configuration, starting
from gpq_agent.train.data.order import OwnOrder, hold_together
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.boundary import Ledger
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from tests.support.examples import examples


class OwnEpochs:
    """Shuffles with the epoch number that it received."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(range(self.size), self.size))


class Holding:
    """Shuffles with its own generator, of any kind."""

    def __init__(self, size: int, generator: Any) -> None:
        self.size, self.own = size, generator

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.own, random.Random):
            return iter(self.own.sample(range(self.size), self.size))
        return iter(self.own.permutation(self.size))  # numpy's integers


class Global:
    """Shuffles with the global generators of Python, numpy and torch in turn."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        values: list[Any] = list(range(self.size))
        random.shuffle(values)
        return iter([*values, *numpy.random.permutation(self.size), *torch.randperm(self.size)])


class Buckets:
    """Examples of similar length together: batches of uneven sizes in a random order."""

    def __init__(self, size: int, batch: int) -> None:
        self.size, self.batch_size = size, batch

    def __iter__(self) -> Iterator[list[int]]:
        generator = random.Random(torch.initial_seed())
        batches, at = [], 0
        while at < self.size:
            take = generator.randint(1, 2 * self.batch_size)
            batches.append(list(range(at, min(at + take, self.size))))
            at += take
        generator.shuffle(batches)
        return iter(batches)


class Counting:
    """Counts its own epochs, so its order depends on how often somebody asked."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(random.Random(self.epoch).sample(range(self.size), self.size))


SAMPLERS: dict[str, Callable[[int], Any]] = {
    "weighted": lambda size: WeightedRandomSampler(torch.arange(1.0, size + 1), 2 * size, replacement=True),
    "weighted with a generator": lambda size: WeightedRandomSampler(
        torch.arange(1.0, size + 1), max(size // 2, 1), replacement=False, generator=torch.Generator()
    ),
    "random": lambda size: RandomSampler(range(size)),
    "subset": lambda size: SubsetRandomSampler(range(0, size, 3)),
    "set_epoch": OwnEpochs,
    "random.Random": lambda size: Holding(size, random.Random(1)),
    "numpy's Generator": lambda size: Holding(size, numpy.random.default_rng(1)),
    "numpy's RandomState": lambda size: Holding(size, numpy.random.RandomState(1)),
    "global": Global,
    "a list": lambda size: list(range(size)),
}
BATCHED: dict[str, Callable[[int], Any]] = {
    "torch's": lambda size: BatchSampler(RandomSampler(range(size)), 7, drop_last=False),
    "torch's over set_epoch": lambda size: BatchSampler(OwnEpochs(size), 5, drop_last=True),
    "buckets": lambda size: Buckets(size, 6),
}


def states() -> list[Any]:
    kind, keys, *rest = numpy.random.get_state()
    return [random.getstate(), kind, keys.tolist(), rest, torch.get_rng_state().tolist()]


@pytest.mark.parametrize("name", [*SAMPLERS, *BATCHED])
def test_an_order_depends_only_on_seed_and_epoch_and_changes_no_generator(name: str) -> None:
    batched = name in BATCHED
    make = (BATCHED if batched else SAMPLERS)[name]
    first = OwnOrder(make(60), 60, batched=batched)
    orders = [first.draw(5, epoch) for epoch in range(4)]
    for epoch in (3, 1):  # like another process, with generators in other states and no earlier epoch
        for _ in range(epoch):
            random.random(), numpy.random.random(), torch.rand(3)
        before = states()
        again = OwnOrder(make(60), 60, batched=batched).draw(5, epoch)
        assert states() == before
        assert torch.equal(again.indices, orders[epoch].indices)
        assert (again.ends, again.digest) == (orders[epoch].ends, orders[epoch].digest)
    if name != "a list":
        assert len({order.digest for order in orders}) == 4, "each epoch has its own order"
    if name not in ("a list", "set_epoch", "torch's over set_epoch"):
        assert OwnOrder(make(60), 60, batched=batched).draw(6, 0).digest != orders[0].digest, (
            "the order depends on the seed"
        )


@pytest.mark.parametrize("generator", [torch.Generator(), random.Random(2), numpy.random.default_rng(2)])
def test_a_sampler_does_not_advance_a_generator_that_it_shares_with_the_script(generator: Any) -> None:
    def draws() -> Any:
        return (
            torch.rand(1, generator=generator).item() if isinstance(generator, torch.Generator) else generator.random()
        )

    sampler = Holding(9, generator) if not isinstance(generator, torch.Generator) else RandomSampler(
        range(9), generator=generator
    )  # fmt: skip
    state = generator.get_state() if isinstance(generator, torch.Generator) else None
    if state is None:
        OwnOrder(sampler, 9, batched=False).draw(0, 0)
        fresh = random.Random(2) if isinstance(generator, random.Random) else numpy.random.default_rng(2)
        assert draws() == fresh.random()
    else:
        OwnOrder(sampler, 9, batched=False).draw(0, 0)
        assert torch.equal(generator.get_state(), state)


phases = st.lists(
    st.tuples(
        st.integers(1, 4),  # replicas
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), max_size=2),  # orders (atomic, accum)
        st.integers(1, 9),  # steps until the attempt stops
        st.integers(0, 3),  # micro-batches that a replica's loader is ahead
        st.sampled_from([0, 2]),  # sample_every
    ),
    min_size=1,
    max_size=5,
)


class Attempt:
    """All replicas of an attempt in lockstep. Each has its own sampler, as in separate processes."""

    def __init__(self, make: Callable[[], Any], size: int, bounds: Limits, state: Any, **options: Any) -> None:
        self.bounds = bounds
        self.samplers = [
            GlobalSampler(
                size, starting(bounds), replicas=bounds.replicas, rank=rank, seed=3, shuffle=True, most=bounds.max_local,
                own_order=OwnOrder(make(), size, **options),
            )
            for rank in range(bounds.replicas)
        ]  # fmt: skip
        self.ledgers = [Ledger() for _ in self.samplers]
        for sampler, ledger in zip(self.samplers, self.ledgers, strict=True):
            if state is not None:
                sampler.load_state_dict(state[0])
                ledger.load_state_dict(state[1])
                ledger.resume(sampler.cursor.consumed)

    def run(self, steps: int, orders: list[tuple[int, int]], ahead: int, seen: list[tuple[int, list[int]]]) -> Any:
        """Take up to `steps` steps of one epoch and append them to `seen` as (epoch, examples)."""
        streams = [iter(sampler) for sampler in self.samplers]
        for each in streams:  # a loader fetches more than is consumed
            each.__next__()
        queued = [[None] for _ in streams]
        for done in range(steps):
            if self.samplers[0].cursor.consumed >= self.samplers[0].size:
                break
            if done == 2 and orders:
                atomic, accum = orders[0]
                for sampler in self.samplers:
                    sampler.configure(ordered_configuration(self.bounds, done, atomic, accum))
            for stream, queue in zip(streams, queued, strict=True):
                queue += itertools.islice(stream, ahead)
            seen.append((self.samplers[0].cursor.epoch, self._step(streams, queued)))
        totals = [sum(values) for values in zip(*(each.counted() for each in self.ledgers), strict=True)]
        for sampler, ledger in zip(self.samplers, self.ledgers, strict=True):
            ledger.compare(totals, sampler.order(), sampler.cursor.consumed)
            if sampler.cursor.consumed == sampler.size:
                ledger.close(sampler.size)
                sampler.seek(sampler.cursor.epoch + 1)
        return self.samplers[0].state_dict(), self.ledgers[0].state_dict()

    def _step(self, streams: list[Any], queued: list[Any]) -> list[int]:
        taken: list[int] = []
        for sampler, stream, queue, ledger in zip(self.samplers, streams, queued, self.ledgers, strict=True):
            step = sampler.next_step()
            assert step is not None
            for micro in step.micros:
                if not queue:
                    queue.append(next(stream))
                queue.pop(0)
                taken += micro.indices
            ledger.record_step([index for micro in step.micros for index in micro.indices])
            sampler.commit(step)
        assert len(taken) == step.total
        return taken


@pytest.mark.parametrize("name", SAMPLERS)
@settings(max_examples=examples(50), deadline=None)
@given(size=st.integers(1, 60), base=st.integers(1, 12), history=phases)
def test_any_history_trains_what_an_own_sampler_yields_in_each_epoch(
    name: str, size: int, base: int, history: list[Any]
) -> None:
    def make() -> Any:
        return SAMPLERS[name](size)

    seen: list[tuple[int, list[int]]] = []
    state, lengths = None, set()
    for replicas, orders, steps, ahead, every in history:
        attempt = Attempt(make, size, Limits(base, 4 * base, base, replicas), state, batched=False)
        for sampler in attempt.samplers:
            sampler.sample_every = every
            lengths.add(sampler.steps_per_epoch)
        state = attempt.run(steps, orders, ahead, seen)
    alone = OwnOrder(make(), size, batched=False)
    assert state is not None
    for epoch in {epoch for epoch, _ in seen}:
        order = alone.draw(3, epoch).indices.tolist()
        at = 0
        for part in [part for each, part in seen if each == epoch]:
            assert sorted(part) == sorted(order[at : at + len(part)])
            at += len(part)
        assert at == len(order) or epoch == state[0]["epoch"]
    assert lengths == {-(-len(alone.draw(3, 0).indices) // base)}
    assert state[1]["exact"] == state[1]["epochs"] >= state[0]["epoch"]


@pytest.mark.parametrize("name", BATCHED)
@settings(max_examples=examples(50), deadline=None)
@given(size=st.integers(12, 60), local=st.integers(1, 20), history=phases)
def test_the_batches_of_a_batch_sampler_are_the_steps_on_any_number_of_replicas(
    name: str, size: int, local: int, history: list[Any]
) -> None:
    def make() -> Any:
        return BATCHED[name](size)

    seen: list[tuple[int, list[int]]] = []
    state, lengths = None, set()
    for replicas, orders, steps, ahead, _ in history:
        attempt = Attempt(make, size, Limits(6, 6, local, replicas, True), state, batched=True)
        lengths.add(attempt.samplers[0].steps_per_epoch)
        state = attempt.run(steps, orders, ahead, seen)
    alone = OwnOrder(make(), size, batched=True)
    assert state is not None
    for epoch in {epoch for epoch, _ in seen}:
        indices, ends, _ = alone.draw(3, epoch)
        assert ends is not None
        batches = [indices[begin:end].tolist() for begin, end in zip([0, *ends], ends, strict=False)]
        parts = [part for each, part in seen if each == epoch]
        assert [sorted(part) for part in parts] == [sorted(batch) for batch in batches[: len(parts)]]
        assert len(parts) == len(batches) or epoch == state[0]["epoch"]
    assert len(lengths) == 1
    assert state[1]["exact"] == state[1]["epochs"]


def test_a_large_batch_of_a_batch_sampler_is_not_split_if_it_fits() -> None:
    batches = [[0, 1, 2], [3, 4, 5, 6, 7, 8, 9]]
    for local, expected in ((16, [[3], [7]]), (4, [[3], [3, 4]])):
        bounds = Limits(4, 4, local, 1, True)
        drawn = OwnOrder(batches, 10, batched=True)
        sampler = GlobalSampler(
            10, starting(bounds), replicas=1, rank=0, seed=0, shuffle=True, most=local, own_order=drawn
        )  # fmt: skip
        list(sampler)
        steps = [step for step in (sampler.next_step(), sampler.next_step()) if step is not None]
        assert [step.counts for step in steps] == expected
        assert all(sum(micro.weight for micro in step.micros) == 1.0 for step in steps)


def together(makes: list[Callable[[], Any]]) -> None:
    """Replicas with these samplers compare their orders."""
    drawn = [OwnOrder(make(), 20, batched=False) for make in makes]
    rows: list[list[float]] = []
    for each in drawn:
        hold_together(each.draw(0, 0), lambda values: rows.append(values) or [values], each.name, 0)  # type: ignore[func-returns-value]
    for each in drawn:
        hold_together(each.draw(0, 0), lambda values: rows, each.name, 0)


def test_a_sampler_that_differs_between_replicas_is_named() -> None:
    together([lambda: OwnEpochs(20), lambda: OwnEpochs(20)])
    with pytest.raises(GpqTrainError, match="the sampler list yields a different order on each replica \\(epoch 0\\)"):
        together([lambda: list(range(20)), lambda: list(range(1, 21))])
    with pytest.raises(GpqTrainError, match="different order on each replica"):
        together([lambda: list(range(20)), lambda: list(range(19))])


def sampler_of(own: Any, tell: Callable[[str], None] = lambda line: None) -> GlobalSampler:
    bounds = Limits(4, 4, 4, 1)
    return GlobalSampler(
        20,
        starting(bounds),
        replicas=1,
        rank=0,
        seed=0,
        shuffle=True,
        own_order=OwnOrder(own, 20, batched=False),
        tell=tell,
    )


def test_an_epoch_that_cannot_be_drawn_again_keeps_its_order_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    first = sampler_of(Counting(20))
    first.seek(1, 0)
    list(first)
    first.seek(2, 0)
    whole = [index for batch in list(first) for index in batch]
    first.seek(2, 8)
    state = first.state_dict()
    told: list[str] = []
    again = sampler_of(Counting(20), told.append)
    again.load_state_dict(state)
    assert [index for batch in list(again) for index in batch] == whole[8:]
    assert len(told) == 1
    assert "the sampler Counting yields a different order for epoch 2 than before the restart" in told[0]
    again.seek(2, 12)
    assert torch.equal(again.state_dict()["order"]["indices"], state["order"]["indices"]), (
        "the order is kept after another restart too"
    )
    same = sampler_of(OwnEpochs(20), told.append)
    same.seek(2, 8)
    list(same)
    restarted = sampler_of(OwnEpochs(20), told.append)
    restarted.load_state_dict(same.state_dict())
    list(restarted)
    assert len(told) == 1, "the same order needs no notice"

    monkeypatch.setattr("gpq_agent.train.data.sampler.MOST_KEPT", 10)
    bare = first.state_dict()
    assert bare["order"]["indices"] is None
    refused = sampler_of(Counting(20))
    refused.load_state_dict(bare)
    with pytest.raises(GpqTrainError, match="yields a different order for epoch 2 than before the restart"):
        list(refused)


def test_a_checkpoint_from_mid_epoch_without_a_sampler_does_not_fit_a_sampler() -> None:
    plain = GlobalSampler(20, starting(Limits(4, 4, 4, 1)), replicas=1, rank=0, seed=0, shuffle=True)
    plain.seek(0, 8)
    with pytest.raises(GpqTrainError, match="in the middle of an epoch without a sampler"):
        sampler_of(OwnEpochs(20)).load_state_dict(plain.state_dict())
    own = sampler_of(OwnEpochs(20))
    own.seek(1, 4)
    list(own)
    with pytest.raises(GpqTrainError, match="in the middle of an epoch with a sampler"):
        plain.load_state_dict(own.state_dict())


class Forever:
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(20))


class ForeverInBatches:
    batch_size = 2

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.cycle([[1, 2]])


@pytest.mark.parametrize(
    ("sampler", "batched", "message"),
    [
        (Forever(), False, "the sampler Forever does not end: it yielded more than"),
        (ForeverInBatches(), True, "the sampler ForeverInBatches does not end"),
        ([], False, "the sampler list yields nothing in epoch 0"),
        ([[0, 1], []], True, "yields an empty batch"),
        ([[0, 1]], False, "needs integer indices, but list yields a list"),
        (["a"], False, "needs integer indices, but list yields a str"),
        ([0, 1], True, "batch_sampler= needs lists of indices, but list yields a int"),
        ([["a"]], True, "needs integer indices, but list yields a str"),
    ],
)
def test_an_invalid_order_gives_one_clear_line(
    sampler: Any, batched: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpq_agent.train.data.order.SLACK", 1000)
    with pytest.raises(GpqTrainError, match=message) as caught:
        OwnOrder(sampler, 20, batched=batched).draw(0, 0)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("batched", [False, True])
def test_a_distributed_sampler_is_refused_with_advice(batched: bool) -> None:
    sampler: Any = DistributedSampler(range(20), num_replicas=2, rank=0)  # type: ignore[arg-type]
    with pytest.raises(GpqTrainError, match="DistributedSampler splits the data over replicas") as caught:
        OwnOrder(BatchSampler(sampler, 4, drop_last=False) if batched else sampler, 20, batched=batched)
    assert "leave it out" in caught.value.hint
    OwnOrder(SequentialSampler(range(20)), 20, batched=False)
