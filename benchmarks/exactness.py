"""Ten forced resizes and live batch changes: samples visited per pass over the data, and the loss
curve compared with that of an undisturbed run.

    python benchmarks/exactness.py           # exits with 1 if a sample is lost or repeated,
                                             # or a loss is off by over 1e-4

It resizes two jobs: one with a fixed batch size, whose curve is compared, and one whose batch size
grows as well. Both scale their loss with torch's GradScaler, unscale, clip with torch's own
clip_grad_norm_, and accumulate in some of their attempts.

    python benchmarks/exactness.py --walk    # 1, 2, 3, 2 and 1 replicas, with and without loader
                                             # workers, accumulation, GradScaler and moving average
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # for the replicas
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

from tests.agent.train.driver import Attempt, TrainingJob, wait_until  # noqa: E402

BAR = 1e-4
# a median norm, so half of the steps are clipped
HABITS: dict[str, Any] = {"clip": 0.2, "scaled": True}
FIXED: dict[str, Any] = {
    "size": 1003,
    "epochs": 8,
    "batch": 12,
    "max_local": 12,
    "fixed": True,
    **HABITS,
}
GROWING: dict[str, Any] = {
    "size": 2003,
    "epochs": 4,
    "batch": 10,
    "max_batch": 40,
    "max_local": 20,
    "workers": 1,
    "optimizer": "adamw",
    **HABITS,
}
FIXED_ORDERS = ((5, 0), (3, 0), (12, 0))  # (atomic batch, accumulation steps)
GROWING_ORDERS = ((7, 1), (13, 0), (4, 1))
WALK = (1, 2, 3, 2, 1)
WALKING: dict[str, Any] = {"size": 403, "epochs": 4, "batch": 12, "fixed": True, "clip": 0.2}


def disturb(job: TrainingJob, resizes: int, orders: tuple[tuple[int, int], ...]) -> int:
    """Resize the job between one and two replicas this often, with a live change in each attempt.
    Returns how many took effect."""
    changes = 0
    for number in range(resizes):
        attempt: Attempt = job.start(replicas=1 + number % 2)
        attempt.after_micros(6)
        atomic, accum = orders[number % len(orders)]
        attempt.order(atomic_batch=atomic, accum_steps=accum)
        wait_until(lambda: attempt.reports("retuned") or not attempt.alive, "the live change")  # noqa: B023
        changes += len(attempt.reports("retuned"))
        if attempt.stop() != [0] * attempt.replicas:
            raise SystemExit(f"attempt {number + 1} did not stop as asked")
    job.run(replicas=1)
    return changes


def visits(job: TrainingJob) -> list[tuple[int, int]]:
    """(samples missed, samples repeated) in each pass. The job's end may cut the last one short if
    its batch grew."""
    figures = []
    passes = job.visits()
    for number, samples in passes.items():
        counts = Counter(samples)
        is_whole = job.settings.fixed or number < max(passes)
        missed = sum(1 for index in range(job.settings.size) if not counts[index])
        figures.append((missed * is_whole, sum(count - 1 for count in counts.values())))
    return figures


def deviation(job: TrainingJob, undisturbed: TrainingJob) -> float:
    """Largest relative difference of the mean loss of a step. Infinite if the steps differ."""
    losses, expected = job.losses(), undisturbed.losses()
    if list(losses) != list(expected):
        return float("inf")
    return max(abs(losses[step] - loss) / abs(loss) for step, loss in expected.items())


def average_deviation(job: TrainingJob, undisturbed: TrainingJob) -> float:
    """Largest relative difference of a tensor of the moving average at the end."""
    state, expected = (
        torch.load(training.out / f"averaged.{len(training.attempts)}.pt", weights_only=True)
        for training in (job, undisturbed)
    )
    return max(
        float((state[name].double() - value.double()).norm() / value.double().norm())
        for name, value in expected.items()
    )


def walk(
    folder: Path, workers: int, max_local: int, scaled: bool, averaged: bool
) -> dict[str, Any]:
    """One job with WALK replicas in turn, and the same job undisturbed.

    `max_local`: with 2 examples at most per micro-batch, each step accumulates.
    """
    settings = {**WALKING, "scaled": scaled, "averaged": averaged}
    calm = TrainingJob(folder / "calm", max_local=12, **settings)
    moved = TrainingJob(
        folder / "moved", max_local=max_local, workers=workers, pace=0.02, **settings
    )
    try:
        calm.run(replicas=1)
        for replicas in WALK:
            attempt = moved.start(replicas).after_micros(8)
            if attempt.stop() != [0] * replicas:
                raise SystemExit(f"an attempt with {replicas} replicas did not stop as asked")
            if (moved.out / f"finished.{attempt.number}.0").exists():
                raise SystemExit(
                    f"the training ended with {replicas} replicas, before the last resize"
                )
        moved.run(replicas=1)
        return {
            "missed": sum(missed for missed, _ in visits(moved)),
            "repeated": sum(repeated for _, repeated in visits(moved)),
            "deviation": deviation(moved, calm),
            "average": average_deviation(moved, calm) if averaged else 0.0,
        }
    finally:
        calm.close()
        moved.close()


def walks() -> int:
    good = True
    for workers, max_local, scaled, averaged in itertools.product(
        (0, 2), (12, 2), (False, True), (False, True)
    ):
        with tempfile.TemporaryDirectory() as folder:
            result = walk(
                Path(folder),
                workers=workers,
                max_local=max_local,
                scaled=scaled,
                averaged=averaged,
            )
        parts = {
            "loader workers": workers > 0,
            "accumulation": max_local == 2,
            "GradScaler": scaled,
            "moving average": averaged,
        }
        names = ", ".join(name for name, present in parts.items() if present) or "none of them"
        average = f", the moving average by {result['average']:.1e}" if averaged else ""
        print(
            f"{names}: {result['missed']} missed, {result['repeated']} repeated, "
            f"losses differ by {result['deviation']:.1e}{average}",
            flush=True,
        )
        good &= result["missed"] == result["repeated"] == 0
        good &= max(result["deviation"], result["average"]) <= BAR
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--resizes", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--walk", action="store_true")
    options = parser.parse_args()
    if options.walk:
        return walks()
    with tempfile.TemporaryDirectory() as folder:
        calm = TrainingJob(Path(folder, "calm"), **FIXED)
        calm.run(replicas=1)
        moved = TrainingJob(Path(folder, "moved"), pace=0.004, **FIXED)
        growing = TrainingJob(Path(folder, "growing"), pace=0.01, **GROWING)
        try:
            changes = (
                disturb(moved, options.resizes, FIXED_ORDERS),
                disturb(growing, options.resizes, GROWING_ORDERS),
            )
            exact = visits(moved), visits(growing)
            worst = deviation(moved, calm)
            steps = len(calm.losses())
        finally:
            for job in (calm, moved, growing):
                job.close()
    good = worst <= BAR and not any(missed or repeated for job in exact for missed, repeated in job)
    if options.json:
        print(
            json.dumps(
                {"changes": changes, "visits": exact, "deviation": worst, "bar": BAR, "good": good}
            )
        )
        return 0 if good else 1
    for name, settings, count, passes in zip(
        ("fixed", "growing"), (FIXED, GROWING), changes, exact, strict=True
    ):
        print(f"{name} batch: {options.resizes} resizes, {count} live batch changes")
        for number, (missed, repeated) in enumerate(passes):
            print(
                f"  pass {number}: {settings['size']} samples, {missed} missed, {repeated} repeated"
            )
    print(
        f"largest relative deviation of a loss over {steps} steps: {worst:.1e}, at most {BAR:.0e}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
