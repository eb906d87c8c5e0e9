"""The shapes in which every habit runs: the same total batch, cut in other ways. Owns what freedom each one needs."""

from __future__ import annotations

from typing import Any, NamedTuple

BATCH = 16


class Shape(NamedTuple):
    """`replicas`: of each attempt in turn; all but the last are stopped on the way. `options`: of job.loader().

    `needs`: freedoms any one of which a habit must have taken away to be told; () where any will do.
    """

    name: str
    replicas: tuple[int, ...]
    options: dict[str, Any]
    needs: tuple[str, ...]


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("one", (1,), {"fixed_batch": True}, ()),
        # Micro-batches of 5, 5 and 6: a mean of means would be wrong.
        Shape("accumulate", (1,), {"fixed_batch": True, "max_local_batch": 6}, ("accumulate",)),
        Shape("split", (1,), {"max_batch_size": BATCH}, ("split",)),
        Shape("two", (2,), {"fixed_batch": True}, ("resize",)),
        Shape("two-acc", (2,), {"fixed_batch": True, "max_local_batch": 3}, ("resize", "accumulate")),
        Shape("resize", (1, 2, 1), {"fixed_batch": True}, ("resize",)),
    )
}
