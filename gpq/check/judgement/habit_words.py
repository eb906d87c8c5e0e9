"""What each habit is called: in words for who wrote the loop, and what gives its freedom back."""

from __future__ import annotations

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


def habit(code: str, *words: str) -> FoundHabit:
    """One that needs no guess."""
    message, cure = WORDS[code]
    return FoundHabit(code, [], message.format(*words), cure)
