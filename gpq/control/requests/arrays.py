"""One submission -> the jobs of an array. `{index}` and the names of a sweep are replaced in what
each job runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpq.core.model.jobs import JobSpec, Seat
from gpq.core.model.units import JobId
from gpq.errors import UsageError
from gpq.rpc.placeholders import fill
from gpq.rpc.requests import ArrayMessage

MOST = 10_000
PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
ID, INDEX, SIZE, SWEEP = "GPQ_ARRAY_ID", "GPQ_ARRAY_INDEX", "GPQ_ARRAY_SIZE", "GPQ_SWEEP_"


def elements(spec: JobSpec, array: ArrayMessage, name: JobId) -> Iterator[JobSpec]:
    """The specifications of the jobs. Their ids follow `name`, the id of the array. Raises
    UsageError."""
    check(array)
    for place, index in enumerate(array.indices):
        params = array.params[place] if array.params else {}
        words = {**params, "index": str(index)}
        env = {key: fill(value, words) for key, value in spec.env}
        env.update({ID: str(name), INDEX: str(index), SIZE: str(len(array.indices))})
        env.update({f"{SWEEP}{key}": value for key, value in params.items()})
        yield replace(
            spec,
            argv=tuple(fill(word, words) for word in spec.argv),
            resume_argv=tuple(fill(word, words) for word in spec.resume_argv),
            done_file=fill(spec.done_file, words),
            env=tuple(sorted(env.items())),
            seat=Seat(name, index, len(array.indices), array.limit, tuple(params.items())),
        )


def check(array: ArrayMessage) -> None:
    """Raises UsageError."""
    count = len(array.indices)
    if not 1 <= count <= MOST:
        raise UsageError(f"invalid array of {count} jobs", f"an array has 1 to {MOST} jobs")
    if len(set(array.indices)) < count or not all(0 <= index < 1 << 31 for index in array.indices):
        raise UsageError(
            "the indices of an array must be different whole numbers from 0", "e.g. --array 0-99"
        )
    if array.params and len(array.params) != count:
        raise UsageError(
            f"{count} indices with {len(array.params)} sets of parameters",
            "give one set for each index",
        )
    if not 0 <= array.limit <= MOST:
        raise UsageError(
            f"invalid limit %{array.limit}: expected 1 or more jobs at once",
            "e.g. --array 0-99%4",
        )
    for params in array.params:
        _check_params(params)


def _check_params(params: Mapping[str, str]) -> None:
    """Raises UsageError."""
    for key, value in params.items():
        if not PARAM.fullmatch(key) or key == "index":
            raise UsageError(
                f"invalid name in the sweep: {key[:80]!r}",
                "use letters, digits and _, but not the name index",
            )
        if "\0" in value:
            raise UsageError(f"a value of {key} contains a NUL byte", "remove it")
