"""`gpq doctor`: runs the checks and prints a line for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from gpq.cli.shared import output
from gpq.cli.shared.typer_app import Color, ColorChoice, Json, frame
from gpq.options import json_answers

if TYPE_CHECKING:
    from gpq.cli.doctor.gpu_checks import GpuCheck
    from gpq.cli.doctor.verdicts import Check

app = frame()
NODES = typer.Argument(
    metavar="[NODE]...", help="Servers to check. [default: this machine and all servers]"
)
PYTHON = typer.Option(
    "--python",
    metavar="PATH",
    help="Python that runs your scripts. [default: the active environment's, else gpq's own]",
)

GPU = typer.Option(
    "--gpu", help="Test the GPUs instead: driver, CUDA, small trainings. Takes 2 to 10 minutes."
)


@app.command()
def doctor(
    nodes: Annotated[list[str] | None, NODES] = None,
    gpu: Annotated[bool, GPU] = False,
    python: Annotated[str, PYTHON] = "",
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> int:
    """Check this machine and the servers. Each line is ok, warn or fail, with its fix.

    Without NODE, gpq checks this machine, and all servers if a daemon is running. It checks all
    servers at the same time. Then it tries each connection between two servers and times an
    all-reduce over it. gpq keeps the time, so that it knows what a job on several servers costs.

    --gpu tests the GPUs of this machine, or of the servers that you name. Each line is PASS, FAIL
    or SKIP, with a figure. gpq checks the driver, compares trainings with plain PyTorch, and
    measures what gpq costs. It uses only free GPUs.

    The exit code is 1 if something fails.

    \b
    Example:
      gpq doctor
      gpq doctor gpu1 gpu2
      gpq doctor --json
      gpq doctor --gpu gpu1 --python ~/env/bin/python
    """
    if gpu:
        return _report(nodes or [], python, color.value, json)
    from gpq.cli.doctor import checks, server_checks
    from gpq.views.checkup import lines

    names = list(dict.fromkeys(nodes or []))
    results = [] if names else checks.everything(python)
    if names or checks.has_servers():
        results += server_checks.of_servers(names, python, output.Progress())
    if json:
        views = [json_answers.CheckView(**check.row()) for check in results]
        output.emit(json_answers.Checkup(views))
    else:
        output.text(lines, results, color.value)
    return _exit_code("fail", results)


def _exit_code(failure: str, checks: Iterable[Check | GpuCheck]) -> int:
    return 1 if any(check.verdict == failure for check in checks) else 0


def _report(nodes: list[str], python: str, color: str, json: bool) -> int:
    import time

    import gpq
    from gpq.cli.doctor import gpu_checks
    from gpq.views.checkup import gpu_lines

    begin = time.monotonic()
    checks = gpu_checks.report(list(dict.fromkeys(nodes)), python, output.Progress())
    if json:
        views = [json_answers.GpuCheckView(**vars(check)) for check in checks]
        output.emit(
            json_answers.GpuReport(gpq.__version__, round(time.monotonic() - begin, 1), views)
        )
    else:
        output.text(gpu_lines, checks, color)
    return _exit_code("FAIL", checks)
