"""Out of memory: who chose the size that did not fit, and what the next attempt does instead."""

from typing import NamedTuple

from gpq_agent.train.checkpoints.store import MemoryRecord
from gpq_agent.train.data.batches import Limits, Step, ceil_div


class Shortage(NamedTuple):
    """`line`: the message for the user. `is_ours`: the script alone would not have tried this
    size."""

    line: str
    is_ours: bool


def lessen(record: MemoryRecord, step: Step, limits: Limits, *, may_cut: bool) -> Shortage:
    """Reduce what later attempts may try.

    Each failing attempt then asks for less than the one before. `may_cut`: steps may be split into
    micro-batches.
    """
    if step.sampled:
        record.stop_sampling()
        line = (
            "out of memory in a step in which gpq measured the noise scale. gpq stops "
            "measuring it and keeps the batch size"
        )
        return Shortage(line, True)
    examples, own_share = max(step.counts), ceil_div(limits.base_batch, limits.replicas)
    is_cut = len(step.counts) > 1 and own_share <= limits.max_local
    bound = record.failed(examples)
    if examples > own_share or is_cut:
        text = (
            "out of memory with {} examples at once{}. gpq chose this number (the script alone "
            "uses {}), and uses at most {} from now on"
        )
        pieces = " in micro-batches" if is_cut else ""
        return Shortage(text.format(examples, pieces, own_share, bound), True)
    if not may_cut:
        text = (
            "out of memory with {} examples at once. The job needs more GPUs, because gpq "
            "cannot cut this loop's steps into micro-batches"
        )
        return Shortage(text.format(examples), False)
    text = "out of memory with {} examples at once, so the next attempt uses at most {}"
    return Shortage(text.format(examples, bound), False)
