"""The options of `gpq submit` and `gpq edit` for typer, from their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar

import typer

from gpq.rpc.submit_table import OPTIONS, Option

KEYWORD = Parameter.POSITIONAL_OR_KEYWORD
F = TypeVar("F", bound=Callable[..., int])

# type on the command line: the type for typer, and the default
TYPES: dict[str, tuple[Any, Any]] = {
    "str": (str, ""),
    "bool": (bool, False),
    "int": (int, 0),
    "int | None": (int | None, None),
    "list[str]": (list[str] | None, None),
}
Words = Annotated[list[str] | None, typer.Argument(metavar="SCRIPT [ARG]... | -- COMMAND [ARG]...")]


def parameter(row: Option, kind: Any, default: Any, *words: str) -> Parameter:
    """`words` take the place of the flag in the table."""
    flags = words or tuple(word for word in (row.flag, row.short) if word)
    option = typer.Option(*flags, help=row.help, metavar=row.metavar, show_default=False)
    annotation = Annotated[kind, option]
    return Parameter(row.name, KEYWORD, default=default, annotation=annotation)


def with_all(command: F) -> F:
    """Give the command, which takes the context and keywords, a parameter for the words and for
    each option."""
    parameters = [
        Parameter("ctx", KEYWORD, annotation=typer.Context),
        Parameter("words", KEYWORD, default=None, annotation=Words),
    ]
    return declared(command, [*parameters, *(parameter(row, *TYPES[row.typed]) for row in OPTIONS)])


def declared(command: F, parameters: Sequence[Parameter]) -> F:
    """The command with these parameters. typer reads the signature."""
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command
