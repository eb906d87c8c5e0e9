"""Finds the module of a command and runs its typer app. Turns errors of typer into errors of
gpq."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gpq
from gpq.cli import commands
from gpq.cli.commands import COMMANDS
from gpq.errors import GpqError, UsageError


def dispatch(argv: list[str]) -> int:
    """Exit status of `gpq ARGV...`. Raises GpqError."""
    if not argv:
        sys.stdout.write(summary())
        return 0
    name = argv[0]
    if name in ("--help", "-h", "help") and len(argv) < 2:
        sys.stdout.write(overview())
        return 0
    if name == "help":
        return dispatch([argv[1], "--help"])
    if name == "--version":
        sys.stdout.write(f"gpq {gpq.__version__}\n")
        return 0
    if name not in COMMANDS and name not in commands.names():
        kind = "option" if name.startswith("-") else "command"
        raise UsageError(f"gpq has no {kind} {name}", command_hint(name))
    return run(name, argv[1:])


def run(name: str, argv: list[str]) -> int:
    """Exit status of one command: the return value of its function, or 0 for None."""
    typer_command = command(name)
    try:
        # Not `main()`, which handles Ctrl-C and closed pipes in its own way. `fast_path` handles
        # both.
        with typer_command.make_context(f"gpq {name}", argv) as context:
            code = typer_command.invoke(context)
    except Exception as error:
        if type(error).__name__ == "Exit":  # --help
            return int(getattr(error, "exit_code", 0))
        raise complaint(error, name) from None
    return code if isinstance(code, int) else 0


def command(name: str) -> Any:
    """The typer command of this name, from its own module."""
    import typer.main

    module, _, attribute = commands.row(name)[0].partition(":")
    return typer.main.get_command(getattr(importlib.import_module(module), attribute or "app"))


def complaint(error: Exception, name: str) -> Exception:
    """Usage errors of typer as UsageError. Other errors stay as they are.

    They are recognised by their method, because the version of typer decides whether their classes
    come from click or from typer.
    """
    if not hasattr(error, "format_message"):
        return error
    path = getattr(getattr(error, "ctx", None), "command_path", f"gpq {name}")
    if type(error).__name__ == "NoSuchOption":
        option = getattr(error, "option_name", "")
        hint = f"`{path} --help` lists the options"
        if possibilities := getattr(error, "possibilities", None):
            hint = f"did you mean {', '.join(sorted(possibilities))}?"
        if equivalent := EQUIVALENTS.get((name, option.partition("=")[0])):
            hint = f"`{equivalent}`"
        return UsageError(f"{path} has no option {option}", hint)
    message = _own_words(
        " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")
    )
    if not message[:2].isupper():
        message = message[:1].lower() + message[1:]
    return UsageError(f"{path}: {message}", f"`{path} --help` shows examples")


SYNONYMS = {  # words from other tools, by gpq's name for the command
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
EQUIVALENTS = {  # options that users expect, and what does the same in gpq
    ("status", "--watch"): "gpq top",
    ("status", "-w"): "gpq top",
    ("status", "-f"): "gpq top",
    ("status", "--follow"): "gpq top",
    ("cancel", "--all"): "gpq cancel all",
    ("cancel", "-a"): "gpq cancel all",
    ("logs", "--tail"): "gpq logs --lines 20",
}


def command_hint(word: str) -> str:
    """A hint for a user who typed `word` as a command."""
    for name, synonyms in SYNONYMS.items():
        if word in synonyms.split():
            return f"`gpq {name}` does that"
    return near(word, commands.names())


VALIDATOR = (  # what the validator expects, and how gpq says it
    (r"a valid integer\b.*", "a whole number"),
    (r"a valid number\b.*", "a number"),
    (r"greater than or equal to (\S+)", r"\1 or more"),
    (r"less than or equal to (\S+)", r"\1 or less"),
)


def _own_words(sentence: str) -> str:
    """A sentence of the validator in plain words. Other sentences stay as they are."""
    import re

    match = re.fullmatch(
        r"Invalid value for '([^']+)'(?: / '[^']+')*: Input should be (.*)", sentence, re.IGNORECASE
    )
    if match is None:
        return sentence
    expected = match[2]
    for pattern, words in VALIDATOR:
        expected = re.sub(rf"^{pattern}$", words, expected)
    return f"{match[1].partition(' / ')[0]} must be {expected}"


def near(word: str, names: object) -> str:
    """A hint with the names that are similar to `word`."""
    import difflib

    words = list(names)  # type: ignore[call-overload]
    matches = difflib.get_close_matches(word, words, n=3, cutoff=0.5)
    if matches:
        return f"did you mean {' or '.join(matches)}?"
    return "`gpq --help` lists the commands"


DAILY_COMMANDS = ("submit", "status", "why", "logs", "cancel", "top")


def summary() -> str:
    """What `gpq` without a command prints: the commands for every day."""
    lines = "\n".join(f"  gpq {name:8}{COMMANDS[name][1]}" for name in DAILY_COMMANDS)
    return f"""usage: gpq COMMAND [options]

{lines}

Example:
  gpq submit train.py --epochs 10

`gpq --help` lists all commands. `gpq COMMAND --help` explains one.
"""


def overview() -> str:
    """What `gpq --help` prints."""
    names = commands.names()
    width = max(map(len, names))
    rows = []
    for name in names:
        try:
            line = commands.row(name)[1]
        except GpqError as error:  # another package has broken it
            line = error.message
        rows.append(f"  {name:{width}}  {line}")
    lines = "\n".join(rows)
    return f"""usage: gpq COMMAND [options]

A job manager for shared GPU servers. Submit your jobs, and gpq decides which GPUs they get.

{lines}

Example:
  gpq submit train.py --epochs 10
  gpq status

`gpq COMMAND --help` explains one command. `gpq --version` prints the version.
"""
