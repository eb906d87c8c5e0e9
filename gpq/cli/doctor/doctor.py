"""`gpq doctor`: runs the checks and prints a line for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Json, frame
from gpq.options import json_answers
from gpq.options.json_answers import CheckView as Check
from gpq.views.plain import safe, wrap

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
    "--gpu", help="Test the GPUs instead: what the driver says, and whether CUDA can use them."
)
GPU_VERDICTS = ("PASS", "FAIL", "SKIP")  # of `gpq doctor --gpu`


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
    or SKIP, with a figure. gpq asks the driver, compares it with torch, and lets CUDA write to
    the memory of each free GPU.

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

    names = list(dict.fromkeys(nodes or []))
    results = [] if names else checks.everything(python)
    if names or checks.has_servers():
        results += server_checks.of_servers(names, python, output.Progress())
    if json:
        output.emit(json_answers.Checkup(results))
    else:
        output.text(lines, results, color.value)
    return int(any(check.verdict == "fail" for check in results))


def _report(nodes: list[str], python: str, color: str, json: bool) -> int:
    import time

    import gpq
    from gpq.cli.doctor import server_checks

    begin = time.monotonic()
    answers = server_checks.gpu_report(list(dict.fromkeys(nodes)), python, output.Progress())
    rows = [(node, line) for node, answer in answers.items() for line in answer]
    if json:
        views = [json_answers.GpuCheckView(node=node, **line._asdict()) for node, line in rows]
        output.emit(
            json_answers.GpuReport(gpq.__version__, round(time.monotonic() - begin, 1), views)
        )
    else:
        checks = [
            Check(line.name, line.verdict, line.figure, line.fix, node) for node, line in rows
        ]
        output.text(partial(lines, verdicts=GPU_VERDICTS), checks, color)
    return int(any(line.verdict == "FAIL" for _, line in rows))


def lines(
    checks: Sequence[Check],
    limit: int,
    bar: str = "█",
    verdicts: Sequence[str] = ("ok", "warn", "fail"),
) -> list[str]:
    """One line per check with its fix below, and the number of each verdict at the end."""
    names = [f"{check.node} {check.name}".strip() for check in checks]
    size = max(map(len, names), default=0)
    text: list[str] = []
    for name, check in zip(names, checks, strict=True):
        text += wrap(
            safe(check.message),
            limit,
            f"{check.verdict:4}  {safe(name):{size}}  ",
            " " * (size + 8),
        )
        if check.fix and check.verdict != "ok":
            text += wrap(safe(check.fix), limit, " " * (size + 8) + "fix: ", " " * (size + 13))
    count = {verdict: sum(check.verdict == verdict for check in checks) for verdict in verdicts}
    return [*text, "", ", ".join(f"{number} {verdict}" for verdict, number in count.items())]
