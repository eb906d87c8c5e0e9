"""The options of `gpq submit`, one a line."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _option(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


Words = Annotated[list[str] | None, typer.Argument(metavar="SCRIPT [ARG]... | -- COMMAND [ARG]...")]
Gpus = Annotated[
    str,
    _option(
        "--gpus",
        "-g",
        metavar="N|A-B",
        help="Fixed number, or for scripts a range. [default: 1; scripts: 1 to whatever pays]",
    ),
]
GpuType = Annotated[
    str, _option("--gpu-type", metavar="TEXT", help="Part of the GPU's name, such as A100.")
]
MinGpuMemory = Annotated[
    str, _option("--min-gpu-memory", metavar="SIZE", help="Least memory of each GPU, such as 40G.")
]
Name = Annotated[
    str, _option("--name", "-n", metavar="NAME", help="[default: the script's or the program's]")
]
Tag = Annotated[
    list[str] | None, _option("--tag", metavar="NAME", help="A label; may be repeated.")
]
Notify = Annotated[
    list[str] | None,
    _option(
        "--notify",
        metavar="NAME",
        help=(
            "Whom to tell: a target of config.toml, desktop, mailto:ADDRESS, or none; may be"
            " repeated."
        ),
    ),
]
NotifyOn = Annotated[
    str,
    _option(
        "--notify-on",
        metavar="WORD,...",
        help="Of what: start, restart, retry, fail, end. [default: end]",
    ),
]
Accept = Annotated[
    list[str] | None,
    _option(
        "--accept",
        metavar="CODE",
        help="A habit that gpq suspects, and that is to count for nothing; may be repeated.",
    ),
]
Priority = Annotated[
    int, _option("--priority", metavar="N", help="Higher goes first. [default: 0]")
]
Time = Annotated[
    str,
    _option("--time", "-t", metavar="DURATION", help="Limit of the run time, such as 90m or 2h."),
]
Retries = Annotated[
    int,
    _option(
        "--retries", metavar="N", help="Start again so many times after a failure. [default: 0]"
    ),
]
RequeueOnLost = Annotated[
    str,
    _option(
        "--requeue-on-lost",
        metavar="DURATION",
        help=(
            "Start elsewhere after so long a silence of its server, where it then ends itself; 1m"
            " at least. [default: off]"
        ),
    ),
]
Rigid = Annotated[bool, _option("--rigid", help="Never resize this script.")]
Preemptible = Annotated[
    bool, _option("--preemptible", help="The command checkpoints on a signal and may be stopped.")
]
Signal = Annotated[
    str, _option("--signal", metavar="NAME", help="That signal, such as USR1. [default: TERM]")
]
Grace = Annotated[
    str, _option("--grace", metavar="DURATION", help="From the signal to the kill. [default: 2m]")
]
ResumeArgs = Annotated[
    str,
    _option(
        "--resume-args",
        metavar="ARGS",
        help="Added from the second start on, in quotes: --resume auto.",
    ),
]
DoneFile = Annotated[
    str,
    _option(
        "--done-file",
        metavar="PATH",
        help=(
            "The job writes it at its very end: then an exit with 0 after a stop order is its end,"
            " too."
        ),
    ),
]
BatchSize = Annotated[
    int | None,
    _option("--batch-size", metavar="N", help="Base total batch size, instead of the script's."),
]
MaxBatchSize = Annotated[
    int | None, _option("--max-batch-size", metavar="N", help="Largest total batch size.")
]
AtomicBatchSize = Annotated[
    str,
    _option(
        "--atomic-batch-size", metavar="A-B", help="Range of the batch on one GPU in one pass."
    ),
]
After = Annotated[
    list[str] | None,
    _option(
        "--after",
        metavar="JOB[:ok|any|notok]",
        help="Start once these have ended so; commas, and may be repeated. [default: ok]",
    ),
]
Begin = Annotated[
    str,
    _option(
        "--begin", metavar="WHEN", help="Start no earlier: 18:00, 'tomorrow 8am', 'fri 18:00', +2h."
    ),
]
Background = Annotated[
    bool,
    _option(
        "--background", help="Take only GPUs that nobody else wants; leave them when somebody does."
    ),
]
Array = Annotated[
    str,
    _option(
        "--array",
        metavar="INDICES[%N]",
        help=(
            "A job for each index, such as 0-99; at most N at once. {index} in arguments"
            " becomes it."
        ),
    ),
]
Sweep = Annotated[
    list[str] | None,
    _option(
        "--sweep",
        metavar="NAME=A,B",
        help=(
            "A job for each value, or number of 0..9; brackets hold together. Repeated: all"
            " combinations. {NAME} becomes it."
        ),
    ),
]
SweepFile = Annotated[
    str,
    _option("--sweep-file", metavar="FILE", help="CSV: a job for each line, names in the first."),
]
Env = Annotated[
    list[str] | None,
    _option(
        "--env",
        "-e",
        metavar="K=V",
        help=(
            "Set a variable, or pass on K; may be repeated. [default: PATH, LANG, CONDA_*, PYTHON*,"
            " ...: see README]"
        ),
    ),
]
Cwd = Annotated[
    str, _option("--cwd", metavar="PATH", help="Directory to run in. [default: this one]")
]
Python = Annotated[
    str,
    _option(
        "--python",
        metavar="PATH",
        help="Interpreter of the script. [default: of the active environment, else gpq's own]",
    ),
]
Setup = Annotated[
    str,
    _option(
        "--setup",
        metavar="COMMAND",
        help="Run once on each server before the first start there; jobs get what it exports.",
    ),
]
Snapshot = Annotated[
    bool, _option("--snapshot", help="Run the code as it is now, whatever is edited later.")
]
Hold = Annotated[bool, _option("--hold", help="Queue it held.")]
Wait = Annotated[bool, _option("--wait", help="Block until it has ended; exit with its code.")]
DryRun = Annotated[bool, _option("--dry-run", help="Say what would happen; queue nothing.")]
