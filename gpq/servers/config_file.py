"""Adds and removes `[nodes.NAME]` tables in config.toml and leaves every other byte alone.

It edits the text instead of writing TOML with a library, so that a hand-written file keeps its
look. It parses the result before it keeps it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from gpq import config, paths
from gpq.errors import GpqError, NotFound, Refused, UsageError
from gpq.folders import make_private

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BY_HAND = "edit the file by hand, then run `gpq config check`"
HEADER = re.compile(r"\s*\[")


def read() -> str:
    """The text of the file in use, "" if there is none."""
    try:
        with open(paths.config(), encoding="utf-8", newline="") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _unreadable(error.strerror) from None
    except UnicodeDecodeError as error:
        raise _unreadable(error) from None


def _unreadable(why: object) -> UsageError:
    return UsageError(f"cannot read {paths.config()}: {why}", "make it a readable UTF-8 file")


def with_node(text: str, name: str, fields: Mapping[str, object]) -> str:
    """`text` with one more table at its end. If it had none, this machine gets a table too, because
    it would no longer be used otherwise."""
    before = _tree(text)
    nodes = before.get("nodes", {})
    if name in nodes or (not nodes and name == "local"):
        raise Refused(
            f"there is already a server {name}",
            f"run `gpq nodes remove {name}` first, or choose another --name",
        )
    tables: dict[str, dict[str, object]] = {name: dict(fields)}
    if not nodes:
        tables = {"local": {"connector": "local"}, **tables}
    pieces = [text]
    if text and not text.endswith("\n"):
        pieces.append("\n")
    for node, values in tables.items():
        if any(pieces):
            pieces.append("\n")
        pieces.append(f"[nodes.{_key(node)}]\n")
        pieces += [f"{key} = {json.dumps(value)}\n" for key, value in values.items()]
    return _checked("".join(pieces), {**before, "nodes": {**nodes, **tables}})


def without_node(text: str, name: str) -> str:
    """`text` without the table of one server. Comments stay."""
    before = _tree(text)
    nodes = before.get("nodes", {})
    if name not in nodes:
        node_names = ", ".join(nodes) or "none, so this machine is the server `local`"
        raise NotFound(f"no server {name} in {paths.config()}", f"servers there: {node_names}")
    other_nodes = {node: values for node, values in nodes.items() if node != name}
    if not other_nodes:
        raise Refused(f"{name} is the only server", "add another one first with `gpq nodes add`")
    lines = text.splitlines(keepends=True)
    first, end = _table(lines, name)
    return _checked("".join(_cut(lines, first, end)), {**before, "nodes": other_nodes})


def _cut(lines: Sequence[str], first: int, end: int) -> list[str]:
    """The lines without a table, but with its comments. Leaves no double empty line if it has
    none."""
    remnant = [line for line in lines[first + 1 : end] if _is_remark(line)]
    if any(line.strip() for line in remnant):
        return [*lines[:first], *remnant, *lines[end:]]
    if first == 0 or not lines[first - 1].strip():
        remnant = remnant[1:]
    if end == len(lines):
        first = _last_text(lines[:first])
    return [*lines[:first], *remnant, *lines[end:]]


def _table(lines: Sequence[str], name: str) -> tuple[int, int]:
    """(line of the header of a server's table, first line of the next table). Raises Refused if it
    has no table of its own."""
    header = re.compile(
        rf"\s*\[\s*nodes\s*\.\s*"
        rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')\s*\]"
    )
    first = next((index for index, line in enumerate(lines) if header.match(line)), None)
    if first is None:
        raise Refused(
            f"server {name} has no table [nodes.{name}] of its own in {paths.config()}", BY_HAND
        )
    body = range(first + 1, len(lines))
    return first, next((index for index in body if HEADER.match(lines[index])), len(lines))


def _last_text(lines: Sequence[str]) -> int:
    """The number of lines without the empty ones at the end."""
    count = len(lines)
    while count and not lines[count - 1].strip():
        count -= 1
    return count


def _is_remark(line: str) -> bool:
    """Is it empty, or a comment?"""
    text = line.strip()
    return not text or text.startswith("#")


def _tree(text: str) -> dict[str, Any]:
    config.parse(text, paths.config())  # raises for an invalid file, which stays untouched
    tree: dict[str, Any] = tomllib.loads(text)
    return tree


def _checked(text: str, expected: Mapping[str, Any]) -> str:
    """`text`, if it parses to `expected`. Raises Refused otherwise, and UsageError for an invalid
    server."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        tree = {}
    if tree != expected:
        raise Refused(f"gpq cannot change {paths.config()} safely", BY_HAND)
    config.parse(text, paths.config())
    return text


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def write(text: str, before: str) -> None:
    """Replace the file at once, if it still is `before`. If it is a link, replace the file that it
    leads to."""
    path = os.path.realpath(paths.config())
    folder = os.path.dirname(path)
    temporary = ""
    try:
        if not os.path.isdir(folder):  # one that is there may be for others, too
            make_private(folder)
        descriptor, temporary = tempfile.mkstemp(prefix=".config.", dir=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(stream.fileno(), os.stat(path).st_mode & 0o777)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if read() != before:
            raise Refused(f"{path} has changed in the meantime", "try again")
        os.replace(temporary, path)
    except OSError as error:
        raise GpqError(
            f"cannot write {path}: {error.strerror}", "make its folder writable"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
