"""What a batch may be: what was declared, by type of GPUs, and the candidates within it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpq.core.batches import BatchLimits, candidate_batches, limits_of
from gpq.core.profile import Declared


def test_limits_follow_the_declaration_and_a_fixed_batch_has_no_room() -> None:
    declared = Declared(adaptive=True, batch_size=32, max_batch_size=256, min_atomic_batch=4, max_atomic_batch=64)
    assert limits_of(declared) == BatchLimits(32, 256, 4, 64, True)
    fixed = Declared(adaptive=False, batch_size=32, max_batch_size=256)
    assert limits_of(fixed) == BatchLimits(32, 32, 1, 32, True)
    assert limits_of(Declared(adaptive=True)) is None


def test_a_type_with_limits_of_its_own_has_those() -> None:
    declared = Declared(adaptive=True, batch_size=32, max_batch_size=256, min_atomic_batch=4, max_atomic_batch=64)
    declared = replace(declared, atomic_by_type=(("T4", 8, 16),))
    assert limits_of(declared, "T4") == BatchLimits(32, 256, 8, 16)
    assert limits_of(declared, "A100") == limits_of(declared) == BatchLimits(32, 256, 4, 64)


def test_one_replica_that_has_to_accumulate_does_so_beyond_the_base_batch_only() -> None:
    limits = BatchLimits(32, 256, 1, 256, accumulate_alone=True)
    for replicas, least in ((1, 1.0), (2, 0.0)):
        atomic, accum, feasible = candidate_batches(limits, np.array([replicas]))
        totals = replicas * atomic * (accum + 1)
        assert (accum[feasible & (totals > 32)] == least).all()
        assert (accum[feasible & (totals == 32)] == 0).all()
