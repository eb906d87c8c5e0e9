"""Guesses the habit behind a difference, from what differs first and from the script's text.

gpq shows it as a guess. What the library itself reports is not a guess and comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpq_agent import wire

from gpq.check.judge import Finding, Judge
from gpq.check.records import Run
from gpq.check.shapes import Shape
from gpq.source import Script
from gpq.verdicts import FoundHabit

# code -> what the loop does, and the cure
# fmt: off
WORDS = {
    **wire.HABIT_WORDS,
    "not-reproducible": (
        "two runs in the same shape differ, so something is not seeded",
        "seed everything random, and call torch.use_deterministic_algorithms(True)"),
    "own-loader": (
        "optimizer.step() runs outside the loop over job.loader(), so every replica trains on all"
        " of the data",
        "take the batches from job.loader()"),
    "samples": (
        "the examples of a step depend on the shape, so the script has its own order or loader",
        "take the batches from job.loader(), in its order"),
    "forgotten-scheduler": (
        "the learning rate starts again after a restart, because its scheduler or count is in no"
        " checkpoint",
        "call job.prepare(model, optimizer, scheduler)"),
    "random": (
        "the loop draws random numbers for a whole batch, so they differ in parts of it",
        "draw them per example in the data set, or leave them if only their distribution matters"),
    "mixed": (
        "the loss mixes the examples of a batch, so a part of a batch has another loss",
        "if you want this (contrastive losses, mixup), use one replica and a max_local_batch that"
        " fits the whole batch"),
    "scaled-loss": (
        "the loop scales the loss itself, so the gradient of a step is too large by the number of"
        " its parts",
        "make the loss a mean over the examples of the batch that the loop gets, because gpq weighs"
        " the parts"),
    "token-loss": (
        "the loss is not a mean over examples (line {})",
        "call job.weigh(tokens) before backward(), or use a mean over the examples that the loop"
        " gets, padding included"),
    "not-kept": (
        "a restart changes {}",
        "use job.state(thing) for everything that must survive a restart"),
    "forgotten-copy": (
        "job.state() was not given a copy of the model's weights, so a restart resets it",
        "call job.state(copy), and update the copy only when job.at_step is true"),
    "replicas-apart": (
        "replicas do not train alike: a scheduler ({}) gets a value that each replica computes from"
        " its own examples",
        "give the scheduler the same metric on all replicas, computed over all of the data, such as"
        " a validation loss"),
    "by-pass": (
        "the loop does something in every pass that it should do once per step, or its loss is not"
        " a mean over examples",
        "do it only when job.at_step is true, count steps with job.step, and call job.weigh(tokens)"
        " if the loss is a mean over tokens"),
}
# fmt: on
NEAR = 0.1  # parts of a batch may be uneven
# A habit -> the habit that it may be, if that shows in another shape.
PLAINER = {
    "forgotten-scheduler": "own-rate",
    "token-loss": "scaled-loss",
    "by-pass": "scaled-loss",
    "not-kept": "state-in-pieces",
}


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that a guess uses. `reproducible` is None if nobody checked."""

    judge: Judge
    shape: Shape
    run: Run
    finding: Finding
    script: Script
    reproducible: bool | None = None


def guess(case: Case) -> FoundHabit:
    cause = _of_inputs(case) or _of_state(case)
    if cause is not None:
        return cause
    number, shape = case.finding.tensors, case.shape
    factor = None if number is None else case.judge.factor(number, case.run.steps[number])
    if factor is not None:
        # In the first step that differs, all gradients are off by this factor. Is it a number of
        # parts that a batch of this shape may seem to have?
        counts = {shape.micros, shape.replicas, shape.replicas * shape.micros}
        if shape.sample:
            counts.add(2 * shape.replicas)
        gaps = [abs(ratio - 1) for n in counts - {1} for ratio in (factor / n, factor * n)]
        if min(gaps, default=NEAR) < NEAR:
            return habit("scaled-loss")
    if case.judge.rounding.mixed:
        return habit("mixed")
    line = case.script.token_loss()
    return habit("by-pass") if line is None else habit("token-loss", str(line))


def _of_inputs(case: Case) -> FoundHabit | None:
    """What differs no later than anything that follows from it: examples, learning rates, random
    numbers."""
    finding = case.finding
    if case.reproducible is False:
        return habit("not-reproducible")
    if finding.samples == finding.step:
        return habit("samples")
    if finding.step is not None and finding.rates == finding.step:
        if finding.uneven:
            return habit("by-pass")
        is_restart = finding.step - 1 in case.shape.restarts
        return habit("forgotten-scheduler" if is_restart else "own-rate")
    if draws_numbers(case.judge.reference) or draws_numbers(case.run):
        return habit("random")
    return None


def _of_state(case: Case) -> FoundHabit | None:
    """What differs besides model and optimizer, or as soon as it is restored."""
    names = [difference.what for difference in case.finding.differences]
    if not names:
        return None
    if all(name.startswith(("copy ", "user:")) for name in names):
        if names[0].startswith("copy "):
            return habit("forgotten-copy")
        is_in_pieces = case.shape.micros > 1 or case.shape.sample
        owner = names[0].split(".")[0].removeprefix("user:")
        return habit("state-in-pieces" if is_in_pieces else "not-kept", owner)
    if all(name.startswith("scheduler:") for name in names) and case.shape.replicas > 1:
        return habit("replicas-apart", names[0])
    if case.finding.tensors in case.shape.restarts:
        return habit("not-kept", names[0])
    return None


def join(guesses: list[FoundHabit | None]) -> list[FoundHabit | None]:
    """One habit can show in several shapes, more clearly in some. Their guess then applies to the
    other shapes too."""
    guess_by_code = {candidate.code: candidate for candidate in reversed(guesses) if candidate}
    return [
        guess_by_code.get(PLAINER.get(candidate.code, ""), candidate) if candidate else None
        for candidate in guesses
    ]


def habit(code: str, *words: str) -> FoundHabit:
    """A guess, or a habit that needs none."""
    message, cure = WORDS[code]
    return FoundHabit(code, [], message.format(*words), cure)


def draws_numbers(run: Run) -> bool:
    """Did the loop body draw random numbers that belong to no example?"""
    return any(step.random for step in run.steps.values())
