"""What `gpq doctor` asks servers to do, through the daemon. Each errand has a time limit, and all
run at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gpq.cli.doctor.server_lines import Told
from gpq.client.connection import call
from gpq.errors import GpqError
from gpq.options import environment
from gpq.rpc import node_answers, requests

MOST_AT_ONCE = 8

K = TypeVar("K")
T = TypeVar("T")


def errand(node: str, name: str, limit: float, **fields: Any) -> Told:
    """What the server answered, or {"error"} if that failed."""
    request = requests.Errand(node, name, fields, limit)
    try:
        return call(request, node_answers.ErrandResult, start=False).answer
    except GpqError as error:
        return {"error": error.message}


def side_by_side(work: Callable[[K], T], keys: Sequence[K]) -> dict[K, T]:
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return dict(zip(keys, pool.map(work, keys), strict=True))


def job_environment() -> dict[str, str]:
    """The variables of a job that is submitted here."""
    return environment.job_variables(dict(os.environ), {})
