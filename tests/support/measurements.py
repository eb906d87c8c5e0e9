"""A folder of measurements of small made-up applications.

Step times are linear in the atomic batch, on every placement of up to two servers with four GPUs each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.measured import HEADER, SCALABILITY, write

ATOMIC = (8, 16, 32, 64, 128)
BATCHES = (32, 64, 128, 256)  # the base batch size and those measured
EPOCHS = 3
ONE_NODE = ((1,), (2,), (3,), (4,))
PLACEMENTS = (*ONE_NODE, *((a, b) for a in range(1, 5) for b in range(a, 5)))
WORKLOAD = "name,time,application,num_replicas,batch_size"


def step_times(counts: Sequence[int], atomic: int) -> tuple[float, float]:
    """(step, the synchronisation in it), in seconds."""
    sync = 0.0 if sum(counts) == 1 else 0.01 if len(counts) == 1 else 0.03
    return 0.02 + 0.002 * atomic + sync, sync


def tiny(
    folder: Path,
    name: str = "tiny",
    *,
    steps: int = 1000,
    kinds: Sequence[str] = ("",),
    noise: float = 4.0,
    speed: float = 1.0,
    syncs: float = 1.0,
) -> Path:
    """Three epochs of `steps` base steps each. Alone on one GPU a base step takes 84 ms / `speed`.

    The noise scale is `noise` base batches in the first epoch. Synchronisation takes `syncs` times as long as in
    `step_times`.
    """
    rows = []
    for counts in PLACEMENTS:
        for atomic in ATOMIC:
            step, sync = step_times(counts, atomic)
            step, sync = (step - sync) / speed + syncs * sync, syncs * sync
            rows.append(f"{''.join(map(str, counts))},{atomic},{step},{sync}")
    for kind in kinds:
        suffix = f"-{kind}" if kind else ""
        write(folder / name / f"placements{suffix}.csv", ("placement,local_bsz,step_time,sync_time", *rows))
        write(folder / name / f"scalability{suffix}.csv", SCALABILITY)
    for batch in BATCHES:
        lines = [
            f"{steps * (epoch + 1)},{steps * 32 * (epoch + 1) // batch},{0.3 * (epoch + 1)},1.0,{noise * (epoch + 1)}"
            for epoch in range(EPOCHS)
        ]
        write(folder / name / f"validation-{batch}.csv", (HEADER, *lines))
    return folder


def workload(path: Path, *rows: str) -> Path:
    """Four jobs by default. The last one arrives when the others may have ended."""
    return write(path, (WORKLOAD, *(rows or ("a,0,tiny,1,32", "b,30,tiny,2,64", "c,45,tiny,4,128", "d,400,tiny,1,32"))))
