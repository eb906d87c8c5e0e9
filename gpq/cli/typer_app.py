"""What the typer apps of all commands share: their frame, and common options."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup


class ColorChoice(str, Enum):
    auto = "auto"
    always = "always"
    never = "never"


Json = Annotated[bool, typer.Option("--json", help="Print only JSON.")]
Color = Annotated[
    ColorChoice,
    typer.Option(
        "--color",
        metavar="auto|always|never",
        help="auto: colours on a terminal, unless NO_COLOR is set.",
    ),
]
Jobs = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...", help="Ids (42), ranges (3-7,9), names, @ for the last job, or all."
    ),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="An id, a name, or @ for the last job.")]


HELP: dict[str, Any] = {"help_option_names": ["--help", "-h"], "max_content_width": 100}


def default_to(name: str, *, alone: bool = False) -> type[TyperGroup]:
    """A group of commands with a default command: `gpq nodes gpu1` means `gpq nodes list gpu1`.
    `alone`: the default applies only if the first word is not an argument."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            names = {*self.commands, "--help", "-h"}
            if not args or (args[0] not in names and (args[0][:1] == "-" or not alone)):
                args = [name, *args]
            return super().parse_args(ctx, args)

    return Group


class Command(TyperCommand):
    """Shows arguments in the usage line as they are written here, because typer would add braces or
    brackets."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = (
            str(parameter.metavar or parameter.name)
            for parameter in self.params
            if parameter.param_type_name == "argument"
        )
        return [str(self.options_metavar), *arguments]


class Frame(typer.Typer):
    def command(self, name: str | None = None, **options: Any) -> Any:
        return super().command(name, **{"cls": Command, **options})


def frame(group: type[TyperGroup] | None = None) -> typer.Typer:
    """A typer app that prints plain help and leaves errors to `gpq.cli.app`."""
    return Frame(
        cls=group,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP,
    )
