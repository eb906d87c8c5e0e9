"""The page `docs/commands.md`: a table of all commands, then each with its usage, options and
examples. Made from the same help as the manual pages and completion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

HEAD = """\
# Commands

<!-- Made from the commands by make completions: edit their help instead. -->

Every command has `--help`, a man page (`man gpq-submit`) and [completion](install.md). For `gpq
submit`, options of gpq come before the script or before `--`. Everything after that belongs to your
job. For all other commands, options may come anywhere.
"""


def page(commands: list[tuple[str, Any]]) -> str:
    """The whole page, of (path, typer command) such as `daemon start`."""
    parts = [HEAD, table(commands)]
    parts += ["\n".join(_section(path, command)) for path, command in commands]
    return "\n".join(parts)


def table(commands: list[tuple[str, Any]]) -> str:
    """The commands in Markdown: usage and first line of the help."""
    rows = ["| command | what it does |", "|---|---|"]
    for path, command in commands:
        paragraph = (command.help or "").strip().partition("\n\n")[0]
        line = " ".join(paragraph.split()).rstrip(".").replace("|", "\\|")
        rows.append(f"| [`gpq {path}`](#gpq-{path.replace(' ', '-')}) | {line} |")
    return "\n".join(rows) + "\n"


def _section(path: str, command: Any) -> Iterator[str]:
    text, _, examples = (command.help or "").partition("\b")
    yield f"## gpq {path}\n"
    yield f"```text\ngpq {path} {usage(command)}\n```\n"
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield " ".join(paragraph.split()) + "\n"
    options = [part for part in command.params if part.param_type_name == "option"]
    yield "| option | meaning |\n|---|---|"
    for option in options:
        yield f"| {_names(option)} | {_meaning(option)} |"
    yield f"\n```console\n{_prompts(examples)}\n```\n"


def usage(command: Any) -> str:
    """The arguments as the first line of the help has them: `[OPTIONS] SCRIPT [ARGS]...`."""
    arguments = [
        str(part.metavar or part.name)
        for part in command.params
        if part.param_type_name == "argument"
    ]
    return " ".join(["[OPTIONS]", *arguments])


def _names(option: Any) -> str:
    metavar = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len))
    return f"{names}{_cell(metavar)}"


def _meaning(option: Any) -> str:
    return _cell(" ".join((option.help or "").split()))


def _cell(text: str) -> str:
    """What would end a cell is escaped, and outside code what would begin emphasis or HTML."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*<{_])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces).replace("|", "\\|")


def _prompts(examples: str) -> str:
    lines = [line.strip() for line in examples.splitlines()]
    return "\n".join(f"$ {line}" for line in lines if line not in ("", "Example:"))
