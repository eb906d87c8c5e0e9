"""`gpq schema` and `gpq completion`: print what the package ships, JSON Schemas and the scripts of
the shells."""

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import Annotated

import typer

import gpq
from gpq.cli import output
from gpq.cli.shell_scripts import script
from gpq.cli.typer_app import frame
from gpq.errors import NotFound

schema = frame()
completion = frame()
COMMAND = typer.Argument(
    metavar="[COMMAND]...", help="For example: status, nodes list. [default: list all]"
)
FOLDER = os.path.join(os.path.dirname(os.path.abspath(gpq.__file__)), "schemas")
DEFAULTS = {"nodes": "nodes-list", "config": "config-show"}  # as on the command line


@schema.command("schema")
def _schema(command: Annotated[list[str] | None, COMMAND] = None) -> None:
    """Print the JSON Schema (2020-12) of a command's --json output, including errors.

    New versions may add fields, so ignore those that you do not know. `gpq logs --json` prints JSON
    Lines, and its schema describes one line.

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
    name = DEFAULTS.get(path, name_of(path))
    if name not in _files():
        raise NotFound(
            f"gpq {path} has no --json, so it has no schema", "`gpq schema` lists all schemas"
        )
    with open(os.path.join(FOLDER, f"{name}.json"), encoding="utf-8") as stream:
        sys.stdout.write(stream.read())


def name_of(path: str) -> str:
    """The file of a command: `nodes-list` for `nodes list`."""
    return path.replace(" ", "-")


def _files() -> list[str]:
    return sorted(
        name.removesuffix(".json") for name in os.listdir(FOLDER) if name.endswith(".json")
    )


class Shell(str, Enum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@completion.command("completion")
def _completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")],
) -> None:
    """Print the completion script of a shell.

    It completes commands, options, job ids, names, servers and users. The lines below turn it on in
    every new shell, for bash, zsh and fish in this order. They do nothing if gpq is not on PATH. In
    zsh, put the line after any line with `compinit`. If gpq is in a virtual environment that is not
    always active, write its full path in the line, such as ~/.gpq/bin/gpq. TAB then also completes
    for that path.

    \b
    Example:
      echo 'source <(gpq completion bash 2>/dev/null)' >> ~/.bashrc
      echo 'source <(gpq completion zsh 2>/dev/null)' >> ~/.zshrc
      mkdir -p ~/.config/fish/completions; gpq completion fish > ~/.config/fish/completions/gpq.fish
    """
    output.say(*script(shell.value).splitlines())
