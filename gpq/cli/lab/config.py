"""`gpq config`: shows and checks the settings, and lists the policies. `gpq notify`: lists and
tests the targets of notifications, and never shows a URL."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gpq import config as configuration
from gpq import outward, paths
from gpq.cli import output
from gpq.cli.typer_app import Json, default_to, frame
from gpq.errors import UsageError
from gpq.options import json_answers, targets
from gpq.policies.registry import POLICIES
from gpq.views import plain

config = frame(default_to("show", alone=True))
notify = frame(default_to("list", alone=True))
NAMES = typer.Argument(
    metavar="NAME...", help="Targets of [notify] in config.toml, desktop, or mailto:ADDRESS."
)
FILE = typer.Argument(metavar="[FILE]", help="Check this file instead of the one in use.")


@config.callback(
    help=(
        "Show and check the configuration (TOML). Without a command: `show`. Of all commands, only"
        " `gpq nodes add` and `remove` write it."
    )
)
def _config() -> None:
    """Make it a group of commands."""


@config.command()
def show(json: Json = False) -> None:
    """Show all settings, including defaults, as a valid file.

    \b
    Example:
      gpq config show > ~/.config/gpq/config.toml
    """
    import tomlkit  # slow, and only this needs it

    settings = configuration.load(policies=POLICIES)
    targets = outward.without_urls(settings.notify)
    tree = {**asdict(settings), "notify": targets}
    if json:
        output.emit(json_answers.Settings(**tree))
        return
    hidden_keys = {name for name in targets if name not in outward.SETTINGS}
    default_keys = {"default"} if hidden_keys else set()  # it may name a hidden one
    tree["notify"] = {
        name: value for name, value in targets.items() if name not in hidden_keys | default_keys
    }
    output.say(*tomlkit.dumps(_without_gaps(tree)).splitlines())
    if hidden_keys:  # not in the output, which stays a valid file
        names = ", ".join(f"notify.{key}" for key in sorted(hidden_keys))
        output.note(f"left out because their URLs may hold secrets: {names}")


@config.command()
def check(file: Annotated[str, FILE] = "", json: Json = False) -> None:
    """Check the file. Errors come with line and column.

    \b
    Example:
      gpq config check
      gpq config check new.toml
    """
    path = os.path.abspath(file) if file else paths.config()
    exists = os.path.exists(path)
    if file and not exists:
        raise UsageError(f"no file {file}", "`gpq config path` shows the one in use")
    try:
        settings = configuration.load(path, policies=POLICIES, cores=os.sched_getaffinity(0))
    except UsageError as error:  # a hint to run this command would not help
        if error.hint == configuration.CHECK:
            error.hint = "correct it, or remove it to use the defaults"
        raise
    _check_targets(settings.notify, path)
    line = f"{path} is valid" if exists else f"no {path}, so the defaults apply"
    output.result(json_answers.ConfigChecked(path, exists), line, as_json=json)
    if settings.metrics and not (address := outward.address(settings.metrics)).private:
        output.note(f"metrics: {address.host} is reachable from other machines: {outward.OPEN}")


def _check_targets(table: outward.Table, path: str) -> None:
    """Raises UsageError for a URL that apprise cannot use."""
    targets = outward.notify(table).targets
    if not targets:
        return
    from gpq.notify.worker import judge  # imports apprise, which is slow

    for name, url in targets.items():
        if problem := judge(name, url):
            raise UsageError(
                f"{path}: notify.{name}: {problem}",
                "https://appriseit.com lists what each service needs",
            )
    if os.stat(path).st_mode & 0o077:
        output.note(f"others can read {path} and the URLs in [notify]: chmod 600 {path}")


@config.command()
def path(json: Json = False) -> None:
    """Show where the file is, or would be.

    \b
    Example:
      $EDITOR "$(gpq config path)"
    """
    output.result(json_answers.ConfigPath(paths.config()), paths.config(), as_json=json)


@config.command()
def library(json: Json = False) -> None:
    """Show the folder that holds only the training library, for a script that runs without gpq.

    Add it to PYTHONPATH. Scripts that run under gpq do not need it.

    \b
    Example:
      PYTHONPATH="$(gpq config library)" python train.py
      gpq config library > "$(python -c 'import site; print(site.getsitepackages()[0])')/gpq.pth"
    """
    from gpq.connectors.bundle import library as library_folder

    folder = library_folder(paths.home(), renew=False)
    output.result(json_answers.LibraryPath(folder), folder, as_json=json)


@config.command()
def policies(json: Json = False) -> None:
    """List the policies, one sentence each. `*` marks the one that the file names.

    \b
    Example:
      gpq config policies
    """
    policy_name = ""
    try:
        policy_name = configuration.load().policy
    except UsageError as error:  # the list works without it
        output.note(f"no policy is marked: {error.message}")
    if json:
        rows = [
            json_answers.PolicyView(name, policy.sentence, name == policy_name)
            for name, policy in POLICIES.items()
        ]
        output.emit(json_answers.Policies(rows))
        return
    room, limit = max(map(len, POLICIES)), plain.terminal_width()
    for name, policy in POLICIES.items():
        mark = "*" if name == policy_name else " "
        output.say(*plain.wrap(policy.sentence, limit, f"{mark} {name:{room}}  ", " " * (room + 4)))


def _without_gaps(tree: dict[str, Any]) -> dict[str, Any]:
    """Without None, which TOML lacks, and without empty tables."""
    return {
        key: _without_gaps(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value not in (None, {})
    }


@notify.callback(
    help=("List and test the targets of `gpq submit --notify`. Without a command: `list`.")
)
def _notify() -> None:
    """Make it a group of commands."""


@notify.command(name="list")
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


@notify.command(name="test")
def try_targets(names: Annotated[list[str], NAMES], json: Json = False) -> int:
    """Send a message now. Exit code 1 if a service does not accept it.

    \b
    Example:
      gpq notify test slack
      gpq notify test desktop mailto:ana@lab.example
    """
    table = configuration.load().notify
    views: list[json_answers.SentView] = []
    for view in targets.try_targets(names):
        views.append(view)
        if json:
            continue
        if view.sent:
            output.say(f"{view.name}: sent")
        else:
            fix = "correct [notify] in config.toml. `gpq config check` checks it"
            output.failure(f"{view.name}: {view.problem}", fix if view.name in table else "")
    if json:
        output.emit(json_answers.Sent(views))
    return 0 if all(view.sent for view in views) else 1
