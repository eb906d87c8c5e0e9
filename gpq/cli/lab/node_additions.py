"""Adds the servers of one `gpq nodes add`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpq.cli import output
from gpq.errors import GpqError
from gpq.servers import adding


def add_each(servers: Sequence[adding.Wanted], *, yes: bool, quiet: bool) -> list[dict[str, Any]]:
    """What --json shows of the servers that gpq added. One bad server does not stop the others."""
    if len(servers) == 1:
        return [adding.add(servers[0], output, yes=yes, quiet=quiet)]
    rows = [_add_or_note(server, yes=yes, quiet=quiet) for server in servers]
    return [row for row in rows if row is not None]


def _add_or_note(server: adding.Wanted, *, yes: bool, quiet: bool) -> dict[str, Any] | None:
    try:
        return adding.add(server, output, yes=yes, quiet=quiet)
    except GpqError as error:
        hint = f" ({error.hint})" if error.hint else ""
        output.note(f"{server.host} was not added: {error.message}{hint}")
        return None
