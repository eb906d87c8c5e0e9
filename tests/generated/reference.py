"""Reads the commands from the typer apps: the page of commands, and the grammar for completion.

`python -m tests.generated.reference` prints the table of commands. With `--write`, in the root of
the repository, it writes all files that are made from the commands: docs/commands.md,
gpq/man/, gpq/options/completion_data.py, gpq/schemas/ and gpq/api/option_types.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from gpq.cli.app import command, names, row
from gpq.core.model.jobs import JobState
from gpq.outward import WORDS
from gpq.policies.registry import POLICIES
from gpq.rpc.submit_table import KINDS, OPTIONS, edit_options
from gpq.views.queue import ENDED
from tests.generated import man_pages, pages, schemas

COMPLETED = {
    "JOB": "jobs",
    "JOB[:ok|any|notok": "jobs",
    "NODE": "nodes",
    "NODE[:GPUS]": "nodes",
    "USER": "users",
    "PATH": "files",
    "FILE": "files",
    "MEMBER": "member",
    "MEMBER/JOB": "member/job",
}
CHOICES = {
    "STATE": tuple(JobState),
    "ENDED": ENDED,
    "SIGNAL": ("USR1", "USR2", "TERM", "INT", "HUP"),
    "POLICY": tuple(POLICIES),
    "WORD,...": tuple(WORDS),
}
OPTION_TYPES = '''\
"""The options of `gpq.submit` and `Job.edit`, and their types. Made from gpq/rpc/submit_table.py by
`make completions`, so edit that instead."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

from gpq.api.options import Duration, Gpus, Moment, Selector, Word


class Options(TypedDict, total=False):
    """The options of `gpq.submit`, with the names of the command line. `gpq submit --help` explains
    them."""

'''
EDIT_TYPES = '''\


class Edits(TypedDict, total=False):
    """The options of `Job.edit`, with the names of the command line."""

'''


def leaves() -> Iterator[tuple[str, Any]]:
    """(path, typer command) of every command, including those in groups, such as `daemon start`."""
    for name in names():
        typer_command = command(name)
        inner = getattr(typer_command, "commands", None)
        if inner is None:
            yield name, typer_command
        else:
            yield from ((f"{name} {subcommand}", inner[subcommand]) for subcommand in inner)


def grammar() -> str:
    """The module gpq/options/completion_data.py."""
    lines = [
        ('"""What completion offers. Made from the commands by `make completions`, so edit those instead.'),
        "",
        ('GRAMMAR: path -> (kind of arguments, {option: (help, kind of value, "" for a flag)}). A kind is jobs,'),
        "nodes, users, files, commands (with a schema), any, words joined by |, or one job, node,",
        "member or job of a member.",
        "",
        "COMMANDS: command -> what `gpq --help` says of it.",
        '"""',
        "",
        "# fmt: off",
        "# ruff: noqa: E501",
        "",
        "COMMANDS: dict[str, str] = {",
        *(f"    {_quote(name)}: {_quote(row(name)[1])}," for name in names()),
        "}",
        "",
        "GRAMMAR: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {",
    ]
    for path, typer_command in leaves():
        arguments = [*map(_kind, pages.parameters(typer_command, "argument"))]
        lines += [
            f"    {_quote(path)}: (",
            f"        {_quote(arguments[0] if arguments else '')},",
            "        {",
        ]
        for parameter in pages.parameters(typer_command, "option"):
            lines += _option_lines(parameter)
        lines += ["        },", "    ),"]
    return "\n".join([*lines, "}"]) + "\n"


def _option_lines(parameter: Any) -> list[str]:
    """The long name with its help. The short name is understood but not offered, and points to the
    long one."""
    help_text = " ".join((parameter.help or "").split("[default")[0].split())
    kind = _quote("" if parameter.is_flag else _kind(parameter))
    long, *short = sorted(parameter.opts, key=len, reverse=True)
    texts = [(long, help_text), *((name, long) for name in short)]
    return [f"            {_quote(name)}: ({_quote(text)}, {kind})," for name, text in texts]


def _kind(parameter: Any) -> str:
    metavar = str(parameter.metavar or "").strip("[].")
    if "--signal" in parameter.opts:
        metavar = "SIGNAL"
    word = metavar.split(" ")[0].strip("[].,")
    if word == "COMMAND" and parameter.param_type_name == "argument":
        return "commands"
    if word in CHOICES:
        return "|".join(CHOICES[word])
    if word.islower() and "|" in word:
        return word
    if word.startswith("SCRIPT"):
        return "files"
    kind = COMPLETED.get(word, "any")
    if parameter.param_type_name == "argument" and parameter.nargs == 1:
        return {"jobs": "job", "nodes": "node"}.get(kind, kind)
    return kind


def _quote(text: str) -> str:
    if '"' in text and "'" not in text:
        return f"'{text}'"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def option_types() -> str:
    """The module gpq/api/option_types.py."""
    lines = [f"    {option.name}: {KINDS[option.kind][1]}\n" for option in OPTIONS if option.part == "job"]
    edits = [(option.name, KINDS[option.kind][1]) for option in edit_options()]
    edit_lines = [  # a number that is not given is None
        f"    {name}: {kind} | None\n" if kind in ("int", "bool") else f"    {name}: {kind}\n" for name, kind in edits
    ]
    return "".join([OPTION_TYPES, *lines, EDIT_TYPES, *edit_lines])


def documents() -> dict[str, str]:
    """Path in the repository -> its contents, for everything that is made from the commands."""
    manual = {f"gpq/man/{name}": text for name, text in man_pages.pages().items()}
    return {
        **manual,
        **schemas.files(),
        **pages.tables(),
        "gpq/api/option_types.py": option_types(),
        "gpq/options/completion_data.py": grammar(),
        "docs/commands.md": pages.page(list(leaves())),
    }


def main(argv: list[str]) -> int:
    if argv != ["--write"]:
        sys.stdout.write(pages.table(list(leaves())))
        return 0
    for path, text in documents().items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
