"""JSON and trees of plain values as the types that gpq knows. Safe from many threads at once.

msgspec works out a type at its first use, running Python as it goes, and another thread that uses
the type meanwhile meets it half worked out: the process ends by a segmentation fault. So one thread
at a time works types out.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_WORKING_OUT = threading.Lock()
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(text: str | bytes | msgspec.Raw, kind: type[T]) -> T:
    """JSON as `kind`. Raises msgspec.DecodeError (a ValueError), of which a ValidationError is
    one."""
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
