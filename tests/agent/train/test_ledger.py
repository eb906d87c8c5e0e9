"""What the ledger calls exact is exact, and it calls nothing else exact."""

from __future__ import annotations

import tracemalloc

import torch
from gpq_agent.train.loop.boundary import Ledger
from hypothesis import given
from hypothesis import strategies as st

ORDER = torch.randperm(50, generator=torch.Generator().manual_seed(1))


def count(ledger: Ledger, indices: list[int]) -> None:
    ledger.record_step(indices)


def settle(ledgers: list[Ledger], end: int) -> None:
    totals = [sum(values) for values in zip(*(each.counted() for each in ledgers), strict=True)]
    for each in ledgers:
        each.compare(totals, ORDER, end)


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(1, 3))
def test_an_epoch_in_any_pieces_on_any_replicas_is_exact(pieces: list[int], replicas: int) -> None:
    ledgers = [Ledger() for _ in range(replicas)]
    at = 0
    for piece in [*pieces, 50]:
        end = min(at + piece, 50)
        for rank, each in enumerate(ledgers):
            count(each, ORDER[at:end].tolist()[rank::replicas])
        settle(ledgers, end)
        at = end
    for each in ledgers:
        each.close(50)
        assert (each.passes, each.exact) == (1, 1)


@given(st.integers(0, 49), st.integers(0, 49))
def test_lost_repeated_and_swapped_examples_are_noticed(lost: int, other: int) -> None:
    for seen in (
        [i for i in ORDER.tolist() if i != lost],
        [*ORDER.tolist(), lost],
        [other if i == lost else i for i in ORDER.tolist()],
    ):
        ledger = Ledger()
        count(ledger, seen)
        settle([ledger], 50)
        ledger.close(50)
        assert ledger.exact == int(sorted(seen) == list(range(50)))


def test_a_resumed_epoch_is_exact_only_if_it_starts_where_the_proof_ended() -> None:
    first = Ledger()
    count(first, ORDER[:30].tolist())
    settle([first], 30)
    for consumed, exact in ((30, 1), (20, 0), (40, 0)):
        again = Ledger()
        again.load_state_dict(first.state_dict())
        again.resume(consumed)
        count(again, ORDER[consumed:].tolist())
        settle([again], 50)
        again.close(50)
        assert again.exact == exact


def test_an_audit_takes_no_memory_for_each_example() -> None:
    order = torch.randperm(200_000) + (1 << 31)  # squares whose sum leaves 64 bits
    ledger = Ledger()
    count(ledger, order.tolist())
    totals = ledger.counted()
    tracemalloc.start()
    try:
        ledger.compare(totals, order, len(order))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    ledger.close(len(order))
    assert ledger.exact == 1
    assert peak < 100_000
