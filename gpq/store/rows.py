"""Jobs, events and priors as text: JSON, with a checksum that a flipped byte does not survive.
Knows no SQL."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

import msgspec

from gpq import decoding
from gpq.core.model.events import Event, Submitted
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import Reservation
from gpq.core.model.profile import Prior, Profile

T = TypeVar("T")

_QUICK = msgspec.json.Encoder()
_UNMEASURED = Profile()

EVENT_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


class Damaged(ValueError):
    """A row is not what was written."""


def encode(value: Job | Event | Prior | Sequence[Reservation]) -> str:
    """JSON; a number that is none (a diverged loss) is written NaN or Infinity, as Python's json
    reads it."""
    if isinstance(value, Submitted) or (isinstance(value, Job) and value.profile == _UNMEASURED):
        with contextlib.suppress(UnicodeError):
            return _QUICK.encode(value).decode()  # nothing was measured of it: every number is one
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":"), ensure_ascii=False)


def checksum(*columns: object) -> int:
    return zlib.crc32("\x1f".join(map(str, columns)).encode("utf-8", "surrogatepass"))


def decode(text: str, kind: type[T]) -> T:
    """The inverse of `encode`. Fields that came later get their defaults. Raises Damaged."""
    try:
        return decoding.decode(text, kind)
    except msgspec.ValidationError as error:
        raise Damaged(str(error)) from None
    except (msgspec.DecodeError, UnicodeError):
        pass  # NaN is no JSON: the slow way reads it
    try:
        return decoding.convert(json.loads(text), kind)  # type: ignore[no-any-return]
    except ValueError as error:
        raise Damaged(str(error)) from None


def decode_event(kind: str, text: str) -> Event:
    """Raises Damaged, also for a kind that is not known."""
    event_type = EVENT_KINDS.get(kind)
    if event_type is None:
        raise Damaged(f"unknown event {kind!r}")
    event: Event = decode(text, event_type)
    return event
