"""The probable habit behind a difference: what the loop does, judged by what differs first, and by
the script's own text.

A guess, and shown as one; what the library told is no guess and comes before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpq.check.comparing import Finding, Judge
from gpq.check.records import Run
from gpq.check.shapes import Shape
from gpq.check.verdict import FoundHabit

# code -> what the loop does, what gives the freedom back. The library's words where it has the same
# habit.
WORDS = {
    "not-reproducible": (
        "two runs in one and the same shape differ: something is not seeded",
        "seed what draws random numbers, and torch.use_deterministic_algorithms(True)",
    ),
    "own-loader": (
        (
            "optimizer.step() runs outside the loop over job.loader(): every replica trains on all"
            " of the data"
        ),
        "take the batches from job.loader()",
    ),
    "own-epochs": (
        (
            "the loop over the loader is outside job.epochs(), so it begins anew at epoch 0 after a"
            " restart"
        ),
        "for epoch in job.epochs(count):",
    ),
    "samples": (
        "the examples of a step depend on the shape: an order or a loader of the script's own",
        "take the batches from job.loader(), in the order that it gives",
    ),
    "hand-accumulation": (
        "a step of the loader ended without optimizer.step(): the loop accumulates by itself",
        (
            "call optimizer.step() in every pass of the loop; gpq accumulates where a batch does"
            " not fit"
        ),
    ),
    "own-rate": (
        "the loop sets the learning rate by a count of its own",
        "compute it from job.step, or give a scheduler to job.prepare()",
    ),
    "forgotten-scheduler": (
        (
            "the learning rate begins anew after a restart: a scheduler, or a count, that no"
            " checkpoint has"
        ),
        "job.prepare(model, optimizer, scheduler)",
    ),
    "random": (
        "the loop draws random numbers for a batch as a whole, so they fall otherwise in its parts",
        (
            "draw them in the data set, by example; where only their distribution counts, nothing"
            " is wrong"
        ),
    ),
    "mixed": (
        "the examples of a batch are mixed with each other, so a part of a batch has another loss",
        (
            "nothing is to be done if that is wanted (contrastive losses, mixup): keep to one"
            " replica and max_local_batch"
        ),
    ),
    "scaled-loss": (
        (
            "the loop scales the loss by hand: the gradient of a step comes out as many times as"
            " large as it has parts"
        ),
        "leave the loss a mean over the examples of the batch in hand: gpq weighs the parts",
    ),
    "batch-norm": (
        "batch norm ({}) takes its statistics from the examples that are together on one device",
        "layer or group norm, or SyncBatchNorm where there are several replicas",
    ),
    "own-clip": (
        "the loop clips gradients by itself (line {})",
        "job.clip_grad_norm_(max_norm), after backward",
    ),
    "hand-gradient": (
        "the loop edits gradients by itself (line {})",
        "do it where job.at_step is true",
    ),
    "token-loss": (
        "the loss is no mean over examples (line {})",
        (
            "job.weigh(tokens) before backward(), or a mean over the examples of the batch in hand,"
            " padding included"
        ),
    ),
    "not-kept": (
        "{} is not what it was after a restart",
        "job.state(thing) for what is to outlive a restart",
    ),
    "forgotten-copy": (
        (
            "a copy of the model's weights was not given to job.state(): it begins anew after a"
            " restart"
        ),
        "job.state(copy), and update it where job.at_step is true",
    ),
    "state-in-pieces": (
        "what was given to job.state() ({}) changes in every micro-batch, not once a step",
        "update it where job.at_step is true",
    ),
    "replicas-apart": (
        (
            "replicas do not train alike: a scheduler ({}) is given something that this replica has"
            " computed of its own examples"
        ),
        (
            "a scheduler wants the same metric on all: one over all of the data, as a validation"
            " loss is"
        ),
    ),
    "by-pass": (
        (
            "the loop does something once a pass of its body that belongs once to a step, or its"
            " loss is no mean over examples"
        ),
        (
            "do it where job.at_step is true; job.step counts the steps; where a loss is a mean"
            " over tokens, job.weigh(tokens)"
        ),
    ),
}
LINES = (  # what stands in a script, in the order of suspicion
    ("token-loss", re.compile(r"ignore_index|reduction\s*=\s*[\"']sum[\"']|\.sum\(\)\s*/")),
    (
        "hand-gradient",
        re.compile(r"\.grad\b\s*(?:[-+*/]?=|\.(?:data|add_|mul_|div_|clamp_|copy_|zero_))"),
    ),
    ("own-clip", re.compile(r"(?<!job\.)\bclip_grad_(?:norm|value)_\(")),
)


NEAR = 0.1  # parts of a batch may be uneven
PLAINER = {  # a habit -> what it may be taken for
    "own-rate": ("forgotten-scheduler",),
    "scaled-loss": ("own-clip", "hand-gradient", "token-loss", "by-pass"),
    "state-in-pieces": ("forgotten-copy", "not-kept"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """All that a guess is made from. `reproducible`: None where nobody looked."""

    judge: Judge
    shape: Shape
    run: Run
    finding: Finding
    script: str  # its text
    reproducible: bool | None = None


def guess(case: Case) -> FoundHabit:
    """The first that fits."""
    for rule in RULES:
        suspicion = rule(case)
        if suspicion:
            return habit(*suspicion.split("\n"))
    raise AssertionError("the last rule fits always")


def _unseeded(case: Case) -> str:
    return "not-reproducible" if case.reproducible is False else ""


def _rates(case: Case) -> str:
    """Rates that differ no later than anything that follows from them."""
    finding = case.finding
    if finding.rates is None or finding.rates != finding.step:
        return ""
    if finding.uneven:
        return "by-pass"
    restarts = [attempt.begin + 1 for attempt in case.shape.attempts[1:]]
    return "forgotten-scheduler" if finding.rates in restarts else "own-rate"


def _hand_accumulation(case: Case) -> str:
    steps = [step for number, step in sorted(case.judge.reference.steps.items()) if number]
    updates = [bool(step.rates) for step in steps]
    return "hand-accumulation" if any(updates) and not all(updates) else ""


def _samples(case: Case) -> str:
    return (
        "samples"
        if case.finding.samples is not None and case.finding.samples == case.finding.step
        else ""
    )


def _random(case: Case) -> str:
    return "random" if drawn(case.judge.reference) or drawn(case.run) else ""


def _scaled(case: Case) -> str:
    """Of the first step that differs, all by one factor that a number of micro-batches or replicas
    would give."""
    number = case.finding.tensors
    if number is None:
        return ""
    factor = case.judge.factor(number, case.run.steps[number])
    if factor is None:
        return ""
    shape = case.shape
    counts = {
        shape.micros,
        shape.replicas,
        shape.replicas * shape.micros,
        2 * shape.replicas if shape.sample else 1,
    } - {1}
    near = any(abs(factor / count - 1) < NEAR or abs(factor * count - 1) < NEAR for count in counts)
    return "scaled-loss" if near else ""


def _batch_norm(case: Case) -> str:
    norms = case.judge.reference.facts.batch_norms if case.judge.reference.facts else []
    return f"batch-norm\n{', '.join(norms[:2])}" if norms and case.shape.cut else ""


def _kept(case: Case) -> str:
    """What is not the model or its optimizer: averaged weights, states of the script's own."""
    names = [difference.what for difference in case.finding.differences]
    if not names or not all(name.startswith(("copy ", "user:")) for name in names):
        return ""
    if case.shape.micros > 1 or case.shape.sample:
        return f"state-in-pieces\n{_owner(names[0])}"
    return "forgotten-copy" if names[0].startswith("copy ") else f"not-kept\n{_owner(names[0])}"


def _scheduled(case: Case) -> str:
    """Of several replicas a scheduler differs, and nothing that it could follow from."""
    names = [difference.what for difference in case.finding.differences]
    alone = bool(names) and all(name.startswith("scheduler:") for name in names)
    return f"replicas-apart\n{names[0]}" if alone and case.shape.replicas > 1 else ""


def _restart(case: Case) -> str:
    """The state differs as soon as it is restored."""
    begins = [attempt.begin for attempt in case.shape.attempts[1:]]
    if case.finding.tensors in begins and case.finding.differences:
        return f"not-kept\n{case.finding.differences[0].what}"
    return ""


def _mixed(case: Case) -> str:
    return "mixed" if case.judge.mixed else ""


def _lines(case: Case) -> str:
    for code, pattern in LINES:
        for number, line in enumerate(case.script.splitlines(), 1):
            if pattern.search(line.partition("#")[0]):
                return f"{code}\n{number}"
    return ""


def _by_pass(case: Case) -> str:
    return "by-pass"


def joined(guesses: list[FoundHabit | None]) -> list[FoundHabit | None]:
    """One habit shows in several shapes, and more plainly in some: what those tell holds for the
    others, word for word."""
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
    """Did the body of the loop draw random numbers that are no example's own?"""
    return any(step.random for step in run.steps.values())


def own_epochs(run: Run) -> bool:
    """Did the loop go on to another epoch without job.epochs()?"""
    later = [step for number, step in run.steps.items() if number and step.epoch > 0]
    return bool(run.facts and run.facts.loader and later) and all(
        step.epochs == 0 for step in later
    )


def _owner(name: str) -> str:
    return name.split(".")[0].removeprefix("user:")


RULES: tuple[Callable[[Case], str], ...] = (
    _unseeded, _hand_accumulation, _samples, _rates, _random, _scaled, _batch_norm, _kept,
    _scheduled, _restart, _mixed, _lines, _by_pass,
)  # fmt: skip


def batch_norm(run: Run) -> FoundHabit | None:
    """Where the script has any: a part of a batch may be too small for it."""
    norms = run.facts.batch_norms if run.facts else []
    return habit("batch-norm", ", ".join(norms[:2])) if norms else None


def habit(code: str, *words: str) -> FoundHabit:
    """One that needs no guess."""
    message, cure = WORDS[code]
    return FoundHabit(code, [], message.format(*words), cure)
