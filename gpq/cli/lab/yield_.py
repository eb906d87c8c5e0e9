"""`gpq yield`: an owner gets a server back from all gpq daemons. The file has a trailing `_`
because `yield` is a Python keyword."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.typer_app import Json, frame
from gpq.options import values
from gpq.servers import changes
from gpq.views.plain import duration, safe

app = frame()


@app.command("yield")
def yield_(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The server.")] = "local",
    length: Annotated[
        str,
        typer.Option(
            "--for", metavar="DURATION", help="For this long, or until --end.", show_default=True
        ),
    ] = "8h",
    end: Annotated[bool, typer.Option("--end", help="Give the server back to gpq.")] = False,
    json: Json = False,
) -> int:
    """Get your own server back. Jobs leave it with their checkpoints, within their grace time.

    Every gpq daemon that uses the server honours this if its config.toml names you as the `owner`.
    You do not need it when you just use the GPUs: gpq notices that.

    \b
    Example:
      gpq yield
      gpq yield gpu1 --for 2h
      gpq yield gpu1 --end
    """
    answer = changes.yielded(node, 0.0 if end else values.seconds(length, "--for"))
    if json:
        output.emit(answer)
        return 0
    user = safe(answer.user)
    if not end:
        output.say(
            f"{safe(node)} goes back to {user} for {duration(answer.seconds or 0.0)}. `gpq yield"
            f" {safe(node)} --end` ends this"
        )
    else:
        outcome = "is back with gpq" if answer.changed else "was not yielded"
        output.say(f"{safe(node)} {outcome}")
    return 0
