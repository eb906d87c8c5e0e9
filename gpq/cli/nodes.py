"""`gpq nodes`: the servers and their GPUs, as the daemon knows them."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.frame import Color, ColorChoice, Json, frame
from gpq.client.connection import call
from gpq.rpc import messages
from gpq.views import nodes as view

app = frame()
NAMES = typer.Argument(metavar="[NODE]...", help="Names of servers; none: all.")


@app.command()
def nodes(
    names: Annotated[list[str] | None, NAMES] = None, color: Color = ColorChoice.auto, json: Json = False
) -> None:
    """The servers and their GPUs: state, memory, utilisation, and who is on them. Shows the daemon's last knowledge.

    \b
    Example:
      gpq nodes
      gpq nodes local --json
    """
    answer = call(messages.Nodes(list(names or [])), messages.NodeList)
    if json:
        output.emit(answer)
    else:
        output.text(view.lines, answer, color.value)
