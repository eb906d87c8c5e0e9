"""Adds and removes `[nodes.NAME]` and `[team]` tables in config.toml. A hand-written file keeps
its order and its comments."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import tomlkit

from gpq import config, paths
from gpq.errors import GpqError, NotFound, Refused, UsageError
from gpq.folders import make_private


def read() -> str:
    """The text of the file in use, "" if there is none."""
    try:
        with open(paths.config(), encoding="utf-8", newline="") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise UsageError(
            f"cannot read {paths.config()}: {reason}", "make it a readable UTF-8 file"
        ) from None


def with_node(text: str, name: str, fields: Mapping[str, object]) -> str:
    """`text` with the table of one more server. If it had none, this machine gets a table too,
    because it would no longer be used otherwise."""
    document = _document(text)
    nodes = document.setdefault("nodes", tomlkit.table(is_super_table=True))
    if name in nodes or (not nodes and name == "local"):
        raise Refused(
            f"there is already a server {name}",
            f"run `gpq nodes remove {name}` first, or choose another --name",
        )
    if not nodes:
        nodes["local"] = {"connector": "local"}
    nodes[name] = dict(fields)
    return _check(document.as_string(), document.unwrap())


def without_node(text: str, name: str) -> str:
    """`text` without the table of one server. Comments stay."""
    document = _document(text)
    nodes = document.get("nodes", {})
    if name not in nodes:
        node_names = ", ".join(nodes) or "none, so this machine is the server `local`"
        raise NotFound(f"no server {name} in {paths.config()}", f"servers there: {node_names}")
    if len(nodes) == 1:
        raise Refused(f"{name} is the only server", "add another one first with `gpq nodes add`")
    expected = document.unwrap()
    del nodes[name], expected["nodes"][name]
    return _check(_with_comments(text, document.as_string()), expected)


def with_team(text: str, team: config.TeamConfig) -> str:
    """`text` with the team, and with who decides for it, and where."""
    document = _document(text)
    table = document.setdefault("team", tomlkit.table())
    table["name"], table["uid"] = team.name, team.uid
    table.pop("arbiter", None)
    if team.arbiter:
        table["arbiter"] = team.arbiter
    return _check(document.as_string(), document.unwrap())


def without_team(text: str) -> str:
    """`text` without the team. Comments stay."""
    document = _document(text)
    expected = document.unwrap()
    if expected.pop("team", None) is None:
        return text
    del document["team"]
    return _check(_with_comments(text, document.as_string()), expected)


def _with_comments(before: str, after: str) -> str:
    """`after`, which lacks a table of `before`, with the comments that were in this table."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    pairs = enumerate(zip(old, new, strict=False))
    first = next((line for line, (was, now) in pairs if was != now), len(new))
    removed = old[first : first + len(old) - len(new)]
    remarks = [line for line in removed if not line.strip() or line.lstrip().startswith("#")]
    if "".join(remarks).strip():
        new[first:first] = remarks
    while new and not new[-1].strip():
        new.pop()
    return "".join(new)


def _document(text: str) -> tomlkit.TOMLDocument:
    config.parse(text, paths.config())  # raises for an invalid file, which stays untouched
    return tomlkit.parse(text)


def _check(text: str, expected: Mapping[str, Any]) -> str:
    """`text`, if it parses to `expected`. Raises Refused otherwise, and UsageError for an invalid
    server."""
    if tomlkit.parse(text).unwrap() != expected:
        raise Refused(
            f"gpq cannot change {paths.config()} safely",
            "edit the file by hand, then run `gpq config check`",
        )
    config.parse(text, paths.config())
    return text


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
