"""Habits of training loops that gpq cannot handle everywhere: the freedoms that each takes, the
words for it, and the cure.

Only a table. `watch.py` and the places where a fact shows notice habits.
"""

import sys
from typing import Dict, NamedTuple, Tuple

from gpq_agent import wire

ACCUMULATE, SPLIT, RESIZE, RETUNE = "accumulate", "split", "resize", "retune"
ALL = (ACCUMULATE, SPLIT, RESIZE, RETUNE)
IN_PIECES = (ACCUMULATE, SPLIT)  # a step must stay in one piece
AS_IT_IS = (ACCUMULATE, SPLIT, RETUNE)  # a step must stay in one piece and keep its batch size


OBSERVED, SUSPECTED = "observed", "suspected"  # the act itself was seen, or only its usual signs


class Habit(NamedTuple):
    """What gpq noticed. `detail` fills `{}` in the message."""

    code: str
    detail: str = ""


class Entry(NamedTuple):
    """`message`: what the loop does. `cure`: what to change. `evidence`: how sure gpq is."""

    freedoms: Tuple[str, ...]
    message: str
    cure: str
    evidence: str = OBSERVED


HABITS: Dict[str, Entry] = {
    "two-passes": Entry(
        IN_PIECES,
        "the loop body has more than one backward pass (as in a GAN or SAM)",
        "add up the losses, and call backward() once",
    ),
    "part-error": Entry(
        IN_PIECES,
        "the loop fails on a micro-batch ({}), which has few examples and usually zero gradients",
        "make the loop work with few examples and with zero gradients",
    ),
    "closure": Entry(
        ALL,
        "the loop calls optimizer.step() with a closure (as LBFGS needs)",
        "use an optimizer that needs no closure",
    ),
    "step-value": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "the loop calls optimizer.step() with a value, such as the loss, that covers only part of "
        "the batch",
        "use an optimizer that needs only gradients",
    ),
    "hand-step": Entry(
        AS_IT_IS,
        "the loop changes parameters outside optimizer.step()",
        "make every change in the optimizer that job.prepare() was given",
    ),
    "other-optimizer": Entry(
        ALL,
        "an optimizer ({}) steps that job.prepare() was not given",
        "give job.prepare() all of them: job.prepare(model, [first, second])",
    ),
    "hand-accumulation": Entry(
        ALL,
        "a pass of the loop ended without optimizer.step(), so the loop accumulates gradients "
        "itself",
        "call optimizer.step() in every pass of the loop, and gpq accumulates when a batch does "
        "not fit",
    ),
    "skipped-batch": Entry(
        ALL,
        "the loop asked for the next batch without a backward pass in the one before, so it skips "
        "batches, or goes through a loader that draws ahead (timm, apex, Accelerate)",
        "leave bad examples out of the data set, and iterate over job.loader() itself",
    ),
    "uneven-steps": Entry(
        ALL,
        "an optimizer steps only in some passes of the loop ({}), by the loop's own count",
        "use job.step to decide when it steps, and check job.at_step first",
    ),
    "hand-gradient": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "the loop sets gradients itself, without a backward pass",
        "let loss.backward() compute them",
    ),
    "grad-hook": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "a parameter has a hook ({}), which gets gradients before the whole batch is computed",
        "change gradients after backward() and before optimizer.step()",
        SUSPECTED,
    ),
    "own-freezing": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "the loop freezes and trains parameters in turns, by its own count",
        "use job.step to decide, or switch by epoch outside the loop over the loader",
    ),
    "own-next": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "the loop takes batches with next(), so it counts micro-batches as steps, and counts a "
        "whole epoch after a restart",
        "use a loop: for batch in loader",
        SUSPECTED,
    ),
    "mean": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "the gradient of a batch is not the mean over its examples, as with a mean over tokens, a "
        "mask, class weights or pairs, or a sum that nothing divides",
        "call job.weigh(tokens) before backward(), or use a mean over examples",
    ),
    "label-mean": Entry(
        (RETUNE,),
        "the loss is a mean over labels, of which some examples have more than others, and gpq "
        "measures gradient noise by examples",
        "leave max_batch_size out, as the batch stays as it is",
    ),
    "batch-norm": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "batch norm ({}) computes its statistics from the examples that are together on one GPU",
        "use job.wrap(model, batch_norm=32), or batch_norm=32 in gpq's call for a framework, to "
        "allow everything, or sync_batch_norm=True to allow other numbers of GPUs",
    ),
    "sync-batch-norm": Entry(
        IN_PIECES,
        "batch norm computes its statistics from the examples that all GPUs process at once",
        "use layer or group norm",
    ),
    "own-rate": Entry(ALL, *wire.HABIT_WORDS["own-rate"]),
    "forgotten-scheduler": Entry(
        ALL,
        "job.prepare() was not given a scheduler of this optimizer ({})",
        "call job.prepare(model, optimizer, scheduler)",
    ),
    "state-in-pieces": Entry(IN_PIECES, *wire.HABIT_WORDS["state-in-pieces"]),
    "own-break": Entry(
        (ACCUMULATE, SPLIT, RESIZE),
        "the loop leaves the loader before its end, by its own count",
        "use job.step to decide when to leave",
    ),
    "late-group": Entry(
        (RESIZE,),
        "an optimizer gets other or more parameters during training, and a restart begins without "
        "them",
        "give it all parameters at the start, frozen with requires_grad_(False) until you need "
        "them",
    ),
    "outside-parameters": Entry(
        (RESIZE,),
        "an optimizer has parameters outside the wrapped models, so each replica trains its own",
        "put them into a module that job.wrap() is given",
    ),
    "moving-buffer": Entry(
        IN_PIECES,
        "a buffer of the model ({}) changes in every forward pass, as in spectral norm",
        "use a layer whose buffers do not change in the forward pass",
    ),
    "own-epochs": Entry(
        (RESIZE,),
        "the loop over the loader is outside job.epochs(), so it starts again at epoch 0 after a "
        "restart",
        "use for epoch in job.epochs(count)",
    ),
}


ACCEPTABLE = {code for code, entry in HABITS.items() if entry.evidence == SUSPECTED}


def is_suspected(code: str) -> bool:
    """Can the user accept it, and does gpq check test it?"""
    return HABITS[code].evidence == SUSPECTED


def describe(habit: Habit) -> wire.Habit:
    """The habit in words, with every freedom that it takes."""
    entry = HABITS[habit.code]
    message = entry.message.format(habit.detail)
    return wire.Habit(habit.code, list(entry.freedoms), message, entry.cure, entry.evidence)


def table() -> str:
    """The habits in Markdown, for docs/loops.md."""
    rows = ["| habit | takes away | cure |", "|---|---|---|"]
    for entry in HABITS.values():
        message = entry.message.replace(" ({})", "").replace("{}", "...")
        rows.append("| {} | {} | {} |".format(message, ", ".join(entry.freedoms), entry.cure))
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
