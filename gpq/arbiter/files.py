"""Files of one JSON object, which are replaced as a whole or not at all."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from gpq_agent import records, wire

from gpq import decoding
from gpq.errors import Refused

Content = TypeVar("Content", bound=msgspec.Struct)


def read(path: str, kind: type[Content]) -> Content | None:
    """None if there is no file. Raises records.Damaged, or Refused if that cannot be found out."""
    try:
        tree = wire.read_json(path)
        return None if tree is None else decoding.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise records.Damaged(path, str(error)) from None
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}", "try again") from None


def write(path: str, content: msgspec.Struct) -> None:
    """Durably, for this user alone. Raises Refused."""
    try:
        wire.write_json(path, msgspec.to_builtins(content))
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: str, error: OSError) -> Refused:
    hint = "free some space there, or make it writable, and try again"
    return Refused(f"cannot write {path}: {error.strerror}", hint)
