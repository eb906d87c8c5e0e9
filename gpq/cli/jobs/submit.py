"""`gpq submit` with its help, and the options of it and of `gpq edit` for typer, from their table.
`gpq.cli.jobs.submit_fast` answers plain calls without typer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar

import typer

from gpq.cli.jobs import submit_fast
from gpq.cli.typer_app import HELP, Command, frame
from gpq.options import sbatch, submit_request
from gpq.rpc.submit_table import OPTIONS, Option

app = frame()
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
    return declare(command, [*parameters, *(parameter(row, *TYPES[row.typed]) for row in OPTIONS)])


def declare(command: F, parameters: Sequence[Parameter]) -> F:
    """The command with these parameters. typer reads the signature."""
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command


class Submission(Command):
    """Takes out flags of sbatch, and remembers whether the words came after `--`, which typer
    drops."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        pairs: list[sbatch.Pair] = []
        gpq_args = submit_request.plain(args, pairs)
        unparsed = super().parse_args(ctx, list(gpq_args))
        words = ctx.params.get("words") or []
        ctx.obj = (
            len(gpq_args) > len(words) and gpq_args[len(gpq_args) - len(words) - 1] == "--",
            pairs,
        )
        return unparsed


@app.command(cls=Submission, context_settings={**HELP, "allow_interspersed_args": False})
@with_all
def submit(ctx: typer.Context, words: list[str] | None = None, **_: Any) -> int:
    """Queue a training script, or any command after `--`.

    If a script uses the training library, gpq gives it as many GPUs as help, and resizes it while
    it runs. A command gets a fixed number of GPUs and never moves, unless it is --preemptible or
    --background.

    A shell script is a command. gpq reads options from `#GPQ` and `#SBATCH` lines at its start. It
    also accepts the usual flags of sbatch (-J, -G, --gres, -D, --wrap, ...) if they have a meaning
    here.

    \b
    Example:
      gpq submit --gpus 1-8 train.py --epochs 10
      gpq submit --gpus 2 --time 2h -- ./run.sh big
      gpq submit job.sh
      gpq submit --setup "source ~/venvs/new/bin/activate" train.py
      gpq submit --snapshot train.py
      gpq submit --after 42 --begin "tomorrow 8am" evaluate.py
      gpq submit --sweep lr=1e-3,1e-2 --sweep seed=0..4 --array %4 train.py --lr {lr} --seed {seed}
      gpq submit --notify desktop --notify-on fail,end train.py
      gpq submit --preemptible --signal USR1 --resume-args "--resume auto" -- python old.py
      gpq submit --preemptible --done-file out/model.safetensors -- python finetune.py
    """
    fields = {
        name: value
        for name, value in ctx.params.items()
        if name != "words" and getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    return submit_fast.run(submit_request.Parsed(fields, list(words or []), *ctx.obj))
