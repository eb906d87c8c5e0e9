"""From the options of `gpq edit` to the request for the daemon. Checks what can be checked here.
Draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpq.errors import UsageError
from gpq.options import submit_values, values
from gpq.rpc import requests
from gpq.rpc.submit_table import BY_NAME

NOTHING = ("none", "off")
# values of options for `none`
LIFTED: dict[str, Any] = {
    "time": None,
    "gpu_type": "",
    "min_gpu_memory": 0,
    "after": [],
    "accept": [],
}


def request(
    jobs: list[str],
    *,
    tag: Sequence[str] = (),
    untag: Sequence[str] = (),
    array_limit: str = "",
    **texts: Any,
) -> requests.Edit:
    """`texts`: options as typed. Empty ones, and None, change nothing. Raises UsageError."""
    changes: dict[str, Any] = {}
    for name, text in texts.items():
        if not text and not isinstance(text, int):
            continue
        if name in LIFTED and text in (*NOTHING, ["none"]):
            [field] = BY_NAME[name].fields
            changes[field] = LIFTED[name]
        else:
            changes |= submit_values.fields_of({name: text})
    new_tags = [values.name(name, "--tag") for name in tag]
    old_tags = [values.name(name, "--tag") for name in untag]
    return requests.Edit(jobs, changes, new_tags, old_tags, _limit(array_limit))


def _limit(text: str) -> int | None:
    if not text:
        return None
    if text in NOTHING:
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise UsageError(
            f"invalid --array-limit {text[:20]!r}: expected a number of jobs",
            "for example --array-limit 4",
        )
    return int(text)
