"""`gpq notify`: whom gpq can tell about jobs, and does it work? URLs are never shown."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq import config, outward
from gpq.cli.shared import output
from gpq.cli.shared.typer_app import Json, default_to, frame
from gpq.options import json_answers, targets

app = frame(default_to("list", alone=True))
NAMES = typer.Argument(
    metavar="NAME...", help="Targets of [notify] in config.toml, desktop, or mailto:ADDRESS."
)


@app.callback(
    help=(
        "Whom gpq can tell about jobs (`gpq submit --notify`), and does it work? Without a command:"
        " `list`."
    )
)
def notify() -> None:
    """Make it a group of commands."""


@app.command(name="list")
def list_targets(json: Json = False) -> None:
    """The targets in [notify] of config.toml, with the kind of service, and what holds for jobs
    that name none.

    \b
    Example:
      gpq notify list
    """
    found = targets.listed()
    if json:
        output.emit(found)
        return
    room = max(map(len, found.targets), default=0)
    output.say(*(f"{name:{room}}  {kind}://..." for name, kind in found.targets.items()))
    if not found.targets:
        output.say(f'no targets: write [notify] NAME = "URL" in config.toml; {outward.WITHOUT}')
    whom = ", ".join(found.default) or "nobody"
    output.say(
        f"jobs without --notify tell {whom}, of {','.join(found.on)}, with {found.lines} lines of"
        " their log"
    )


@app.command(name="test")
def try_targets(names: Annotated[list[str], NAMES], json: Json = False) -> int:
    """Send a message now. Exit code 1 where a service does not take it.

    \b
    Example:
      gpq notify test slack
      gpq notify test desktop mailto:ana@lab.example
    """
    known = config.load().notify
    said: list[json_answers.SentView] = []
    for one in targets.tried(names):
        said.append(one)
        if not json and not one.sent:
            mended = (
                "correct [notify] in config.toml; `gpq config check` looks at it"
                if one.name in known
                else ""
            )
            output.failure(f"{one.name}: {one.problem}", mended)
        elif not json:
            output.say(f"{one.name}: sent")
    if json:
        output.emit(json_answers.Sent(said))
    return 0 if all(one.sent for one in said) else 1
