"""The shapes in which every habit runs: one batch size, divided differently. Owns the freedoms that each needs."""

from __future__ import annotations

from typing import Any, NamedTuple

BATCH = 16


class Shape(NamedTuple):
    """`replicas`: the number in each attempt. All but the last are stopped on the way. `options`: of job.loader().

    `needs`: a habit counts as told if it took one of these freedoms away. () means any freedom.
    """

    name: str
    replicas: tuple[int, ...]
    options: dict[str, Any]
    needs: tuple[str, ...]


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("one", (1,), {"fixed_batch": True}, ()),
        # Micro-batches of 5, 5 and 6, so that a mean of means would be wrong.
        Shape("accumulate", (1,), {"fixed_batch": True, "max_local_batch": 6}, ("accumulate",)),
        Shape("split", (1,), {"max_batch_size": BATCH}, ("split",)),
        Shape("two", (2,), {"fixed_batch": True}, ("resize",)),
        Shape("two-acc", (2,), {"fixed_batch": True, "max_local_batch": 3}, ("resize", "accumulate")),
        Shape("resize", (1, 2, 1), {"fixed_batch": True}, ("resize",)),
    )
}
