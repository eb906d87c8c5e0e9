"""The options of `gpq submit` for typer, from their table."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar

import typer

from gpq.rpc.submit_table import BY_NAME, OPTIONS, Option

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


def _option(row: Option) -> Any:
    words = [word for word in (row.flag, row.short) if word]
    return typer.Option(*words, help=row.help, metavar=row.metavar, show_default=False)


MaxBatchSize = Annotated[int | None, _option(BY_NAME["max_batch_size"])]


def with_all(command: F) -> F:
    """Give the command, which takes the context and keywords, a parameter for the words and for
    each option. typer reads the signature."""
    keyword = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        Parameter("ctx", keyword, annotation=typer.Context),
        Parameter("words", keyword, default=None, annotation=Words),
    ]
    for row in OPTIONS:
        kind, default = TYPES[row.typed]
        annotation = Annotated[kind, _option(row)]  # type: ignore[valid-type]
        parameters.append(Parameter(row.name, keyword, default=default, annotation=annotation))
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command
