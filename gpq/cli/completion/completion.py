"""`gpq completion`: prints the script of a shell."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from gpq.cli.completion.shell_scripts import SCRIPTS
from gpq.cli.shared import output
from gpq.cli.shared.typer_app import frame

app = frame()


class Shell(str, Enum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")],
) -> None:
    """Print the completion script of a shell. Commands, options, job ids, names, servers and users
    complete.

    The lines below turn it on in every new shell of yours, and are for bash, zsh and fish in this
    order. Where gpq is not on PATH, they do nothing. In zsh, keep the line behind any other with
    `compinit`. For gpq in a virtual environment that is not always active, write its path in the
    line, as ~/.gpq/bin/gpq: TAB completes that path, too.

    \b
    Example:
      echo 'source <(gpq completion bash 2>/dev/null)' >> ~/.bashrc
      echo 'source <(gpq completion zsh 2>/dev/null)' >> ~/.zshrc
      mkdir -p ~/.config/fish/completions; gpq completion fish > ~/.config/fish/completions/gpq.fish
    """
    output.say(*SCRIPTS[shell.value].splitlines())
