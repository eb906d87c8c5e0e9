"""The words for each habit that gpq check guesses: what the loop does, and the cure."""

from __future__ import annotations

from gpq_agent import wire

from gpq.check.verdict import FoundHabit

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


def habit(code: str, *words: str) -> FoundHabit:
    """A guess, or a habit that needs none."""
    message, cure = WORDS[code]
    return FoundHabit(code, [], message.format(*words), cure)
