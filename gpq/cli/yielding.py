"""`gpq yield`: an owner wants a server back, from everybody's gpq. Named so because `yield` is a word of the language."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq.cli import output, values
from gpq.cli.frame import Json, frame
from gpq.client.connection import call
from gpq.errors import GpqError
from gpq.rpc import messages
from gpq.views.plain import duration, safe

app = frame()
PATIENCE = 30.0  # seconds for the server's answer


@app.command("yield")
def yield_(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The server.")] = "local",
    length: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="For so long, or until --end.", show_default=True)
    ] = "8h",
    end: Annotated[bool, typer.Option("--end", help="Give it back to gpq.")] = False,
    json: Json = False,
) -> int:
    """Get your own server back: gpq's jobs leave it with their checkpoints, within their grace time.

    Heeded by everybody's gpq in whose config.toml `owner` of that server is you. Who merely uses its GPUs need not say
    anything: that is noticed.

    \b
    Example:
      gpq yield
      gpq yield gpu1 --for 2h
      gpq yield gpu1 --end
    """
    seconds = 0.0 if end else values.seconds(length, "--for")
    request = messages.Errand(node, "yield", {"seconds": seconds}, PATIENCE)
    found = call(request, messages.ErrandResult).answer
    if "error" in found:
        raise GpqError(f"{node} could not be asked: {found['error']}", f"`gpq doctor {node}` looks further")
    if json:
        output.emit(
            messages.Yielded(node, str(found.get("user", "")), seconds or None, bool(found.get("wanted", True)))
        )
        return 0
    user = safe(str(found.get("user", "")))
    if not end:
        output.say(
            f"{safe(node)} goes back to {user} for {duration(seconds)}: `gpq yield {safe(node)} --end` ends that"
        )
    else:
        what = "is gpq's again" if found.get("wanted") else "had not been asked for"
        output.say(f"{safe(node)} {what}")
    return 0
