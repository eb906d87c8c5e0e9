"""`gpq check`: runs the script in every shape that gpq might use, and prints the comparison.

`gpq submit --check`, and `check = "first"` in config.toml, use it too: no script is queued without
a verdict.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from gpq import verdicts
from gpq.check.proving import prove
from gpq.check.runner import CheckRequest
from gpq.check.shapes import LEAST_STEPS
from gpq.cli import output
from gpq.cli.output import Progress
from gpq.cli.typer_app import HELP, Color, ColorChoice, Json, frame
from gpq.errors import GpqError, NotFound, UsageError
from gpq.options import environment, job_spec, sweeps, values
from gpq.options.job_spec import SubmitTexts
from gpq.verdicts import DIFFERS, FAILED, SAME, Verdict
from gpq.views.verdict import JUDGEMENTS, lines

MOST_STEPS = 1000
DEFAULT_STEPS = 8
DEFAULT_TIMEOUT = "5m"
# A job gets these from its server.
ENVIRONMENT_NAMES = (
    "HOME", "USER", "LOGNAME", "XDG_CONFIG_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
)  # fmt: skip

app = frame()
WORDS = typer.Argument(metavar="SCRIPT [ARG]...", help="The training script and its arguments.")
STEPS = typer.Option(
    "--steps", metavar="N", help=f"Optimizer steps per shape, at least {LEAST_STEPS}."
)
TIMEOUT = typer.Option(
    "--timeout", metavar="DURATION", help="Give up after this long, with exit code 124."
)
PYTHON = typer.Option(
    "--python",
    metavar="PATH",
    help="Python for the script. [default: the active environment's, else gpq's own]",
)
GPU = typer.Option(
    "--gpu", help="Use two GPUs of this machine instead of its CPUs. Needs at least two GPUs."
)
ISOLATED = typer.Option(
    "--isolated",
    help=(
        "Start a new Python for every replica, which is slower. Needed if the script sets variables"
        " that torch reads."
    ),
)
LAST = typer.Option(
    "--last", help="Only print the saved verdict for this script and these arguments."
)


@app.command(context_settings={**HELP, "allow_interspersed_args": False})
def check(
    words: Annotated[list[str], WORDS],
    steps: Annotated[int, STEPS] = DEFAULT_STEPS,
    timeout: Annotated[str, TIMEOUT] = DEFAULT_TIMEOUT,
    python: Annotated[str, PYTHON] = "",
    gpu: Annotated[bool, GPU] = False,
    isolated: Annotated[bool, ISOLATED] = False,
    last: Annotated[bool, LAST] = False,
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> int:
    """Prove on your own script that gpq does not change what it trains.

    gpq runs a few steps in every shape and compares them with one replica. The shapes are one
    replica with accumulation, some steps split into two micro-batches, two replicas, two replicas
    with accumulation, and a stop and resume on another number of replicas. All use the same batch
    size. gpq compares weights, optimizer, schedule, the examples of each step and the logged
    values. A shape is `same`, `differs` or `told`. `differs` names the first step and tensor, and
    the likely habit of the loop. `told` means that the library itself rules the shape out, so gpq
    never runs the job in it.

    The check runs in the current folder, and keeps its checkpoints elsewhere. It changes none of
    your files: everything that the script writes goes to a temporary folder, and the script reads
    it from there. gpq cuts an epoch to a few batches, computes in full precision unless the script
    fails in it, and draws random numbers (dropout, noise, augmentation) per example. `gpq submit`
    uses the verdict. The exit code is 1 if a shape fails, or differs without a warning of the
    library.

    \b
    Example:
      gpq check train.py --epochs 10
      gpq check --steps 20 --timeout 15m train.py
      gpq check --last --json train.py --epochs 10
    """
    script, arguments = os.path.abspath(os.path.expanduser(words[0])), words[1:]
    values.readable(script, words[0], "gpq check SCRIPT [ARG]...")
    if not LEAST_STEPS <= steps <= MOST_STEPS:
        raise UsageError(
            f"--steps {steps} is out of range", f"use a number from {LEAST_STEPS} to {MOST_STEPS}"
        )
    seconds = values.seconds(timeout, "--timeout")
    if last:
        saved = verdicts.current(script, arguments)
        if saved is None:
            command = " ".join(["gpq check", os.path.relpath(script), *arguments])
            raise NotFound(
                "there is no saved verdict for this version of the script with these arguments",
                f"`{command}` makes one",
            )
        verdict = saved
    else:
        request = CheckRequest(
            script,
            tuple(arguments),
            environment.interpreter(python, dict(os.environ)),
            environment.job_variables(dict(os.environ), {}),
            os.getcwd(),
            steps,
            seconds,
            gpu,
            isolated,
        )
        verdict = run_check(request, quiet=json)
    output.text(lines, verdict, color.value, as_json=json)
    return 1 if verdict.verdict in (DIFFERS, FAILED) else 0


def check_first(texts: SubmitTexts, *, quiet: bool) -> list[str]:
    """Check the script, unless a verdict of this version of it is saved. Returns a remark on a
    verdict that costs the job nothing: submitting says the others.

    Of an array, the first job is checked. The check runs here, in the job's environment but without
    its --setup. Raises GpqError if the script fails on its own.
    """
    built = job_spec.build(texts.having(snapshot=False, stdin=""))
    array = sweeps.array_of(texts.array, texts.sweep, texts.sweep_file)
    script, arguments = built.argv[0], sweeps.first_words(texts.words[1:], array)
    if verdicts.current(script, arguments) is not None:
        return []
    request = CheckRequest(
        script,
        tuple(arguments),
        built.python,
        built.env,
        built.cwd,
        DEFAULT_STEPS,
        values.seconds(DEFAULT_TIMEOUT, "--timeout"),
    )
    try:
        result = run_check(request, quiet=quiet)
    except GpqError as error:
        error.hint = f"{error.hint} (--no-check submits it without a check)"
        raise
    if result.verdict != SAME:
        return []
    return [f"gpq check: {JUDGEMENTS[SAME]} ({result.seconds:.0f} s)"]


def run_check(request: CheckRequest, *, quiet: bool) -> Verdict:
    """Run the check here, and show how far it is unless `quiet`. Raises GpqError if the script
    fails on its own."""
    own = {name: os.environ[name] for name in ENVIRONMENT_NAMES if name in os.environ}
    request = replace(request, environ={**request.environ, **own})
    show, names = Progress(quiet=quiet), list[str]()

    def on_shape_end(name: str) -> None:
        names.append(name)
        show(f"checking: {len(names)} shapes done, last: {name}")

    show("checking")
    try:
        return prove(request, on_shape_end)
    finally:
        show("")
