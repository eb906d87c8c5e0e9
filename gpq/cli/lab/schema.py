"""`gpq schema`: the JSON Schema of what a command prints with `--json`, as the package ships it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import gpq
from gpq.cli.shared import output
from gpq.cli.shared.typer_app import frame
from gpq.errors import NotFound

app = frame()
COMMAND = typer.Argument(
    metavar="[COMMAND]...", help="Such as: status, nodes list. Without it, all are listed."
)
FOLDER = os.path.join(os.path.dirname(os.path.abspath(gpq.__file__)), "schemas")


@app.command()
def schema(command: Annotated[list[str] | None, COMMAND] = None) -> None:
    """The JSON Schema (2020-12) of what a command prints with --json, its errors included.

    Fields may be added at any time: ignore those that you do not know. `gpq logs --json` prints
    JSON Lines: its schema is that of a line.

    \b
    Example:
      gpq schema status > status.schema.json
      gpq schema nodes list
      gpq schema
    """
    if not command:
        output.say(
            *(
                f"gpq {path.replace('-', ' '):18} {os.path.join(FOLDER, path)}.json"
                for path in _files()
            )
        )
        return
    path = " ".join(command)
    try:
        with open(
            os.path.join(FOLDER, f"{_known()[name_of(path)]}.json"), encoding="utf-8"
        ) as stream:
            sys.stdout.write(stream.read())
    except KeyError:
        raise NotFound(
            f"gpq {path} has no --json, and so no schema", "`gpq schema` lists those that have"
        ) from None


def name_of(path: str) -> str:
    """The file of a command: `nodes-list` of `nodes list`."""
    return path.replace(" ", "-")


def _files() -> list[str]:
    return sorted(
        name.removesuffix(".json") for name in os.listdir(FOLDER) if name.endswith(".json")
    )


def _known() -> dict[str, str]:
    """What a command may be called here -> its file; `nodes` is `nodes list`, as on the command
    line."""
    names = _files()
    default = {
        name.partition("-")[0]: name for name in names if name in ("nodes-list", "config-show")
    }
    return {**{name: name for name in names}, **default}
