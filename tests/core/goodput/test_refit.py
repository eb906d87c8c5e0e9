"""What a model predicted needs no new fit. A surprise does."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.goodput import goodput as gp
from gpq.core.goodput.models import FEW, TOLERANCE, foreseen
from gpq.core.model.profile import Noise, Profile, ProfileRow
from gpq.core.state.learn_profile import refresh

TRUTH = gp.ThroughputParams(0.02, 0.002, 0.0, 0.0, 0.01, 0.002, 1.5)


def measured(replicas: int, atomic: int, *, nodes: int = 1, times: float = 1.0, gpu_type: str = "") -> ProfileRow:
    grad = float(gp.grad_time(TRUTH, atomic)) * times
    step = float(gp.step_time(TRUTH, nodes, replicas, atomic)) * times
    return ProfileRow(nodes, replicas, atomic, grad, step, 300.0, gpu_type)


SEEN = tuple(measured(replicas, atomic) for replicas in (1, 2, 4) for atomic in (16, 64))


def test_only_what_the_model_gives_is_predicted() -> None:
    assert foreseen(SEEN, [measured(2, 32)])
    assert foreseen(SEEN, [measured(4, 48), measured(1, 32)])
    assert not foreseen(SEEN, [measured(2, 32, times=1.0 + 3 * TOLERANCE)])
    assert not foreseen(SEEN, [measured(2, 32), measured(4, 32, times=1.0 - 3 * TOLERANCE)])
    slow = replace(measured(2, 32), grad_time=1.5 * measured(2, 32).grad_time)
    assert not foreseen(SEEN, [slow]), "gradients count too"


def test_nothing_is_predicted_without_similar_measurements() -> None:
    alone = tuple(measured(1, atomic) for atomic in (8, 16, 32, 64))
    assert foreseen(alone, [measured(1, 48)])
    assert not foreseen(alone, [measured(2, 48)]), "several replicas"
    assert not foreseen(SEEN, [measured(4, 32, nodes=2)]), "several nodes"
    assert not foreseen(SEEN, [measured(2, 32, gpu_type="T4")]), "another type of GPU"
    assert not foreseen(SEEN[: FEW - 1], [measured(1, 32)]), "a model of few rows"
    assert not foreseen(SEEN, [measured(2, 20 + k) for k in range(4)]), "many rows are worth a new model"


def test_the_basis_stays_until_something_surprises() -> None:
    first = refresh(Profile(rows=SEEN, noise=Noise(1.0, 500.0, 1000)))
    assert first.basis == SEEN
    like = refresh(replace(first, rows=tuple(sorted((*SEEN, measured(2, 32)), key=str))))
    assert like.basis is first.basis
    surprised = refresh(replace(like, rows=(*like.rows, measured(2, 40, times=1.3))))
    assert len(surprised.basis) == len(SEEN) + 2, "all that was measured, foreseen or not"
