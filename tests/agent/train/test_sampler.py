"""The global cursor: whatever happens to replicas and batch sizes, each epoch has every example once."""

from typing import Any

import pytest
import torch
from gpq_agent.train.data.batches import (
    Configuration,
    Limits,
    Micro,
    Step,
    ordered_configuration,
    shape_step,
    share_of,
    starting,
)
from gpq_agent.train.data.order import permutation
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.errors import GpqTrainError
from hypothesis import given, settings
from hypothesis import strategies as st

phases = st.lists(
    st.tuples(
        st.integers(1, 5),  # replicas
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=3),  # orders (atomic, accum)
        st.integers(1, 12),  # steps until the attempt stops
        st.integers(0, 4),  # micro-batches that a replica's loader is ahead
        st.sampled_from([0, 2, 3]),  # sample_every
    ),
    min_size=1,
    max_size=6,
)


def limits(replicas: int, **changes: Any) -> Limits:
    return Limits(base_batch=7, max_batch=60, max_local=8, replicas=replicas)._replace(**changes)


class Replicas:
    """All replicas of an attempt in lockstep, each with a loader that fetches ahead as DataLoader does."""

    def __init__(
        self, size: int, bounds: Limits, ahead: int, sample_every: int, state: dict[str, Any] | None, **options: Any
    ) -> None:
        self.bounds = bounds
        self.samplers = [
            GlobalSampler(
                size, starting(bounds), replicas=bounds.replicas, rank=rank, seed=3, shuffle=True,
                most=bounds.max_local, **options,
            )
            for rank in range(bounds.replicas)
        ]  # fmt: skip
        self.steps: list[Step] = []  # of rank 0
        # What is left of the running step, by rank.
        self.running: list[list[tuple[Step, Micro]]] = [[] for _ in self.samplers]
        self.ahead = ahead
        self.taken: list[int] = []  # of the current step, by all replicas
        for sampler in self.samplers:
            sampler.sample_every = sample_every
            if state is not None:
                sampler.load_state_dict(state)

    def run(self, steps: int, orders: list[tuple[int, int]], seen: dict[int, list[int]]) -> dict[str, Any]:
        """Take up to `steps` steps within one epoch, with new orders on the way. Returns the cursor."""
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
                    sampler.configure(ordered_configuration(self.bounds, done, atomic, accum))
            done += self._micro(streams, queues, seen)
        return self.samplers[0].state_dict()

    def _micro(self, streams: list[Any], queues: list[list[list[int]]], seen: dict[int, list[int]]) -> bool:
        """Receive one micro-batch on every replica. After the last one of a step, check that step."""
        last, steps = set(), []
        for sampler, stream, queue in zip(self.samplers, streams, queues, strict=True):
            while len(queue) <= self.ahead:
                batch = next(stream, None)
                if batch is None:
                    break
                queue.append(batch)
            if not self.running[sampler.rank]:
                step = sampler.next_step()
                assert step is not None
                self.running[sampler.rank] = [(step, micro) for micro in step.micros]
            step, micro = self.running[sampler.rank].pop(0)
            indices = queue.pop(0)
            repeated = min(2, step.total, self.bounds.max_local)
            assert indices == micro.batch
            assert len(indices) == (len(micro.indices) or repeated), "not a single example either"
            assert not micro.indices or micro.indices == indices
            assert len(indices) <= self.bounds.max_local
            self.taken += micro.indices
            steps.append(step)
            if micro.last:
                sampler.commit(step)
            last.add(micro.last)
        assert len(last) == 1, "all replicas synchronise in the same micro-batch"
        if last == {True}:
            self._check(steps)
            order = self.samplers[0].order().tolist()
            assert sorted(self.taken) == sorted(order[steps[0].start : steps[0].start + steps[0].total])
            seen.setdefault(steps[0].epoch, []).extend(self.taken)
            self.taken = []
            self.steps.append(steps[0])
        assert len({sampler.cursor for sampler in self.samplers}) == 1
        return last == {True}

    def _check(self, steps: list[Step]) -> None:
        """The same step on every replica, weights that form a mean, and no single example."""
        assert len({(step.epoch, step.start, step.total, step.sampled, step.full, step.inverse) for step in steps}) == 1
        replicas, total = len(steps), steps[0].total
        assert sum(sum(step.counts) for step in steps) == total
        weights = [micro.weight for step in steps for micro in step.micros]
        assert sum(weights) / replicas == pytest.approx(1.0)
        ones = sum(step.counts.count(1) for step in steps)
        if total >= 2 and self.bounds.max_local >= 2:
            assert ones <= (total % 2 if self.bounds.max_local == 2 else 0)
        if steps[0].sampled:
            parts = [sum(step.counts) for step in steps] if replicas > 1 else steps[0].counts
            assert len(parts) > 1
            assert steps[0].inverse == pytest.approx(sum(1 / part for part in parts) / len(parts))


@settings(deadline=None)
@given(size=st.integers(1, 150), local=st.integers(1, 9), base=st.integers(1, 20), history=phases)
def test_any_history_of_replicas_orders_stops_and_prefetching_visits_each_example_once(
    size: int, local: int, base: int, history: list[Any]
) -> None:
    seen: dict[int, list[int]] = {}
    state: dict[str, Any] | None = None
    steps = []
    for replicas, orders, count, ahead, sample_every in history:
        bounds = limits(replicas, base_batch=base, max_local=local)
        attempt = Replicas(size, bounds, ahead, sample_every, state)
        state = attempt.run(count, list(orders), seen)
        steps.append(attempt.samplers[0].steps_per_epoch)
    while state is not None and state["consumed"] < size:
        state = Replicas(size, limits(1), 0, 0, state).run(1000, [], seen)
    for epoch, indices in seen.items():
        assert sorted(indices) == list(range(size)), f"epoch {epoch}"
    assert set(steps) == {-(-size // base)}


@settings(deadline=None)
@given(size=st.integers(1, 150), base=st.integers(1, 20), history=phases)
def test_without_its_tail_an_epoch_leaves_less_than_a_base_batch(size: int, base: int, history: list[Any]) -> None:
    if size < base:
        with pytest.raises(GpqTrainError, match="drop_last=True leaves nothing"):
            Replicas(size, limits(1, base_batch=base), 0, 0, None, drop_last=True)
        return
    seen: dict[int, list[int]] = {}
    state: dict[str, Any] | None = None
    at_base = True
    for replicas, orders, count, ahead, sample_every in history:
        bounds = limits(replicas, base_batch=base)
        attempt = Replicas(size, bounds, ahead, sample_every, state, drop_last=True)
        assert attempt.samplers[0].steps_per_epoch == size // base
        state = attempt.run(count, list(orders), seen)
        at_base = at_base and all(step.total == base for step in attempt.steps)
        assert all(step.total >= base for step in attempt.steps)
        ended = attempt.samplers[0].cursor.consumed == attempt.samplers[0].size
        assert ended == (size - state["consumed"] < base)
    last = max(seen)
    for epoch, indices in seen.items():
        assert len(set(indices)) == len(indices)
        if epoch < last:
            assert size - len(indices) < base
            assert not at_base or len(indices) == size // base * base


@settings(deadline=None)
@given(total=st.integers(1, 200), replicas=st.integers(1, 9), bound=st.integers(1, 40), more=st.integers(0, 40))
def test_shares_cover_the_step_once_and_none_is_a_single_example(
    total: int, replicas: int, bound: int, more: int
) -> None:
    most = bound + more
    shares = [share_of(total, replicas, rank, bound, most) for rank in range(replicas)]
    places = [share.first + share.stride * number for share in shares for number in range(sum(share.counts))]
    assert sorted(places) == list(range(total))
    assert len({len(share.counts) for share in shares}) == 1
    counts = [count for share in shares for count in share.counts]
    assert max(counts) <= max(bound, min(3, most))
    assert all(share.counts[-1] > 0 or not any(share.counts) for share in shares), "empty micro-batches come first"
    if total >= 2 and most >= 2:
        assert counts.count(1) <= (total % 2 if most == 2 else 0)


@pytest.mark.parametrize("history", [[(1, 21)], [(3, 7)], [(2, 10), (1, 9), (4, 5)]])
def test_a_changed_batch_leaves_a_single_example_only_if_the_base_batch_does(
    history: list[tuple[int, int]],
) -> None:
    alone = 0
    for size in (*range(20, 120), 337):  # 337: both 16 and 21 leave a single example
        for replicas, atomic in history:
            bounds = Limits(base_batch=16, max_batch=64, max_local=32, replicas=replicas)
            attempt = Replicas(size, bounds, 0, 0, None)
            for sampler in attempt.samplers:
                sampler.configure(ordered_configuration(bounds, 1, atomic, 0))
            attempt.run(1000, [], {})
            ones = sum(step.total == 1 for step in attempt.steps)
            assert ones == 0 or size % 16 == 1
            alone += ones
    assert alone > 0, "a single example is left over as without gpq"


@settings(deadline=None)
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
            sampler = GlobalSampler(
                50, ordered_configuration(bounds, 1, bound, 0), replicas=count, rank=rank, seed=1, shuffle=True
            )
            sampler.seek(0, start)
            step = sampler.next_step()
            assert step is not None
            result += [index for micro in step.micros for index in micro.indices]
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


@settings(deadline=None)
@given(replicas=st.integers(1, 9), base=st.integers(1, 300), local=st.integers(1, 64))
def test_without_an_order_the_batch_size_is_that_of_the_user(replicas: int, base: int, local: int) -> None:
    configuration = starting(Limits(base, base * 4, local, replicas))
    assert configuration.total == base
    assert 1 <= configuration.atomic_batch <= local


@settings(deadline=None)
@given(
    replicas=st.integers(1, 9), base=st.integers(1, 99), growth=st.integers(1, 9), local=st.integers(1, 64),
    atomic=st.integers(0, 200), accum=st.integers(-1, 20), fixed=st.booleans(),
)  # fmt: skip
def test_an_order_never_breaks_the_limits_of_the_script(
    replicas: int, base: int, growth: int, local: int, atomic: int, accum: int, fixed: bool
) -> None:
    bounds = Limits(base, base if fixed else base * growth, local, replicas, fixed)
    configuration = ordered_configuration(bounds, 5, atomic, accum)
    assert configuration.seq == 5
    assert 1 <= configuration.atomic_batch <= local
    assert 1 <= configuration.total <= bounds.max_batch
    if fixed:
        assert configuration.total == base


def test_an_order_within_the_limits_is_followed_exactly() -> None:
    assert ordered_configuration(limits(2), 4, 6, 2) == Configuration(4, 6, 2, 36)


def test_a_single_replica_splits_a_sampled_batch_in_two_halves() -> None:
    even = shape_step(0, 0, range(12), Configuration(0, 12, 0, 12), 1, 0, sample=True)
    assert (even.counts, even.total, even.sampled, even.full) == ([6, 6], 12, True, False)
    odd = shape_step(0, 0, range(13), Configuration(0, 13, 0, 13), 1, 0, sample=True)
    assert (odd.counts, odd.total, odd.sampled) == ([6, 7], 13, True), "measuring does not change the batch"
    assert odd.inverse == pytest.approx((1 / 6 + 1 / 7) / 2)
    small = shape_step(0, 0, range(3), Configuration(0, 3, 0, 3), 1, 0, sample=True)
    assert (small.counts, small.sampled, small.inverse) == ([3], False, 0.0), (
        "a batch of three is not split, to avoid a single example"
    )


@settings(deadline=None)
@given(
    total=st.integers(1, 90), replicas=st.integers(1, 7), atomic=st.integers(1, 20), accum=st.integers(0, 3),
    most=st.integers(2, 30), left=st.integers(1, 200),
)  # fmt: skip
def test_a_sampled_step_has_the_same_examples_as_any_other(
    total: int, replicas: int, atomic: int, accum: int, most: int, left: int
) -> None:
    configuration = Configuration(0, atomic, accum, total)
    pairs = [
        [
            shape_step(2, 5, range(min(total, left)), configuration, replicas, rank, sample, most=most)
            for sample in (False, True)
        ]
        for rank in range(replicas)
    ]
    assert len({(step.sampled, step.inverse) for _, step in pairs}) == 1
    for plain, step in pairs:
        assert (step.total, step.start, sum(step.counts)) == (plain.total, plain.start, sum(plain.counts))
        assert [index for micro in step.micros for index in micro.indices] == [
            index for micro in plain.micros for index in micro.indices
        ]
        assert not plain.sampled
        assert plain.inverse == 0.0
    shares = [sum(step.counts) for _, step in pairs]
    sampled = pairs[0][1]
    if sampled.sampled:
        parts = shares if replicas > 1 else sampled.counts
        assert min(parts) > 0
        assert sampled.inverse == pytest.approx(sum(1 / part for part in parts) / len(parts))
    else:
        assert total > left or min(shares) == 0 or (replicas == 1 and total < 4), (
            "a step is left out of sampling only for a reason"
        )


def test_a_data_set_of_a_different_size_is_refused() -> None:
    sampler = GlobalSampler(10, starting(limits(1)), replicas=1, rank=0, seed=0, shuffle=True)
    other = GlobalSampler(11, starting(limits(1)), replicas=1, rank=0, seed=0, shuffle=True)
    with pytest.raises(GpqTrainError, match="11 examples, but it had 10 when the checkpoint was written"):
        other.load_state_dict(sampler.state_dict())


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(GpqTrainError, match="empty"):
        GlobalSampler(0, starting(limits(1)), replicas=1, rank=0, seed=0, shuffle=True)


@pytest.mark.parametrize(("replicas", "last"), [(1, 10), (2, 50)])
def test_one_replica_samples_less_and_less_often(replicas: int, last: int) -> None:
    """On one replica a sampled step costs a second pass. Counts the samples in the last 1,000 of 6,000 steps."""
    bounds = Limits(8, 8, 8, replicas)
    attempt = Replicas(8 * 6000, bounds, 0, 20, None)
    attempt.run(6000, [], {})
    sampled = [step.sampled for step in attempt.steps]
    assert sum(sampled[:40]) == 20
    assert sum(sampled[-1000:]) == last
