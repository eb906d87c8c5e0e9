"""From the text after an option of `gpq submit` or `gpq edit` to the fields of SpecMessage that it
fills: a reader for each kind of option. Each raises UsageError. `edit_request` makes the request of
`gpq edit`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpq import outward
from gpq.errors import UsageError
from gpq.options import values
from gpq.rpc import requests
from gpq.rpc.submit_table import BY_NAME

LEAST_LEASE, MOST_LEASE = 60.0, 30 * 86400.0  # seconds
NOTHING = ("none", "off")
# values of options for `none`
LIFTED: dict[str, Any] = {
    "time": None,
    "gpu_type": "",
    "min_gpu_memory": 0,
    "after": [],
    "accept": [],
}


def fields_of(texts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the options fill, by name."""
    fields: dict[str, Any] = {}
    for name, text in texts.items():
        option = BY_NAME[name]
        value = READERS[option.kind](text, option.flag)
        filled = value if len(option.fields) > 1 else (value,)
        fields.update(zip(option.fields, filled, strict=True))
    return fields


def begin(text: str, option: str) -> float:
    """Seconds since the epoch. 0 for `now`."""
    from datetime import datetime

    from gpq.options.datetimes import moment

    if text.strip().lower() == "now":
        return 0.0
    now = datetime.now().astimezone()
    start = moment(text, option, now)
    if start < now.timestamp():
        raise UsageError(
            f"{option} {text} is in the past", "leave it out to start as soon as possible"
        )
    return start


def targets(names: list[str], option: str) -> list[str]:
    """The daemon checks whether a name is in config.toml."""
    if outward.NOBODY in names and len(names) > 1:
        raise UsageError(
            f"{option} none cannot be combined with other targets", "remove none, or the others"
        )
    if names == [outward.NOBODY]:
        return []
    plain_names = {name: "" for name in names if re.fullmatch(outward.TARGET, name)}
    outward.check_targets(names, outward.Notify(plain_names))
    return list(dict.fromkeys(names))


def lease(text: str, option: str) -> float:
    """Seconds. 0 for `off`."""
    if text == "off":
        return 0.0
    seconds = values.seconds(text, option)
    if not LEAST_LEASE <= seconds <= MOST_LEASE:
        raise UsageError(
            f"invalid {option} {text!r}: expected 1m to 30d, or off",
            "a shorter time often means only a slow network",
        )
    return seconds


def resume(text: str, option: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}", "quote it as in a shell") from None


def gpu_bounds(text: str, option: str) -> tuple[int, int]:
    """(least, most). most 0 = as many as help."""
    low, high = values.gpus(text)
    return low, low if high is None else high


READERS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("count", "flag", "jobs", "path", "size", "text"), lambda text, option: text),
    "codes": lambda codes, option: list(dict.fromkeys(codes)),
    "duration": values.seconds,
    "events": lambda text, option: list(outward.events(text.split(","))),
    "gpus": gpu_bounds,
    "lease": lease,
    "limit": values.limit,
    "line": lambda text, option: text.strip(),
    "memory": values.memory_mib,
    "moment": begin,
    "name": values.name,
    "signal": lambda text, option: values.signal_name(text),
    "span": values.span,
    "tags": lambda names, option: [values.name(name, option) for name in names],
    "targets": targets,
    "words": resume,
}


def edit_request(
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
            changes |= fields_of({name: text})
    new_tags = [values.name(name, "--tag") for name in tag]
    old_tags = [values.name(name, "--tag") for name in untag]
    return requests.Edit(jobs, changes, new_tags, old_tags, _array_limit(array_limit))


def _array_limit(text: str) -> int | None:
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
