"""`gpq completion`: prints the script of a shell."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.frame import frame
from gpq.cli.scripts import SCRIPTS

app = frame()


class Shell(str, Enum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")]) -> None:
    """Print the completion script of a shell. Commands, options, job ids, names, servers and users complete.

    \b
    Example:
      source <(gpq completion bash)
      gpq completion zsh > ~/.zfunc/_gpq
      gpq completion fish > ~/.config/fish/completions/gpq.fish
    """
    output.say(*SCRIPTS[shell.value].splitlines())
