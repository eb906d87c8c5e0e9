"""Guesses the habit behind a difference, from what differs first and from the script's text.

gpq shows it as a guess. What the library itself reports is not a guess and comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpq.check.judgement.habit_words import habit
from gpq.check.judgement.judge import Finding, Judge
from gpq.check.records import Run
from gpq.check.shapes import Shape
from gpq.check.verdict import FoundHabit

LINES = (  # patterns in a script, the most suspicious first
    ("token-loss", re.compile(r"ignore_index|reduction\s*=\s*[\"']sum[\"']|\.sum\(\)\s*/")),
    (
        "hand-gradient",
        re.compile(r"\.grad\b\s*(?:[-+*/]?=|\.(?:data|add_|mul_|div_|clamp_|copy_|zero_))"),
    ),
    ("own-clip", re.compile(r"(?<!job\.)\bclip_grad_(?:norm|value)_\(")),
)


NEAR = 0.1  # parts of a batch may be uneven
PLAINER = {  # a habit -> habits that it may be mistaken for
    "own-rate": ("forgotten-scheduler",),
    "scaled-loss": ("own-clip", "hand-gradient", "token-loss", "by-pass"),
    "state-in-pieces": ("forgotten-copy", "not-kept"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that a guess uses. `reproducible` is None if nobody checked."""

    judge: Judge
    shape: Shape
    run: Run
    finding: Finding
    script: str  # its text
    reproducible: bool | None = None


def guess(case: Case) -> FoundHabit:
    """The first rule that fits."""
    for rule in RULES:
        suspicion = rule(case)
        if suspicion is not None:
            return suspicion
    raise AssertionError("the last rule always fits")


def _unseeded(case: Case) -> FoundHabit | None:
    if case.reproducible is False:
        return habit("not-reproducible")
    return None


def _rates(case: Case) -> FoundHabit | None:
    """Learning rates that differ no later than anything that follows from them."""
    finding = case.finding
    if finding.rates is None or finding.rates != finding.step:
        return None
    if finding.uneven:
        return habit("by-pass")
    restarts = [attempt.begin + 1 for attempt in case.shape.attempts[1:]]
    if finding.rates in restarts:
        return habit("forgotten-scheduler")
    return habit("own-rate")


def _hand_accumulation(case: Case) -> FoundHabit | None:
    steps = [step for number, step in sorted(case.judge.reference.steps.items()) if number]
    updates = [bool(step.rates) for step in steps]
    if any(updates) and not all(updates):
        return habit("hand-accumulation")
    return None


def _samples(case: Case) -> FoundHabit | None:
    samples = case.finding.samples
    if samples is not None and samples == case.finding.step:
        return habit("samples")
    return None


def _random(case: Case) -> FoundHabit | None:
    if drawn(case.judge.reference) or drawn(case.run):
        return habit("random")
    return None


def _scaled(case: Case) -> FoundHabit | None:
    """In the first step that differs, all gradients are off by one factor: a number of
    micro-batches or replicas."""
    number = case.finding.tensors
    if number is None:
        return None
    factor = case.judge.factor(number, case.run.steps[number])
    if factor is not None and any(_is_near(factor, count) for count in _parts(case.shape)):
        return habit("scaled-loss")
    return None


def _parts(shape: Shape) -> set[int]:
    """The numbers of parts that a batch of this shape may seem to have."""
    counts = {shape.micros, shape.replicas, shape.replicas * shape.micros}
    if shape.sample:
        counts.add(2 * shape.replicas)
    return counts - {1}


def _is_near(factor: float, count: int) -> bool:
    return abs(factor / count - 1) < NEAR or abs(factor * count - 1) < NEAR


def _batch_norm(case: Case) -> FoundHabit | None:
    if case.shape.cut:
        return batch_norm(case.judge.reference)
    return None


def _kept(case: Case) -> FoundHabit | None:
    """Something other than model and optimizer: averaged weights, or the script's own state."""
    names = [difference.what for difference in case.finding.differences]
    if not names or not all(name.startswith(("copy ", "user:")) for name in names):
        return None
    if case.shape.micros > 1 or case.shape.sample:
        return habit("state-in-pieces", _owner(names[0]))
    if names[0].startswith("copy "):
        return habit("forgotten-copy")
    return habit("not-kept", _owner(names[0]))


def _scheduled(case: Case) -> FoundHabit | None:
    """On several replicas a scheduler differs, and nothing that it could follow from."""
    names = [difference.what for difference in case.finding.differences]
    alone = bool(names) and all(name.startswith("scheduler:") for name in names)
    if alone and case.shape.replicas > 1:
        return habit("replicas-apart", names[0])
    return None


def _restart(case: Case) -> FoundHabit | None:
    """The state differs as soon as it is restored."""
    begins = [attempt.begin for attempt in case.shape.attempts[1:]]
    if case.finding.tensors in begins and case.finding.differences:
        return habit("not-kept", case.finding.differences[0].what)
    return None


def _mixed(case: Case) -> FoundHabit | None:
    if case.judge.rounding.mixed:
        return habit("mixed")
    return None


def _lines(case: Case) -> FoundHabit | None:
    for code, pattern in LINES:
        for number, line in enumerate(case.script.splitlines(), 1):
            if pattern.search(line.partition("#")[0]):
                return habit(code, str(number))
    return None


def _by_pass(case: Case) -> FoundHabit | None:
    return habit("by-pass")


def joined(guesses: list[FoundHabit | None]) -> list[FoundHabit | None]:
    """One habit can show in several shapes, more clearly in some. Their guess then applies to the
    other shapes too."""
    guess_by_code = {candidate.code: candidate for candidate in reversed(guesses) if candidate}
    plainer_guesses = {
        vague_code: guess_by_code[plain_code]
        for plain_code, vague_codes in PLAINER.items()
        if plain_code in guess_by_code
        for vague_code in vague_codes
    }
    return [
        plainer_guesses.get(candidate.code, candidate) if candidate else candidate
        for candidate in guesses
    ]


def drawn(run: Run) -> bool:
    """Did the loop body draw random numbers that belong to no example?"""
    return any(step.random for step in run.steps.values())


def own_epochs(run: Run) -> bool:
    """Did the loop start another epoch without job.epochs()?"""
    later_steps = [step for number, step in run.steps.items() if number and step.epoch > 0]
    return bool(run.facts and run.facts.loader and later_steps) and all(
        step.epochs == 0 for step in later_steps
    )


def _owner(name: str) -> str:
    return name.split(".")[0].removeprefix("user:")


RULES: tuple[Callable[[Case], FoundHabit | None], ...] = (
    _unseeded, _hand_accumulation, _samples, _rates, _random, _scaled, _batch_norm, _kept,
    _scheduled, _restart, _mixed, _lines, _by_pass,
)  # fmt: skip


def batch_norm(run: Run) -> FoundHabit | None:
    """If the script has batch norm: part of a batch may be too small for it."""
    if run.facts is None or not run.facts.batch_norms:
        return None
    return habit("batch-norm", ", ".join(run.facts.batch_norms[:2]))
