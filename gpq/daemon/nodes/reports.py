"""Lines of report.jsonl -> one Profiled event. It reads what a training process wrote, trusts none
of it, and decides nothing."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from gpq.core.freedoms import merge_habits
from gpq.core.model.events import Profiled, TimingSums
from gpq.core.model.placements import BatchOrder
from gpq.core.model.profile import FREEDOMS, Declared, Habit, LossPoint, Noise, Progress, RankTime
from gpq.core.model.units import JobId, Seconds

log = logging.getLogger(__name__)

MAX_NOTICE = 500  # characters kept of a line for the user
MAX_NAME = 200  # characters kept of the name of a metric
MAX_CODE = 64  # characters kept of a habit's code
MAX_HABIT = 300  # and of its description and its fix
MAX_LOSS = 1e30  # beyond it training has diverged, and sums would overflow
MAX_RANKS = 4096
MAX_INVALID = 1000  # invalid lines after which the rest of a piece is left out
MAX_COUNT = 1 << 53  # beyond it JSON and floats are not exact
MAX_BATCH, MAX_STEPS = 1 << 31, 1 << 20  # examples, and micro-batches of one step or of a report
STEP_BOUNDS = 1e-6, 1e6  # seconds of one step
NOISE_BOUNDS = 1e-30, 1e30  # of each gradient statistic that is not 0


def profiled_event(at: Seconds, job: JobId, attempt: int, offset: int, text: str) -> Profiled:
    """The event for whole lines `text`, which end at `offset` of the report file.

    Invalid lines are skipped, and the first one is logged. The other lines still count, up to
    MAX_INVALID, and the offset goes past them.
    """
    report = _Report()
    invalid, example = 0, ""
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            report.take(json.loads(line))
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            invalid += 1
            example = example or f"{error!r}: {line[:200]!r}"
            if invalid == MAX_INVALID:
                break
    if invalid:
        words = "job %s, attempt %s: %s invalid report lines, the first: %s"
        log.warning(words, job, attempt, invalid, example)
    return Profiled(
        at,
        job,
        attempt,
        offset,
        timings=tuple(report.timings),
        metrics=tuple(report.metrics.items()),
        losses=tuple(report.losses),
        notices=tuple(report.notices),
        habits=report.habits,
        **report.fields,
    )


class _Report:
    """What several lines say together. `fields` are those of which only the newest line counts."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.timings: list[TimingSums] = []
        self.metrics: dict[str, float] = {}
        self.losses: list[LossPoint] = []
        self.notices: list[str] = []
        self.habits: tuple[Habit, ...] = ()

    def take(self, message: Any) -> None:
        """One more line. Raises what an invalid line raises."""
        kind = message["kind"]
        match kind:
            case "timing":
                self.timings.append(_timing(message))
            case "metrics":
                values = {
                    _text(name, MAX_NAME): float(value)
                    for name, value in message["values"].items()
                    if value is not None
                }
                self.metrics.update(values)
            case "loss":
                point = LossPoint(_positive(message["base_steps"]), _number(message["loss"]))
                if abs(point.loss) > MAX_LOSS:
                    raise ValueError(f"{point} is beyond {MAX_LOSS}")
                self.losses.append(point)
            case "notice":
                self.notices.append(_text(message["message"], MAX_NOTICE))
            case "habit":
                self.habits = merge_habits(self.habits, [_habit(message)])
            case str() if kind in _READERS:
                field, read = _READERS[kind]
                self.fields[field] = read(message)
        if kind == "ready":
            self.fields["warm"] = message.get("warm") is True
            self.fields["restore_seconds"] = _positive(message.get("restore_seconds", 0.0))
        if kind == "checkpoint":
            self.fields["checkpoint_bytes"] = _count(message.get("bytes", 0))
            self.fields["checkpoint_step"] = _count(message.get("step", 0))


def _text(value: Any, most: int) -> str:
    """At most this many characters. Halves of surrogate pairs become question marks, because the
    database does not take them."""
    return str(value)[:most].encode("utf-8", "replace").decode("utf-8")


def _line(value: Any, most: int) -> str:
    """One line of printable characters, at most this many."""
    text = str(value)[: 4 * most]
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())[:most]


def _habit(message: Mapping[str, Any]) -> Habit:
    """Unknown freedoms are left out. Raises ValueError if none is left or there is no code: it says
    nothing."""
    names, code = message["freedoms"], message["code"]
    if not isinstance(names, list) or not isinstance(code, str):
        raise ValueError("freedoms must be a list, and a code must be a text")
    freedoms = tuple(freedom for freedom in FREEDOMS if freedom in names)
    code = _line(code, MAX_CODE)
    if not freedoms or not code:
        raise ValueError("a habit without a freedom or a code")
    return Habit(
        code,
        freedoms,
        _line(message.get("message", ""), MAX_HABIT),
        _line(message.get("cure", ""), MAX_HABIT),
        suspected=message.get("evidence") == "suspected",
    )


def _number(value: Any) -> float:
    """A finite float. Raises ValueError or TypeError: what is not a number must not reach a fit."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not finite")
    return number


def _positive(value: Any) -> float:
    number = _number(value)
    if number < 0:
        raise ValueError(f"{value} is below 0")
    if number > MAX_LOSS:
        raise ValueError(f"{value} is beyond {MAX_LOSS}")
    return number


def _count(value: Any, most: int = MAX_COUNT, least: int = 0) -> int:
    return int(_within(int(_positive(value)), least, most))


def _within(number: float, least: float, most: float) -> float:
    if not least <= number <= most:
        raise ValueError(f"{number} is not between {least} and {most}")
    return number


def _timing(message: Mapping[str, Any]) -> TimingSums:
    replicas = _count(message["replicas"], MAX_RANKS, least=1)
    sums = TimingSums(
        nodes=_count(message["nodes"], replicas, least=1),
        replicas=replicas,
        atomic_batch=_count(message["atomic_batch"], MAX_BATCH, least=1),
        accum_steps=_count(message["accum_steps"], MAX_STEPS),
        accum_count=_count(message["accum_count"], MAX_COUNT >> 20),
        accum_sum=_positive(message["accum_sum"]),
        step_count=_count(message["step_count"], MAX_COUNT >> 20),
        step_sum=_positive(message["step_sum"]),
    )
    if sums.step_count:
        _within(sums.step_sum / sums.step_count, *STEP_BOUNDS)
    if sums.accum_count and sums.accum_sum:
        _within(sums.accum_sum / sums.accum_count, *STEP_BOUNDS)
    return sums


def _declaration(message: Mapping[str, Any]) -> Declared:
    return Declared(
        adaptive=message["level"] == "adaptive",
        batch_size=_count(message.get("batch_size", 0), MAX_BATCH),
        max_batch_size=_count(message.get("max_batch_size", 0), MAX_BATCH),
        min_atomic_batch=_count(message.get("min_atomic_batch", 1), MAX_BATCH),
        max_atomic_batch=_count(message.get("max_atomic_batch", 0), MAX_BATCH),
        dataset_size=_count(message.get("dataset_size", 0)),
        epochs=_count(message.get("epochs", 0)),
        accumulation=bool(message.get("accumulation", True)),
        rule=_text(message.get("rule", ""), MAX_NAME),
        parameters=_count(message.get("parameters", 0)),
        passes=bool(message.get("passes", False)),
        adapter=_text(message.get("adapter", ""), MAX_NAME),
    )


def _ranks(message: Mapping[str, Any]) -> tuple[RankTime, ...]:
    steps = [_count(value) for value in message["steps"]]
    names = ("compute", "compute_p95", "whole", "wait", "fetch")
    columns = [[_positive(value) for value in message[name]] for name in names]
    if {len(column) for column in columns} != {len(steps)} or len(steps) > MAX_RANKS:
        raise ValueError("the ranks are too many, or have different numbers of values")
    return tuple(
        RankTime(rank, steps[rank], *row) for rank, row in enumerate(zip(*columns, strict=True))
    )


def _noise(message: Mapping[str, Any]) -> Noise:
    return Noise(
        sqr=_statistic(message["sqr"]),
        var=_statistic(message["var"]),
        samples=_count(message["samples"]),
        biased=bool(message.get("biased", False)),
        capped=bool(message.get("capped", False)),
    )


def _statistic(value: Any) -> float:
    number = _positive(value)
    return number and _within(number, *NOISE_BOUNDS)


def _progress(message: Mapping[str, Any]) -> Progress:
    return Progress(
        epoch=_count(message["epoch"]),
        epochs=_count(message["epochs"]),
        samples=_count(message["samples"]),
        step=_count(message["step"]),
        base_steps=_positive(message["base_steps"]),
        fraction=min(_positive(message["fraction"]), 1.0),
    )


def _batch_order(message: Mapping[str, Any]) -> BatchOrder:
    return BatchOrder(
        seq=_count(message.get("seq", 0)),
        atomic_batch=_count(message["atomic_batch"], MAX_BATCH),
        accum_steps=_count(message["accum_steps"], MAX_STEPS),
    )


_READERS = {
    "declared": ("declared", _declaration),
    "ready": ("ready", lambda _: True),
    "noise": ("noise", _noise),
    "progress": ("progress", _progress),
    "ranks": ("ranks", _ranks),
    "retuned": ("retuned", _batch_order),
    "checkpoint": ("checkpoint_seconds", lambda message: _positive(message["seconds"])),
}
