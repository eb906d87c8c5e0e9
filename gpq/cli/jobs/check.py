"""`gpq check`: runs the script in every shape that gpq might, and prints how it compares."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

import msgspec
import typer

from gpq.check import keeping
from gpq.check.pipeline.proving import CheckRequest, prove
from gpq.check.shapes import LEAST_STEPS
from gpq.check.verdict import DIFFERS, FAILED, Verdict
from gpq.cli.shared import output
from gpq.cli.shared.typer_app import HELP, Color, ColorChoice, frame
from gpq.errors import NotFound, UsageError
from gpq.options import environment
from gpq.options.parsing import values

MOST_STEPS = 1000
# A job has these from the server that it runs on.
ENVIRONMENT_NAMES = (
    "HOME",
    "USER",
    "LOGNAME",
    "XDG_CONFIG_HOME",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
)

app = frame()
WORDS = typer.Argument(metavar="SCRIPT [ARG]...", help="The training script and its arguments.")
STEPS = typer.Option(
    "--steps", metavar="N", help=f"Optimizer steps in each shape, {LEAST_STEPS} or more."
)
TIMEOUT = typer.Option(
    "--timeout", metavar="DURATION", help="Give up after this long, with exit code 124."
)
PYTHON = typer.Option(
    "--python",
    metavar="PATH",
    help="Interpreter. [default: of the active environment, else gpq's own]",
)
GPU = typer.Option(
    "--gpu", help="On two GPUs of this machine, refused where there are fewer; else on its CPUs."
)
ISOLATED = typer.Option(
    "--isolated",
    help=(
        "A fresh interpreter for every replica, slower: where the script sets variables that torch"
        " reads."
    ),
)
LAST = typer.Option(
    "--last",
    help="Only print the verdict that is kept for the script as it is, with these arguments.",
)

JSON = typer.Option("--json", help="Print JSON only.")


@app.command(context_settings={**HELP, "allow_interspersed_args": False})
def check(
    words: Annotated[list[str], WORDS],
    steps: Annotated[int, STEPS] = 8,
    timeout: Annotated[str, TIMEOUT] = "5m",
    python: Annotated[str, PYTHON] = "",
    gpu: Annotated[bool, GPU] = False,
    isolated: Annotated[bool, ISOLATED] = False,
    last: Annotated[bool, LAST] = False,
    color: Color = ColorChoice.auto,
    json: Annotated[bool, JSON] = False,
) -> int:
    """Prove on your own script that gpq does not change what it trains: a few steps in every shape,
    held against one replica.

    The shapes, all with the same batch: one replica accumulating, sampled steps as two
    micro-batches, two replicas, both, and stopped and resumed on another number. Weights, optimizer
    and schedule, the examples of each step and what was logged are compared: `same`, `differs`
    (with the first step and tensor, and the probable habit of the loop), or `told`: the library
    says what stands against a shape, and gpq never runs the job in it.

    It runs here, in the current folder, with checkpoints in a folder of its own. None of your files
    is changed: what the script writes goes to a temporary folder, and is read from there. An epoch
    is cut to a few batches, all is computed in full precision unless the script fails in it, and
    random numbers (dropout, noise, augmentation) are drawn by example. `gpq submit` passes the
    verdict on to the job. Exit code 1 where a shape differs in silence, or fails.

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
            f"--steps {steps} is out of range", f"write a number from {LEAST_STEPS} to {MOST_STEPS}"
        )
    seconds = values.seconds(timeout, "--timeout")
    if last:
        verdict = _kept(script, arguments)
    else:
        environ = environment.kept(dict(os.environ), {})
        environ |= {name: os.environ[name] for name in ENVIRONMENT_NAMES if name in os.environ}
        interpreter = environment.interpreter(python, dict(os.environ))
        request = CheckRequest(
            script,
            tuple(arguments),
            interpreter,
            environ,
            os.getcwd(),
            steps,
            seconds,
            gpu,
            isolated,
        )
        with _progress(quiet=json) as on_shape_end:
            verdict = prove(request, on_shape_end)
    if json:
        output.emit(verdict)
    else:
        from gpq.views.verdict import lines

        output.text(lines, verdict, color.value)
    return 1 if verdict.verdict in (DIFFERS, FAILED) else 0


def _kept(script: str, arguments: list[str]) -> Verdict:
    record = keeping.kept(script, arguments)
    if record is not None and not keeping.changed(record):
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(record, Verdict)
    command = " ".join(["gpq check", os.path.relpath(script), *arguments])
    raise NotFound(
        "no verdict is kept for this script as it is, with these arguments",
        f"`{command}` makes one",
    )


@contextlib.contextmanager
def _progress(*, quiet: bool):  # type: ignore[no-untyped-def]
    """On a terminal: a line on stderr that says which shapes are done; gone at the end."""
    is_visible = not quiet and sys.stderr.isatty()
    shape_names: list[str] = []

    def on_shape_end(name: str) -> None:
        shape_names.append(name)
        if is_visible:
            sys.stderr.write(f"\r\033[Kchecking: {len(shape_names)} done, the last {name}")
            sys.stderr.flush()

    try:
        if is_visible:
            sys.stderr.write("checking")
            sys.stderr.flush()
        yield on_shape_end
    finally:
        if is_visible:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
