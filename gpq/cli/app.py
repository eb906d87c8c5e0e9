"""Finds the one module that a command needs and runs its typer app; turns typer's complaints into
gpq's errors."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gpq
from gpq.cli.shared.commands import COMMANDS
from gpq.errors import UsageError


def dispatch(argv: list[str]) -> int:
    """Exit status of `gpq ARGV...`. Raises GpqError."""
    if not argv:
        sys.stdout.write(summary())
        return 0
    first = argv[0]
    if first in ("--help", "-h", "help") and len(argv) < 2:
        sys.stdout.write(overview())
        return 0
    if first == "help":
        return dispatch([argv[1], "--help"])
    if first == "--version":
        sys.stdout.write(f"gpq {gpq.__version__}\n")
        return 0
    if first not in COMMANDS:
        raise UsageError(
            f"gpq has no {'option' if first.startswith('-') else 'command'} {first}", meant(first)
        )
    return run(first, argv[1:])


def run(name: str, argv: list[str]) -> int:
    """Exit status of one command: what its function returns, 0 for None."""
    found = command(name)
    try:
        # Not `main()`: it has its own mind about Ctrl-C and closed pipes, which are the door's to
        # handle.
        with found.make_context(f"gpq {name}", argv) as context:
            code = found.invoke(context)
    except Exception as error:
        if type(error).__name__ == "Exit":  # --help
            return int(getattr(error, "exit_code", 0))
        raise complaint(error, name) from None
    return code if isinstance(code, int) else 0


def command(name: str) -> Any:
    """The typer command of one name, from its own module."""
    import typer.main

    module, _, attribute = COMMANDS[name][0].partition(":")
    return typer.main.get_command(getattr(importlib.import_module(module), attribute or "app"))


def complaint(error: Exception, name: str) -> Exception:
    """typer's own usage errors as UsageError; any other error as it is.

    They are known by their method: whether click's classes or typer's own, depends on the version
    of typer.
    """
    if not hasattr(error, "format_message"):
        return error
    path = getattr(getattr(error, "ctx", None), "command_path", f"gpq {name}")
    option = getattr(error, "option_name", "")
    if type(error).__name__ == "NoSuchOption":
        close = ", ".join(sorted(error.possibilities or ()))  # type: ignore[attr-defined]
        hint = f"did you mean {close}?" if close else f"`{path} --help` lists the options"
        if instead := INSTEAD.get((name, option.partition("=")[0])):
            hint = f"`{instead}`"
        return UsageError(f"{path} has no option {option}", hint)
    said = _own_words(
        " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")
    )
    return UsageError(
        f"{path}: {said if said[:2].isupper() else said[:1].lower() + said[1:]}",
        f"`{path} --help` has examples",
    )


OTHERS = {  # what people say elsewhere, and gpq's word for it
    "cancel": "kill stop delete del rm remove abort scancel qdel",
    "status": "ls ps list queue jobs squeue qstat",
    "submit": "run add start sbatch qsub exec",
    "show": "info describe inspect",
    "logs": "cat tail out output",
    "why": "explain reason",
    "top": "watch monitor htop",
    "nodes": "servers hosts sinfo",
    "history": "sacct past",
    "edit": "set update modify scontrol",
    "release": "resume unhold",
    "hold": "pause suspend",
    "requeue": "restart retry rerun",
}
INSTEAD = {  # options that people expect, and what does it here
    ("status", "--watch"): "gpq top",
    ("status", "-w"): "gpq top",
    ("status", "-f"): "gpq top",
    ("status", "--follow"): "gpq top",
    ("cancel", "--all"): "gpq cancel all",
    ("cancel", "-a"): "gpq cancel all",
    ("logs", "--tail"): "gpq logs --lines 20",
}


def meant(word: str) -> str:
    """A hint for who typed `word` for a command."""
    for name, others in OTHERS.items():
        if word in others.split():
            return f"`gpq {name}` does that"
    return near(word, COMMANDS)


VALIDATOR = (  # what the validator says a value should be, and how gpq says it
    (r"a valid integer\b.*", "a whole number"),
    (r"a valid number\b.*", "a number"),
    (r"greater than or equal to (\S+)", r"\1 or more"),
    (r"less than or equal to (\S+)", r"\1 or less"),
)


def _own_words(said: str) -> str:
    """A validator's sentence about a value as a person would say it; any other sentence as it
    is."""
    import re

    found = re.fullmatch(
        r"Invalid value for '([^']+)'(?: / '[^']+')*: Input should be (.*)", said, re.IGNORECASE
    )
    if found is None:
        return said
    wanted = found[2]
    for pattern, words in VALIDATOR:
        wanted = re.sub(rf"^{pattern}$", words, wanted)
    return f"{found[1].partition(' / ')[0]} must be {wanted}"


def near(word: str, known: object) -> str:
    """A hint with the names that look like `word`."""
    import difflib

    words = list(known)  # type: ignore[call-overload]
    close = difflib.get_close_matches(word, words, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else "`gpq --help` lists the commands"


FIRST = ("submit", "status", "why", "logs", "cancel", "top")


def summary() -> str:
    """What `gpq` alone prints: what one needs every day."""
    listed = "\n".join(f"  gpq {name:8}{COMMANDS[name][1]}" for name in FIRST)
    return f"""usage: gpq COMMAND [options]

{listed}

Example:
  gpq submit train.py --epochs 10

`gpq --help` lists all commands, `gpq COMMAND --help` explains one.
"""


def overview() -> str:
    """What `gpq --help` prints."""
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:{width}}  {line}" for name, (_, line) in COMMANDS.items())
    return f"""usage: gpq COMMAND [options]

A job manager for shared GPU servers: submit what you have, gpq finds who gets which GPUs.

{listed}

Example:
  gpq submit train.py --epochs 10
  gpq status

`gpq COMMAND --help` explains one command. `gpq --version` tells the version.
"""
