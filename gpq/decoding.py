"""Decodes JSON and plain values into gpq's types. Safe in many threads at once.

msgspec prepares a type at its first use and runs Python code as it does. If another thread uses the
type before it is ready, the process crashes with a segmentation fault. So only one thread at a time
prepares types.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_WORKING_OUT = threading.Lock()
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(text: str | bytes | msgspec.Raw, kind: type[T]) -> T:
    """JSON as `kind`. Raises msgspec.DecodeError (a ValueError), which includes ValidationError."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        with _WORKING_OUT:
            decoder = _DECODERS.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder.decode(text)  # type: ignore[no-any-return]


def convert(tree: object, kind: Any) -> Any:
    """Plain values (from json or tomllib) as `kind`. Raises msgspec.ValidationError (a
    ValueError)."""
    with _WORKING_OUT:
        return msgspec.convert(tree, kind)
