"""`gpq completion`: prints the script of a shell."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.shell_scripts import SCRIPTS
from gpq.cli.typer_app import frame

app = frame()


class Shell(str, Enum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command()
def completion(
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
    output.say(*SCRIPTS[shell.value].splitlines())
