"""`gpq notify`: lists and tests the targets of notifications. Never shows a URL."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq import config, outward
from gpq.cli import output
from gpq.cli.typer_app import Json, default_to, frame
from gpq.options import json_answers, targets

app = frame(default_to("list", alone=True))
NAMES = typer.Argument(
    metavar="NAME...", help="Targets of [notify] in config.toml, desktop, or mailto:ADDRESS."
)


@app.callback(
    help=("List and test the targets of `gpq submit --notify`. Without a command: `list`.")
)
def notify() -> None:
    """Make it a group of commands."""


@app.command(name="list")
def list_targets(json: Json = False) -> None:
    """List the targets in [notify] of config.toml, and the defaults for jobs without --notify.

    \b
    Example:
      gpq notify list
    """
    listing = targets.list_targets()
    if json:
        output.emit(listing)
        return
    room = max(map(len, listing.targets), default=0)
    output.say(*(f"{name:{room}}  {kind}://..." for name, kind in listing.targets.items()))
    if not listing.targets:
        output.say(f'no targets. Write [notify] NAME = "URL" in config.toml. {outward.WITHOUT}')
    default_names = ", ".join(listing.default) or "nobody"
    output.say(
        f"jobs without --notify notify {default_names} (on {','.join(listing.on)}), with"
        f" {listing.lines} lines of their log"
    )


@app.command(name="test")
def try_targets(names: Annotated[list[str], NAMES], json: Json = False) -> int:
    """Send a message now. Exit code 1 if a service does not accept it.

    \b
    Example:
      gpq notify test slack
      gpq notify test desktop mailto:ana@lab.example
    """
    table = config.load().notify
    views: list[json_answers.SentView] = []
    for view in targets.try_targets(names):
        views.append(view)
        if not json and not view.sent:
            fix = (
                "correct [notify] in config.toml. `gpq config check` checks it"
                if view.name in table
                else ""
            )
            output.failure(f"{view.name}: {view.problem}", fix)
        elif not json:
            output.say(f"{view.name}: sent")
    if json:
        output.emit(json_answers.Sent(views))
    return 0 if all(view.sent for view in views) else 1
