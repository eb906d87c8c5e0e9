"""`gpq yield`: an owner wants a server back, from everybody's gpq. Named so because `yield` is a
word of the language."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq.cli.shared import output
from gpq.cli.shared.typer_app import Json, frame
from gpq.options.parsing import values
from gpq.servers import changes
from gpq.views.plain import duration, safe

app = frame()


@app.command("yield")
def yield_(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The server.")] = "local",
    length: Annotated[
        str,
        typer.Option(
            "--for", metavar="DURATION", help="For so long, or until --end.", show_default=True
        ),
    ] = "8h",
    end: Annotated[bool, typer.Option("--end", help="Give it back to gpq.")] = False,
    json: Json = False,
) -> int:
    """Get your own server back: gpq's jobs leave it with their checkpoints, within their grace
    time.

    Heeded by everybody's gpq in whose config.toml `owner` of that server is you. Who merely uses
    its GPUs need not say anything: that is noticed.

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
            f"{safe(node)} goes back to {user} for {duration(answer.seconds or 0.0)}: `gpq yield"
            f" {safe(node)} --end` ends that"
        )
    else:
        outcome = "is gpq's again" if answer.changed else "had not been asked for"
        output.say(f"{safe(node)} {outcome}")
    return 0
