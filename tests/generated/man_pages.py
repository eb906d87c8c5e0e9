"""Makes the manual pages in gpq/man/ from the help of the commands: `gpq.1`, and one per command
(`man gpq-submit`).

`python -m tests.generated.reference --write` writes them. They are installed in `share/man/man1`
of the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import gpq
from gpq.cli.app import command, names, row
from tests.generated.pages import parameters, usage

EXIT_STATUS = (
    ("0", "Success."),
    ("1", "Something failed."),
    ("2", "The command line or the configuration is wrong."),
    ("3", "The daemon does not answer."),
    ("4", "There is no such job or server."),
    ("5", "Refused: gpq understood the request but did not do it."),
    ("124", "A --timeout ran out."),
    ("130", "Ctrl-C."),
)
ENVIRONMENT = (
    ("GPQ_CONFIG", "The configuration file. Default: $XDG_CONFIG_HOME/gpq/config.toml."),
    ("GPQ_HOME", "The state directory. Default: $XDG_STATE_HOME/gpq."),
    ("NO_COLOR", "Set it to turn colours off."),
)
ESCAPES = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"})
OWN_CODE = "`gpq wait` and `gpq submit --wait` exit with the job's own code, or 128 + n if signal n ended it."


def pages() -> dict[str, str]:
    """File name -> text, in the language of man(7)."""
    texts = {"gpq.1": overview()}
    for name in names():
        texts[f"gpq-{name}.1"] = page(name)
    return texts


def overview() -> str:
    lines = [
        *_head("gpq", "a job manager for shared GPU servers"),
        ".SH SYNOPSIS",
        r".B gpq",
        r"\fICOMMAND\fR [\fIoptions\fR]",
        ".SH DESCRIPTION",
        _text(
            "gpq queues jobs on the GPUs of servers that it reaches by ssh. It decides which job"
            " gets which GPUs and which batch size, and adjusts both while jobs run. Your own"
            " daemon does this, and any command starts it."
        ),
        ".SH COMMANDS",
    ]
    for name in names():
        line = row(name)[1]
        lines += [".TP", f"\\fBgpq\\-{_text(name)}\\fR(1)", _text(f"{line[:1].upper()}{line[1:]}.")]
    lines += [".SH EXIT STATUS", *_definitions(EXIT_STATUS), ".PP", _text(OWN_CODE)]
    lines += [".SH ENVIRONMENT", *_definitions(ENVIRONMENT)]
    lines += [".SH EXAMPLES", *_verbatim(["gpq submit train.py --epochs 10", "gpq status"])]
    return "\n".join(lines) + "\n"


def page(name: str) -> str:
    """The page of one command, or of a group with its commands."""
    typer_command = command(name)
    inner = getattr(typer_command, "commands", None)
    lines = _head(f"gpq-{name}", row(name)[1])
    if inner is None:
        lines += [*_synopsis({f"gpq {name}": typer_command}), ".SH DESCRIPTION"]
        lines += [*_body(typer_command), ".SH OPTIONS", *_options(typer_command)]
        lines += [".SH EXAMPLES", *_examples(typer_command)]
    else:
        parts = {f"gpq {name} {subcommand}": inner[subcommand] for subcommand in inner}
        help_text = _text(" ".join((typer_command.help or "").split()))
        lines += [*_synopsis(parts), ".SH DESCRIPTION", help_text, ".SH COMMANDS"]
        for path, part in parts.items():
            lines += [f".SS {_text(path)}", *_body(part), *_options(part)]
            lines += [".PP", "Example:", *_examples(part)]
    lines += [".SH SEE ALSO", r"\fBgpq\fR(1)"]
    return "\n".join(lines) + "\n"


def _synopsis(parts: dict[str, Any]) -> Iterator[str]:
    """One line of usage per command."""
    yield ".SH SYNOPSIS"
    for number, (path, typer_command) in enumerate(parts.items()):
        if number:
            yield ".br"
        yield f".B {_text(path)}"
        yield _text(usage(typer_command), emphasised=True)


def _head(name: str, line: str) -> list[str]:
    title = f'.TH "{_text(name).upper()}" 1 "" "gpq {gpq.__version__}" "User Commands"'
    return [
        '.\\" Made from the commands by make completions: edit those instead.',
        title,
        ".SH NAME",
        f"{_text(name)} \\- {_text(line)}",
    ]


def _body(typer_command: Any) -> Iterator[str]:
    """The paragraphs of the help before the example."""
    text = (typer_command.help or "").partition("\b")[0]
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _examples(typer_command: Any) -> list[str]:
    lines = map(str.strip, (typer_command.help or "").partition("Example:")[2].splitlines())
    return _verbatim([*filter(None, lines)])


def _options(typer_command: Any) -> Iterator[str]:
    for parameter in parameters(typer_command, "option"):
        value = "" if parameter.is_flag else f" \\fI{_text(str(parameter.metavar or 'TEXT'))}\\fR"
        names = [f"\\fB{_text(name)}\\fR{value}" for name in (*parameter.opts, *parameter.secondary_opts)]
        yield ".TP"
        yield ", ".join(sorted(names, key=len))
        help = " ".join((parameter.help or "").split())
        default = getattr(parameter.default, "value", parameter.default)  # the value of a choice
        shows_default = (
            parameter.show_default is not False and not parameter.is_flag and default not in (None, "", [], ())
        )
        if shows_default and "[default" not in help:
            help += f" [default: {default}]"
        yield _text(help)
    yield ".TP"
    yield r"\fB\-h\fR, \fB\-\-help\fR"
    yield "Show the help and exit."


def _definitions(pairs: tuple[tuple[str, str], ...]) -> list[str]:
    return [line for key, text in pairs for line in (".TP", f".B {_text(key)}", _text(text))]


def _verbatim(lines: list[str]) -> list[str]:
    return [".PP", ".nf", ".RS", *map(_text, lines), ".RE", ".fi"]


def _text(text: str, *, emphasised: bool = False) -> str:
    """Escaped for man(7): no line begins with a control character, and readers can copy
    commands."""
    escaped = text.translate(ESCAPES)
    if escaped.startswith((".", "'")):
        escaped = f"\\&{escaped}"
    if emphasised:
        escaped = re.sub(r"([A-Z][A-Z@]+)", r"\\fI\1\\fR", escaped)
    return escaped
