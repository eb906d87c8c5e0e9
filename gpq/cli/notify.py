"""`gpq notify`: whom gpq can tell about jobs, and does it work? URLs are never shown."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq import config, outward
from gpq.cli import documents, output
from gpq.cli.frame import Json, default_to, frame

app = frame(default_to("list", alone=True))
NAMES = typer.Argument(metavar="NAME...", help="Targets of [notify] in config.toml, desktop, or mailto:ADDRESS.")
LIMIT = 30.0  # seconds for each


@app.callback(help="Whom gpq can tell about jobs (`gpq submit --notify`), and does it work? Without a command: `list`.")
def notify() -> None:
    """Make it a group of commands."""


@app.command(name="list")
def list_targets(json: Json = False) -> None:
    """The targets in [notify] of config.toml, with the kind of service, and what holds for jobs that name none.

    \b
    Example:
      gpq notify list
    """
    table = config.load().notify
    settings, shown = outward.notify(table), outward.without_urls(table)
    if json:
        targets = {name: str(shown[name]).partition(":")[0] for name in settings.targets}
        output.emit(documents.Targets(targets, list(settings.default), list(settings.on), settings.lines))
        return
    room = max(map(len, settings.targets), default=0)
    output.say(*(f"{name:{room}}  {shown[name]}" for name in settings.targets))
    if not settings.targets:
        output.say(f'no targets: write [notify] NAME = "URL" in config.toml; {outward.WITHOUT}')
    whom = ", ".join(settings.default) or "nobody"
    output.say(
        f"jobs without --notify tell {whom}, of {','.join(settings.on)}, with {settings.lines} lines of their log"
    )


@app.command(name="test")
def try_targets(names: Annotated[list[str], NAMES], json: Json = False) -> int:
    """Send a message now. Exit code 1 where a service does not take it.

    \b
    Example:
      gpq notify test slack
      gpq notify test desktop mailto:ana@lab.example
    """
    from gpq.connectors.courier import Courier

    known = outward.notify(config.load().notify)
    outward.check_targets(names, known)
    said: dict[str, str] = {}
    for name in dict.fromkeys(names):
        said[name] = Courier().deliver(name, "gpq: a test", "gpq can reach you here.", LIMIT)
        if not json and said[name]:
            mended = "correct [notify] in config.toml; `gpq config check` looks at it" if name in known.targets else ""
            output.failure(f"{name}: {said[name]}", mended)
        elif not json:
            output.say(f"{name}: sent")
    if json:
        output.emit(documents.Sent([documents.SentView(name, not why, why) for name, why in said.items()]))
    return 1 if any(said.values()) else 0
