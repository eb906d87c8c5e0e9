"""Ends collectives so that no other thread of the process lets go of their tensors.

The thread of gloo that ran a collective drops its tensors some time after the end. If it drops them
last, it makes an interpreter state for itself, under a lock of Python. A process that is forked at
that moment stands still for ever, in Python before 3.8.20, 3.9.20, 3.10.15, 3.11.10 and 3.12
(CPython issue 112275). Workers of a DataLoader are forked right after such collectives.
"""

from collections import deque
from typing import Deque, Optional

import torch.distributed as dist

KEPT = 64  # collectives after which a thread of gloo has long dropped what it held
_kept: Deque[dist.Work] = deque(maxlen=KEPT)


def finish(work: Optional[dist.Work]) -> None:
    """Wait for a collective that was started with `async_op=True`, and keep its tensors for a
    while. None: it had nothing to do. For small ones, because their memory stays in use."""
    if work is not None:
        work.wait()
        _kept.append(work)
