"""Habits of training loops that gpq cannot make right everywhere: what each takes away, in which
words, and what gives it back.

A table. Who notices a habit, and when, is the business of the observers.
"""

import sys
from typing import Dict, NamedTuple, Tuple

from gpq_agent import wire

ACCUMULATE, SPLIT, RESIZE, RETUNE = "accumulate", "split", "resize", "retune"
ALL = (ACCUMULATE, SPLIT, RESIZE, RETUNE)
IN_PIECES = (ACCUMULATE, SPLIT)  # a step must stay in one piece
AS_IT_IS = (ACCUMULATE, SPLIT, RETUNE)  # and keep its batch


OBSERVED, SUSPECTED = "observed", "suspected"  # the act itself was seen, or what mostly comes of it


class Habit(NamedTuple):
    """What an observer has noticed. `detail`: what fills `{}` in the message."""

    code: str
    detail: str = ""


class Entry(NamedTuple):
    """`message`: what the loop does. `cure`: what to change. `evidence`: on which it is noticed."""

    freedoms: Tuple[str, ...]
    message: str
    cure: str
    evidence: str = OBSERVED


HABITS: Dict[str, Entry] = {
    "two-passes": Entry(
        IN_PIECES,
        "the loop changes or clears gradients between two backward passes of a step (as SAM does)",
        "one backward pass a step",
    ),
    "step-between": Entry(
        IN_PIECES,
        "an optimizer steps between two backward passes of the loop's body (as in a GAN)",
        "all backward passes first, then the steps",
    ),
    "part-error": Entry(
        IN_PIECES,
        "the loop fails in a part of a batch ({}), where gradients are zero until the last part",
        "a loop that can do with few examples, and with gradients of zero",
    ),
    "closure": Entry(
        AS_IT_IS,
        "optimizer.step() is given a closure (as LBFGS wants)",
        "an optimizer without a closure gives them back",
    ),
    "step-value": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "optimizer.step() is given something (the loss, say), which is that of the part of the "
        "batch in hand",
        "an optimizer that takes its step from gradients alone",
    ),
    "hand-step": Entry(
        AS_IT_IS,
        "the loop changes parameters outside optimizer.step()",
        "let the optimizer given to job.prepare() make every step",
    ),
    "other-optimizer": Entry(
        ALL,
        "an optimizer steps that job.prepare() was not given ({})",
        "give all of them: job.prepare(model, [first, second])",
    ),
    "hand-accumulation": Entry(
        ALL,
        "a step of the loader ended without optimizer.step(): the loop accumulates by itself",
        "call optimizer.step() in every pass of the loop; gpq accumulates where a batch does not "
        "fit",
    ),
    "uneven-steps": Entry(
        ALL,
        "an optimizer steps in some passes of the loop only ({}), by a count of the loop's own",
        "decide by job.step when it steps, and ask job.at_step first",
    ),
    "carried-gradient": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "gradients are not cleared after optimizer.step(): they go into the next step too",
        "optimizer.zero_grad() in every pass of the loop",
    ),
    "hand-gradient": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "gradients are set by hand, without a backward pass",
        "let loss.backward() compute them",
    ),
    "grad-hook": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "a hook on parameters changes or takes gradients while they are computed, before the batch "
        "is complete",
        "change gradients after backward(), before optimizer.step()",
    ),
    "own-freezing": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "parameters are frozen and trained in turns, by a count of the loop's own",
        "decide by job.step, or by the epoch outside the loop over the loader",
    ),
    "own-next": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "the loop takes batches with next(), so it counts micro-batches as steps, and all of an "
        "epoch after a restart",
        "for batch in loader:",
        SUSPECTED,
    ),
    "comm-hook": Entry(
        (SPLIT,),
        "the model has a communication hook of its own, so gradient noise is not measured on "
        "several replicas",
        "leave the hook out",
    ),
    "batch-norm": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "batch norm ({}) takes its statistics from the examples that are together on one device",
        "job.wrap(model, sync_batch_norm=True) for another number of GPUs; layer or group norm for "
        "all",
    ),
    "sync-batch-norm": Entry(
        IN_PIECES,
        "batch norm takes its statistics from what is together at once",
        "layer or group norm",
    ),
    "own-rate": Entry(
        ALL,
        "the loop sets the learning rate, or another setting of an optimizer, by a count of its "
        "own",
        "compute it from job.step, or give a scheduler to job.prepare()",
    ),
    "forgotten-scheduler": Entry(
        ALL,
        "a scheduler of this optimizer ({}) was not given to job.prepare()",
        "job.prepare(model, optimizer, scheduler)",
    ),
    "forgotten-scaler": Entry(
        ALL,
        "a GradScaler is in use that was not given to job.prepare()",
        "job.prepare(model, optimizer, scaler=scaler)",
    ),
    "forgotten-copy": Entry(
        ALL,
        "a copy of the model's weights ({}) was not given to job.state(): it begins anew after a "
        "restart",
        "job.state(copy), and update it where job.at_step is true",
        SUSPECTED,
    ),
    "state-in-pieces": Entry(
        IN_PIECES,
        "what was given to job.state() ({}) changes in every micro-batch, not once a step",
        "update it where job.at_step is true",
    ),
    "replicas-apart": Entry(
        (RESIZE,),
        "replicas do not train alike: {} differs between them",
        "do the same on every replica; a scheduler wants the same metric on all",
    ),
    "own-break": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "the loop leaves the loader before its end, by a count of its own",
        "decide by job.step when to leave",
    ),
    "epoch-head": Entry(
        (RESIZE,),
        "what the loop does at the head of an epoch ({}) is done again when it goes on in the "
        "midst of one",
        "do it only if job.progress.samples == 0; what the epoch needs of it, keep by job.state()",
    ),
    "late-group": Entry(
        (RESIZE,),
        "an optimizer is given other or further parameters while it trains: a new attempt begins "
        "without them",
        "give all of them at the start, frozen by requires_grad_(False) until they are wanted",
    ),
    "outside-parameters": Entry(
        (RESIZE,),
        "an optimizer has parameters outside the wrapped models: replicas train them apart from "
        "each other",
        "put them into a module that job.wrap() is given",
    ),
    "moving-buffer": Entry(
        IN_PIECES,
        "a buffer of the model ({}) changes in every forward pass, as in spectral norm",
        "a layer whose buffers stay while it is evaluated",
    ),
    "own-epochs": Entry(
        (RESIZE,),
        "the loop over the loader is outside job.epochs(), so it begins anew at epoch 0 after a "
        "restart",
        "for epoch in job.epochs(count):",
    ),
    "own-loader": Entry(
        ALL,
        "optimizer.step() runs outside the loop over job.loader(): every replica trains on all of "
        "the data",
        "take the batches from job.loader()",
    ),
}


ACCEPTABLE = {code for code, entry in HABITS.items() if entry.evidence == SUSPECTED}


def is_suspected(code: str) -> bool:
    """May its user accept it, and does gpq check put it to the test?"""
    return HABITS[code].evidence == SUSPECTED


def described(habit: Habit) -> wire.Habit:
    """In words, with all the freedoms that it takes."""
    entry = HABITS[habit.code]
    message = entry.message.format(habit.detail)
    return wire.Habit(habit.code, list(entry.freedoms), message, entry.cure, entry.evidence)


def table() -> str:
    """The habits in Markdown, for the README."""
    rows = ["| habit | takes away | what gives it back |", "|---|---|---|"]
    for entry in HABITS.values():
        message = entry.message.replace(" ({})", "").replace("{}", "...")
        rows.append("| {} | {} | {} |".format(message, ", ".join(entry.freedoms), entry.cure))
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
