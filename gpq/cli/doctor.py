"""`gpq doctor`: runs the checks of `gpq.cli.checks` and prints a line for each."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.frame import Color, ColorChoice, Json, frame

app = frame()
PYTHON = typer.Option(
    "--python", metavar="PATH", help="Interpreter of your scripts. [default: of the active environment]"
)


@app.command()
def doctor(
    python: Annotated[str, PYTHON] = "",
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> int:
    """Check this machine: each line is ok, warn or fail, with its fix. Exit code 1 when something fails. Starts nothing.

    \b
    Example:
      gpq doctor
      gpq doctor --json
    """
    from gpq.cli import checks
    from gpq.views.checkup import lines

    found = checks.everything(python)
    if json:
        output.emit({"checks": [check.row() for check in found], "schema": 1})
    else:
        output.text(lines, found, color.value)
    return 1 if any(check.verdict == "fail" for check in found) else 0
