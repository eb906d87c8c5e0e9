"""The global cursor: whatever happens to replicas and batch sizes, an epoch is each example once."""

from typing import Any

import pytest
import torch
from gpq_agent.train.batches import Configuration, Limits, ordered, shape_step, starting
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.sampler import GlobalSampler, permutation
from hypothesis import given
from hypothesis import strategies as st

phases = st.lists(
    st.tuples(
        st.integers(1, 5),  # replicas
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=3),  # orders (atomic, accum)
        st.integers(1, 12),  # steps until the attempt is stopped
        st.integers(0, 4),  # micro-batches that a replica's loader is ahead
        st.sampled_from([0, 2, 3]),  # sample_every
    ),
    min_size=1,
    max_size=6,
)


def limits(replicas: int, **changes: Any) -> Limits:
    return Limits(base_batch=7, max_batch=60, max_local=8, replicas=replicas)._replace(**changes)


class Replicas:
    """All replicas of an attempt in lockstep, each with a loader that runs ahead of consumption as DataLoader does."""

    def __init__(self, size: int, bounds: Limits, ahead: int, sample_every: int, state: dict[str, int] | None) -> None:
        self.bounds = bounds
        self.samplers = [
            GlobalSampler(size, starting(bounds), replicas=bounds.replicas, rank=rank, seed=3, shuffle=True)
            for rank in range(bounds.replicas)
        ]
        self.ahead = ahead
        for sampler in self.samplers:
            sampler.sample_every = sample_every
            if state is not None:
                sampler.load_state_dict(state)

    def run(self, steps: int, orders: list[tuple[int, int]], seen: dict[int, list[int]]) -> dict[str, int]:
        """Up to `steps` steps within one epoch; a new order halfway through each third. Returns the cursor."""
        cursor = self.samplers[0].cursor
        if cursor.consumed >= self.samplers[0].size:
            for sampler in self.samplers:
                sampler.seek(cursor.epoch + 1)
        streams = [iter(sampler) for sampler in self.samplers]
        queues: list[list[list[int]]] = [[] for _ in streams]
        done = 0
        while done < steps and self.samplers[0].cursor.consumed < self.samplers[0].size:
            if done % 3 == 1 and orders:
                atomic, accum = orders.pop()
                for sampler in self.samplers:
                    sampler.configure(ordered(self.bounds, done, atomic, accum))
            done += self._micro(streams, queues, seen)
        return self.samplers[0].state_dict()

    def _micro(self, streams: list[Any], queues: list[list[list[int]]], seen: dict[int, list[int]]) -> bool:
        last, totals, weights = set(), set(), []
        for rank, (sampler, stream, queue) in enumerate(zip(self.samplers, streams, queues, strict=True)):
            while len(queue) <= self.ahead:
                batch = next(stream, None)
                if batch is None:
                    break
                queue.append(batch)
            indices, issued = queue.pop(0), sampler.received()
            counted = issued.step.counts[issued.place]
            assert 1 <= len(indices) <= max(issued.step.configuration.atomic_batch, 1)
            assert len(indices) == max(counted, 1)
            if counted:
                seen.setdefault(issued.step.epoch, []).extend(indices)
            weights.append(issued.step.weight(issued.place, len(streams)) * issued.step.total - len(streams) * counted)
            if issued.last:
                sampler.consumed(issued.step)
            last.add(issued.last)
            totals.add((issued.step.start, issued.step.total))
            assert rank < len(streams)
        assert len(last) == 1, "all replicas synchronise in the same micro-batch"
        assert len(totals) == 1, "all replicas agree on what the step is"
        assert weights == pytest.approx([0.0] * len(weights))
        assert len({sampler.cursor for sampler in self.samplers}) == 1
        return last == {True}


@given(size=st.integers(1, 150), history=phases)
def test_any_history_of_replicas_orders_stops_and_prefetching_visits_each_example_once(
    size: int, history: list[Any]
) -> None:
    seen: dict[int, list[int]] = {}
    state: dict[str, int] | None = None
    for replicas, orders, steps, ahead, sample_every in history:
        state = Replicas(size, limits(replicas), ahead, sample_every, state).run(steps, list(orders), seen)
    while state is not None and state["consumed"] < size:
        state = Replicas(size, limits(1), 0, 0, state).run(1000, [], seen)
    for epoch, indices in seen.items():
        assert sorted(indices) == list(range(size)), f"epoch {epoch}"


@given(
    replicas=st.integers(1, 6),
    atomic=st.integers(1, 8),
    fewer=st.integers(1, 8),
    total=st.integers(1, 40),
    start=st.integers(0, 9),
)
def test_with_a_fixed_batch_a_step_holds_the_same_examples_on_any_number_of_replicas(
    replicas: int, atomic: int, fewer: int, total: int, start: int
) -> None:
    def first_step(count: int, bound: int) -> list[int]:
        bounds = limits(count, base_batch=total, fixed=True)
        result = []
        for rank in range(count):
            sampler = GlobalSampler(50, ordered(bounds, 1, bound, 0), replicas=count, rank=rank, seed=1, shuffle=True)
            sampler.seek(0, start)
            stream = iter(sampler)
            while True:
                indices = next(stream)
                issued = sampler.received()
                result += indices if issued.step.counts[issued.place] else []
                if issued.last:
                    break
        return sorted(result)

    assert first_step(replicas, atomic) == first_step(1, fewer)


def test_the_order_depends_on_seed_and_epoch_and_nothing_else() -> None:
    torch.manual_seed(1)
    first = permutation(4, 2, 100, shuffle=True)
    torch.manual_seed(2)
    assert torch.equal(first, permutation(4, 2, 100, shuffle=True))
    assert not torch.equal(first, permutation(4, 3, 100, shuffle=True))
    assert not torch.equal(first, permutation(5, 2, 100, shuffle=True))
    assert permutation(4, 2, 5, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@given(replicas=st.integers(1, 9), base=st.integers(1, 300), local=st.integers(1, 64))
def test_without_an_order_the_total_is_exactly_the_users_batch(replicas: int, base: int, local: int) -> None:
    configuration = starting(Limits(base, base * 4, local, replicas))
    assert configuration.total == base
    assert 1 <= configuration.atomic_batch <= local


@given(
    replicas=st.integers(1, 9), base=st.integers(1, 99), growth=st.integers(1, 9), local=st.integers(1, 64),
    atomic=st.integers(0, 200), accum=st.integers(-1, 20), fixed=st.booleans(),
)  # fmt: skip
def test_an_order_never_breaks_the_limits_of_the_script(
    replicas: int, base: int, growth: int, local: int, atomic: int, accum: int, fixed: bool
) -> None:
    bounds = Limits(base, base if fixed else base * growth, local, replicas, fixed)
    configuration = ordered(bounds, 5, atomic, accum)
    assert configuration.seq == 5
    assert 1 <= configuration.atomic_batch <= local
    assert 1 <= configuration.total <= bounds.max_batch
    if fixed:
        assert configuration.total == base


def test_an_order_within_the_limits_is_obeyed_to_the_letter() -> None:
    assert ordered(limits(2), 4, 6, 2) == Configuration(4, 6, 2, 36)


def test_a_single_replica_splits_a_sampled_batch_in_two_equal_halves() -> None:
    even = shape_step(0, 0, 100, Configuration(0, 12, 0, 12), 1, 0, sample=True)
    assert (even.counts, even.total, even.sampled, even.full) == ([6, 6], 12, True, False)
    odd = shape_step(0, 0, 100, Configuration(0, 13, 0, 13), 1, 0, sample=True)
    assert (odd.counts, odd.total, odd.sampled) == ([6, 6], 12, True), "the thirteenth waits for the next step"
    small = shape_step(0, 0, 100, Configuration(0, 3, 0, 3), 1, 0, sample=True)
    assert (small.counts, small.sampled) == ([3], False), "a step is never a third smaller for the sake of statistics"


def test_a_data_set_of_another_size_is_refused() -> None:
    sampler = GlobalSampler(10, starting(limits(1)), replicas=1, rank=0, seed=0, shuffle=True)
    other = GlobalSampler(11, starting(limits(1)), replicas=1, rank=0, seed=0, shuffle=True)
    with pytest.raises(GpqTrainError, match="11 examples, the checkpoint was made with 10"):
        other.load_state_dict(sampler.state_dict())


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(GpqTrainError, match="empty"):
        GlobalSampler(0, starting(limits(1)), replicas=1, rank=0, seed=0, shuffle=True)
