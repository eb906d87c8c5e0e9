"""Reads fingerprints of tensors (`train/prove/sketch.py` in the agent): how far apart two tensors
are, and by which factor."""

from __future__ import annotations

import math

from gpq.check.records import Sketch

ONE_FACTOR = 0.25  # tolerance for one factor, because parts of a batch may be uneven


def apart(first: Sketch, second: Sketch) -> float:
    """|a - b| from the projections of a and b, or infinity if one of them is not finite."""
    pairs = _finite_pairs(first, second)
    if pairs and len(first) == len(second):
        return math.sqrt(sum((a - b) ** 2 for a, b in pairs) / len(pairs))
    return 0.0 if first == second else math.inf


def norm(sketch: Sketch) -> float:
    return (sketch[0] or 0.0) if sketch else 0.0


def epsilon(sketch: Sketch) -> float:
    """The machine epsilon of the tensor's type."""
    return (sketch[1] or 0.0) if len(sketch) > 1 else 0.0


def one_factor(first: Sketch, second: Sketch) -> float | None:
    """f with second = f * first, or None."""
    pairs = _finite_pairs(first, second)
    square = sum(a * a for a, _ in pairs)
    if not square:
        return None
    factor = sum(a * b for a, b in pairs) / square
    residual = sum((b - factor * a) ** 2 for a, b in pairs)
    if factor > 0 and residual <= ONE_FACTOR**2 * sum(b * b for _, b in pairs):
        return factor
    return None


def _finite_pairs(first: Sketch, second: Sketch) -> list[tuple[float, float]]:
    """Projections that both have. The first two numbers of a sketch are its norm and its
    epsilon."""
    pairs = zip(first[2:], second[2:], strict=False)
    return [(a, b) for a, b in pairs if a is not None and b is not None]
