"""The commands: their module (and the name of the app, if it is not `app`) and one line each. Finds
the module of a command and runs its typer app. Turns errors of typer into errors of gpq.

Other packages, such as `gpq.lab`, add such rows as entry points of the group `gpq.commands`.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import gpq
from gpq import extensions
from gpq.errors import GpqError, UsageError

GROUP = "gpq.commands"
Row = tuple[str, str]

COMMANDS: dict[str, Row] = {
    "submit": ("gpq.cli.jobs.submit", "queue a job"),
    "run": ("gpq.cli.jobs.run:run_app", "run a command on a queued GPU as if it ran here"),
    "shell": ("gpq.cli.jobs.run:shell_app", "open a shell on a queued GPU"),
    "attach": ("gpq.cli.jobs.run:attach_app", "connect to the streams of a job of `gpq run`"),
    "status": (
        "gpq.cli.jobs.status:status",
        "show the queue: which job has which GPUs, and why others wait",
    ),
    "show": ("gpq.cli.jobs.status:show", "show everything about one job"),
    "why": ("gpq.cli.jobs.status:why", "explain why a job waits, or why it has these GPUs"),
    "logs": ("gpq.cli.jobs.logs", "show what a job printed"),
    "cancel": (
        "gpq.cli.jobs.cancel",
        "stop jobs permanently, and return when every process is gone",
    ),
    "hold": ("gpq.cli.jobs.changes:hold", "keep jobs from starting until you release them"),
    "release": ("gpq.cli.jobs.changes:release", "let held jobs start"),
    "requeue": ("gpq.cli.jobs.changes:requeue", "queue jobs again"),
    "edit": ("gpq.cli.jobs.changes:edit", "change jobs"),
    "wait": ("gpq.cli.jobs.wait", "wait until jobs have ended, and exit with the job's code"),
    "nodes": ("gpq.cli.lab.nodes", "show and manage the servers and their GPUs"),
    "yield": ("gpq.cli.lab.nodes:yield_", "get your own server back from gpq"),
    "top": ("gpq.cli.top.top", "live view of GPUs, jobs, goodput, fairness and changes"),
    "notify": ("gpq.cli.lab.config:notify", "list and test the targets of notifications"),
    "history": (
        "gpq.cli.jobs.history:history",
        "show jobs that ended: waits, GPU hours, goodput hours, restarts",
    ),
    "report": ("gpq.cli.jobs.history:report", "report GPU hours, waits, restarts and fairness"),
    "team": ("gpq.cli.team", "one queue with colleagues: make it, show it, and say who is in it"),
    "join": ("gpq.cli.team:join", "join the queue of a team"),
    "leave": ("gpq.cli.team:leave", "leave the queue of your team"),
    "daemon": ("gpq.cli.lab.daemon", "start, stop and inspect the daemon"),
    "check": (
        "gpq.cli.jobs.check",
        "prove on your own script that gpq does not change what it trains",
    ),
    "doctor": (
        "gpq.cli.doctor.doctor",
        "check this machine and the servers, and say how to fix problems",
    ),
    "config": ("gpq.cli.lab.config:config", "show and check the configuration"),
    "demo": ("gpq.cli.lab.demo", "watch three real training jobs on two small CPU servers"),
    "import": ("gpq.cli.jobs.import_", "import jobs from Slurm scripts or from task-spooler"),
    "schema": ("gpq.cli.lab.schema:schema", "print the JSON Schema of a command's --json output"),
    "completion": ("gpq.cli.lab.schema:completion", "print the completion script of a shell"),
}


def names() -> list[str]:
    """The names of all commands. It imports none of them."""
    return [*COMMANDS, *(name for name in extensions.entries(GROUP) if name not in COMMANDS)]


def row(name: str) -> Row:
    """The row of a command. Raises KeyError if there is none, and UsageError for a broken entry
    point."""
    if name in COMMANDS:
        return COMMANDS[name]
    match extensions.load(GROUP, name):
        case (str(module), str(line)):
            return module, line
    raise extensions.broken(GROUP, name, "it is not a pair (module, line for `gpq --help`)")


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
    if name not in COMMANDS and name not in names():
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

    module, _, attribute = row(name)[0].partition(":")
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
    message = " ".join(error.format_message().split())
    message = message.rstrip(".").replace(": Value error, ", ": ")
    match = re.fullmatch(VALIDATION, message, re.IGNORECASE)
    if match is not None:
        expected = match[2]
        for pattern, words in VALIDATOR:
            expected = re.sub(rf"^{pattern}$", words, expected)
        message = f"{match[1].partition(' / ')[0]} must be {expected}"
    if not message[:2].isupper():
        message = message[:1].lower() + message[1:]
    return UsageError(f"{path}: {message}", f"`{path} --help` shows examples")


SYNONYMS = {  # words from other tools, by gpq's name for the command
    "cancel": "kill stop delete del rm remove abort scancel qdel",
    "status": "ls ps list queue jobs squeue qstat",
    "submit": "add start sbatch qsub",
    "run": "srun exec",
    "shell": "salloc bash interactive",
    "attach": "sattach connect",
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
    import difflib

    matches = difflib.get_close_matches(word, names(), n=3, cutoff=0.5)
    if matches:
        return f"did you mean {' or '.join(matches)}?"
    return "`gpq --help` lists the commands"


VALIDATION = r"Invalid value for '([^']+)'(?: / '[^']+')*: Input should be (.*)"
VALIDATOR = (  # what the validator expects, and how gpq says it
    (r"a valid integer\b.*", "a whole number"),
    (r"a valid number\b.*", "a number"),
    (r"greater than or equal to (\S+)", r"\1 or more"),
    (r"less than or equal to (\S+)", r"\1 or less"),
)


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
    everything = names()
    width = max(map(len, everything))
    rows = []
    for name in everything:
        try:
            line = row(name)[1]
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
