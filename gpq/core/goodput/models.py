"""The model of a job: what is fitted to its profile, and what the fit leaves over. The same
question gets the same object. Models are fitted together and remembered. `foreseen` says whether
new measurements need a new fit: only surprises teach.

Reads a job's profile. None always means "not known yet".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

from gpq.core.goodput.batches import BatchLimits, limits_of
from gpq.core.goodput.fitting import fit_many
from gpq.core.goodput.goodput import (
    GradientStats,
    ThroughputParams,
    grad_time,
    stats_of,
    step_time,
)
from gpq.core.goodput.observations import is_usable
from gpq.core.goodput.residuals import Correction, corrections
from gpq.core.model.profile import Declared, Noise, Profile, ProfileRow

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_NOTHING: Any = object()
LEAST_REMEMBERED = 4096  # models
TOLERANCE = 0.05  # relative error of step and gradient times, as of a model with much data
FEW = 4  # a model based on this many rows is fitted again after every other row
# predicted rows, relative to the rows of the fit, beyond which a new fit is worth it anyway
SHARE = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The throughput model and gradient statistics of one job. The same question gets the same
    object, and it equals no other."""

    params: ThroughputParams
    stats: GradientStats | None
    limits: BatchLimits
    correction: Correction


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """What a model is based on. Equal only if its parts are the very same objects, so nothing is
    compared."""

    basis: tuple[ProfileRow, ...]
    declared: Declared
    noise: Noise | None
    gpu_type: str

    def __hash__(self) -> int:
        return hash((id(self.basis), id(self.declared), id(self.noise), self.gpu_type))

    def __eq__(self, question: object) -> bool:
        return (
            isinstance(question, _Asked)
            and self.basis is question.basis
            and self.declared is question.declared
            and self.noise is question.noise
            and self.gpu_type == question.gpu_type
        )


def expect(jobs: int) -> None:
    """Make room for the models of this many jobs, so that rounds of a large queue need not repeat
    the fits."""
    _models.room = max(LEAST_REMEMBERED, 3 * jobs)
    _fits.room = _models.room


def model_of(profile: Profile, gpu_type: str = "") -> Model | None:
    """None until the script has declared a batch and one configuration was timed."""
    question = _question(profile, gpu_type)
    return _models.one(question) if question is not None else None


def _question(profile: Profile, gpu_type: str) -> _Asked | None:
    if profile.declared is None or not profile.basis:
        return None
    return _Asked(profile.basis, profile.declared, profile.noise_basis, gpu_type)


def models_of(pairs: Iterable[tuple[Profile, str]]) -> list[Model | None]:
    """`model_of` of many. Unknown models are fitted together, which is far quicker than one by
    one."""
    return _models.known([_question(profile, gpu_type) for profile, gpu_type in pairs])


def _make(questions: Sequence[_Asked]) -> list[Model | None]:
    fits = _fits.many([rows_on(question.basis, question.gpu_type) for question in questions])
    models: list[Model | None] = []
    for question, fit in zip(questions, fits, strict=True):
        limits = limits_of(question.declared, question.gpu_type)
        if fit is None or limits is None:
            models.append(None)
        else:
            params, correction = fit
            models.append(Model(params, stats_of(question.noise), limits, correction))
    return models


def _fit(
    profiles: Sequence[tuple[ProfileRow, ...]],
) -> list[tuple[ThroughputParams, Correction] | None]:
    """The fit of each and its errors. None if there is none."""
    answers: list[tuple[ThroughputParams, Correction] | None] = [None] * len(profiles)
    fits = [(n, params) for n, params in enumerate(fit_many(profiles)) if params is not None]
    fit_corrections = corrections([(profiles[number], params) for number, params in fits])
    for (number, params), correction in zip(fits, fit_corrections, strict=True):
        if np.isfinite((*astuple(params), *correction.weights)).all():
            answers[number] = params, correction
    return answers


def is_beyond(profile: Profile) -> bool:
    """Was it measured, and yet no model fits what was measured?"""
    question = _question(profile, "")
    if question is None or limits_of(question.declared) is None:
        return False
    return any(map(is_usable, question.basis)) and _models.one(question) is None


def times_at(rows: tuple[ProfileRow, ...], reference: ProfileRow) -> tuple[float, float] | None:
    """Gradient and step time in seconds, in the configuration of `reference`, by the model of
    `rows`. None if there is none."""
    fit = _fits.one(rows_on(rows, reference.gpu_type))
    if fit is None:
        return None
    params, correction = fit
    factor = float(
        correction.factor(np.array([reference.nodes]), np.array([reference.replicas]))[0]
    )
    step = (
        float(step_time(params, reference.nodes, reference.replicas, reference.atomic_batch))
        * factor
    )
    return float(grad_time(params, reference.atomic_batch)) * factor, step


@lru_cache(maxsize=8192)
def rows_on(rows: tuple[ProfileRow, ...], gpu_type: str) -> tuple[ProfileRow, ...]:
    """Rows measured on one type. If there are none, the rows of the type with most weight count, as
    if this type had the same throughput (`transfer.inform` adds scaled rows first). The same if
    no type is asked for."""
    weights: dict[str, float] = {}
    for row in rows:
        weights[row.gpu_type] = weights.get(row.gpu_type, 0.0) + row.weight
    if len(weights) <= 1:
        return rows
    source_type = (
        gpu_type if gpu_type in weights else max(sorted(weights), key=lambda name: weights[name])
    )
    return tuple(row for row in rows if row.gpu_type == source_type)


def foreseen(basis: tuple[ProfileRow, ...], rows: Sequence[ProfileRow]) -> bool:
    """Does the model of `basis` give the times of `rows`, each within TOLERANCE, if it has seen
    similar ones: the type of GPU, several replicas, several servers?"""
    if len(basis) < FEW or len(rows) > SHARE * len(basis):
        return False
    # What no row shows is optimistic (`fitting`), so neither that nor anything beyond it is
    # predicted.
    kinds = set(map(_kind, basis))
    for row in rows:
        predicted = times_at(basis, row) if _kind(row) in kinds else None
        if predicted is None or not _near(predicted[1], row.step_time):
            return False
        if row.grad_time > 0 and not _near(predicted[0], row.grad_time):
            return False
    return True


def _kind(row: ProfileRow) -> tuple[str, bool, bool]:
    return row.gpu_type, row.replicas > 1, row.nodes > 1


def _near(predicted: float, measured: float) -> bool:
    return min(predicted, measured) > 0 and abs(math.log(predicted / measured)) <= TOLERANCE


class Memo(Generic[K, V]):
    """`compute` answers a list of different questions in their order. Beyond `room` the oldest
    answers are forgotten.

    Several threads may ask. At worst an answer is computed twice.
    """

    def __init__(
        self, compute: Callable[[Sequence[K]], Sequence[V]], room: int, failed: Any = _NOTHING
    ) -> None:
        """`failed`: the answer to a question that `compute` cannot answer. The others are answered
        without it. By default the error is raised."""
        self._compute, self._failed = compute, failed
        self._answers: dict[K, V] = {}
        self.room = room

    def one(self, question: K) -> V:
        try:
            return self._answers[question]
        except KeyError:
            return self.many([question])[0]

    def many(self, questions: Sequence[K]) -> list[V]:
        answers: list[V] = [self._answers.get(question, _NOTHING) for question in questions]
        places: dict[K, list[int]] = {}
        for place, answer in enumerate(answers):
            if answer is _NOTHING:
                places.setdefault(questions[place], []).append(place)
        if places:
            for (question, same), answer in zip(
                places.items(), self._values(list(places)), strict=True
            ):
                self._answers[question] = answer
                for place in same:
                    answers[place] = answer
        while len(self._answers) > self.room:
            with suppress(KeyError, StopIteration, RuntimeError):
                del self._answers[next(iter(self._answers))]
        return answers

    def known(self, questions: Sequence[K | None]) -> list[V | None]:
        """`many`, and None where there is no question."""
        answers = iter(self.many([question for question in questions if question is not None]))
        return [next(answers) if question is not None else None for question in questions]

    def _values(self, questions: Sequence[K]) -> Sequence[V]:
        try:
            return self._compute(questions)
        except Exception:
            if self._failed is _NOTHING:
                raise
            if len(questions) == 1:
                return [self._failed]
            return [self._values([question])[0] for question in questions]

    def clear(self) -> None:
        self._answers.clear()


_fits: Memo[tuple[ProfileRow, ...], tuple[ThroughputParams, Correction] | None] = Memo(
    _fit, LEAST_REMEMBERED, failed=None
)
_models: Memo[_Asked, Model | None] = Memo(_make, LEAST_REMEMBERED, failed=None)
