"""`gpq nodes`: shows servers and their GPUs as the daemon knows them, and changes them.

`gpq yield`: an owner gets a server back from all gpq daemons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Json, default_to, frame
from gpq.client.connection import call
from gpq.errors import GpqError, UsageError
from gpq.options import json_answers, values
from gpq.rpc import node_answers, requests
from gpq.servers import changes
from gpq.views import nodes as view
from gpq.views import plain
from gpq.views.plain import duration, safe

if TYPE_CHECKING:
    from gpq.servers import adding

app = frame(default_to("list"))
yield_ = frame()  # `yield` is a word of Python
NAMES = typer.Argument(metavar="[NODE]...", help="Servers to show. [default: all]")
TEAM = typer.Option("--team", help="Show the servers of your team.")
HOST = typer.Argument(
    metavar="[USER@HOST]", help="As for ssh: user@host, or a host from ~/.ssh/config."
)
FROM = typer.Option("--from-ssh-config", help="Choose from the hosts in ~/.ssh/config.")
NAME = typer.Option(
    "--name", metavar="NAME", help="Name of the server in gpq. [default: its host name]"
)
GPUS = typer.Option(
    "--gpus", metavar="LIST", help="GPUs to use, by index or UUID: 0,1. [default: all]"
)
SLOTS = typer.Option("--slots", metavar="N", min=0, max=1024, help="Use CPU slots instead of GPUs.")
PYTHON = typer.Option(
    "--python", metavar="PATH", help="Python 3.8 or newer there. [default: gpq finds it]"
)
PORT = typer.Option(
    "--port", metavar="N", min=1, max=65535, help="Port of its sshd. [default: as in ~/.ssh/config]"
)
ADDRESS = typer.Option(
    "--address", metavar="ADDRESS", help="Where other servers reach it. [default: gpq finds it]"
)
SSH_CONFIG = typer.Option(
    "--ssh-config", "-F", metavar="FILE", help="Read this file instead of ~/.ssh/config."
)
YES = typer.Option(
    "--yes", "-y", help="Ask nothing: accept a new host key as shown, and add all hosts found."
)
FORCE = typer.Option(
    "--force", help="Even while jobs are on it. They keep running, but gpq loses track of them."
)
REASON = typer.Option(
    "--reason",
    metavar="TEXT",
    help="`gpq nodes` shows it, and `gpq why` of jobs that wait for the server.",
)
NODE = typer.Argument(metavar="NODE", help="Name of the server.")

TARGET = typer.Argument(
    metavar="NODE[:GPUS]",
    help="A server, or some of its GPUs, by index or UUID: gpu1:0,1 or gpu1:0-3.",
)
FOR = typer.Option(
    "--for", metavar="USER", help="User whose jobs may use them. Without it, gpq leaves them alone."
)
START = typer.Option(
    "--from",
    metavar="WHEN",
    help="now, 18:00, 'fri 18:00', 'tomorrow 9:00', '2026-11-27 18:00', +2h.",
)
UNTIL = typer.Option("--until", metavar="WHEN", help="The end, in the same format.")
DURATION = typer.Option(
    "--for-duration", metavar="DURATION", help="How long, instead of --until: 90m, 2d."
)
OLDER = typer.Option(
    "--older", metavar="DURATION", help="Jobs that ended longer ago than this, such as 90d."
)
REALLY = typer.Option("--yes", "-y", help="Remove them. Without it, gpq only says how many.")
RESERVATION = typer.Argument(metavar="RESERVATION", min=1, help="Number of the reservation.")


@app.callback(help="Show, add, remove, drain and reserve servers. Without a command: `list`.")
def nodes() -> None:
    """Make it a group of commands."""


@app.command("list")
def show(
    names: Annotated[list[str] | None, NAMES] = None,
    team: Annotated[bool, TEAM] = False,
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> None:
    """Show the servers and their GPUs: state, memory, utilisation, and who uses them. This is what
    the daemon last heard.

    \b
    Example:
      gpq nodes
      gpq nodes list local --json
      gpq nodes --team
    """
    if team:
        from gpq.client.team import ask  # takes a moment to import
        from gpq.rpc.team_messages import TeamServers, View
        from gpq.views.team import servers

        if names:
            raise UsageError("--team shows all servers", "leave out the names")
        answer = ask(View(kind="servers"), TeamServers)
        output.text(servers, answer, color.value, as_json=json)
        return
    nodes = call(requests.Nodes(list(names or [])), node_answers.NodeList)
    output.text(view.lines, nodes, color.value, as_json=json)


@app.command()
def add(
    host: Annotated[str, HOST] = "",
    from_ssh_config: Annotated[bool, FROM] = False,
    name: Annotated[str, NAME] = "",
    gpus: Annotated[str, GPUS] = "",
    slots: Annotated[int | None, SLOTS] = None,
    python: Annotated[str, PYTHON] = "",
    port: Annotated[int | None, PORT] = None,
    address: Annotated[str, ADDRESS] = "",
    ssh_config: Annotated[str, SSH_CONFIG] = "",
    yes: Annotated[bool, YES] = False,
    json: Json = False,
) -> int:
    """Add a server that you reach by ssh. Shows its host key, checks its Python and GPUs, and
    writes it to config.toml.

    The server needs sshd, Python 3.8 or newer, and a key that ssh can use without asking you. gpq
    copies its agent to ~/.gpq there.

    \b
    Example:
      gpq nodes add alice@gpu1
      gpq nodes add gpu2 --gpus 0,1 --name small
      gpq nodes add --from-ssh-config
    """
    from gpq.servers import adding  # slow imports, which only this command needs

    if bool(host) == from_ssh_config:
        raise UsageError(
            "gpq nodes add: give either USER@HOST or --from-ssh-config", "gpq nodes add alice@gpu1"
        )
    if from_ssh_config and (name or address or port):
        raise UsageError(
            "--name, --address and --port cannot be combined with --from-ssh-config",
            "add that server on its own: gpq nodes add HOST",
        )
    hosts = adding.offer(ssh_config, every=yes) if from_ssh_config else [host]
    indices = [*filter(None, map(str.strip, gpus.split(",")))]
    servers = [
        adding.Wanted(
            destination, name, indices, slots, python=python, port=port or 0, address=address,
            ssh_config=ssh_config,
        )
        for destination in hosts
    ]  # fmt: skip
    rows = _add_each(servers, yes=yes, quiet=json)
    names = [row["name"] for row in rows]
    live = bool(rows) and changes.taken_in(names, _note)
    if json:
        views = [json_answers.AddedNode(**row) for row in rows]
        output.emit(json_answers.NodesAdded(views, live))
    elif rows:
        output.say(*(f"added     {server}" for server in names))
    return 1 if len(rows) < len(hosts) else 0


@app.command()
def remove(
    node: Annotated[str, NODE], force: Annotated[bool, FORCE] = False, json: Json = False
) -> None:
    """Remove a server from config.toml. Refused while jobs are on it. Deletes nothing there.

    \b
    Example:
      gpq nodes remove gpu2
    """
    live = changes.remove(node, _note, force=force)
    output.result(json_answers.NodeRemoved(node, live), f"removed   {node}", as_json=json)


@app.command()
def drain(
    node: Annotated[str, NODE], reason: Annotated[str, REASON] = "", json: Json = False
) -> None:
    """Start nothing new on a server, for example before a reboot. Lasts until `gpq nodes undrain`,
    even if the daemon restarts.

    Jobs that can resume move to other servers with their checkpoints, or wait. All other jobs run
    to their end.

    \b
    Example:
      gpq nodes drain gpu2 --reason "new driver on Friday"
    """
    answer = call(requests.Drain(node, reason), node_answers.Drained)
    line = f"drained   {node}{'' if answer.changed else ' (it already was)'}"
    output.result(answer, line, *_who_leaves(answer), as_json=json)


@app.command()
def undrain(node: Annotated[str, NODE], json: Json = False) -> None:
    """Use a drained server again.

    \b
    Example:
      gpq nodes undrain gpu2
    """
    answer = call(requests.Undrain(node), node_answers.Drained)
    line = f"undrained {node}{'' if answer.changed else ' (it was not drained)'}"
    output.result(answer, line, as_json=json)


@app.command()
def reserve(
    target: Annotated[str, TARGET],
    user: Annotated[str, FOR] = "",
    start: Annotated[str, START] = "now",
    until: Annotated[str, UNTIL] = "",
    duration: Annotated[str, DURATION] = "",
    json: Json = False,
) -> None:
    """Keep GPUs of a server for one user's jobs, or free of gpq, for a time. Lasts even if the
    daemon restarts.

    Jobs of others that can resume leave with their checkpoints before the reservation begins. Jobs
    that cannot resume do not start there if their --time reaches into it. Without --time, they do
    not start in the last hour before it. A job that cannot resume and already runs may finish.

    \b
    Example:
      gpq nodes reserve gpu2 --from "fri 18:00" --for-duration 2d
      gpq nodes reserve gpu1:0,1 --for ana --until "tomorrow 9:00"
    """
    answer = call(changes.reserve(target, user, start, until, duration), node_answers.Reserved)
    reservation = answer.reservation
    output.result(
        answer,
        f"reserved  {_place(reservation)} for {reservation.user or 'nobody (gpq leaves it alone)'}",
        f"from      {plain.moment(reservation.start)} until {plain.moment(reservation.end)}",
        f"undo      gpq nodes unreserve {reservation.id}",
        *_who_leaves(answer),
        as_json=json,
    )


@app.command()
def unreserve(reservation: Annotated[int, RESERVATION], json: Json = False) -> None:
    """Cancel a reservation. `gpq nodes` lists them.

    \b
    Example:
      gpq nodes unreserve 3
    """
    answer = call(requests.Unreserve(reservation), node_answers.Reserved)
    line = f"free      {_place(answer.reservation)}: reservation {reservation} is cancelled"
    output.result(answer, line, as_json=json)


@app.command()
def clean(
    older: Annotated[str, OLDER], yes: Annotated[bool, REALLY] = False, json: Json = False
) -> None:
    """Remove jobs that ended long ago, with their logs and checkpoints on all servers.

    Nobody can bring them back. Without --yes, gpq only says how many jobs that would be. A job that
    a waiting one names in --after stays. A server that does not answer is cleaned when it does.
    `keep` in config.toml does the same every minute.

    \b
    Example:
      gpq nodes clean --older 90d
      gpq nodes clean --older 90d --yes
    """
    request = requests.Clean(values.seconds(older, "--older"), dry_run=not yes)
    answer = call(request, node_answers.Cleaned)
    before = plain.moment(answer.before)
    jobs = f"{answer.jobs} job{'s' if answer.jobs != 1 else ''} that ended before {before}"
    if answer.removed:
        line = f"removed {jobs}. Their logs and checkpoints on all servers follow"
        output.confirm(line, result=answer if json else None)
        return
    line = f"would remove {jobs}, with their logs and checkpoints on all servers"
    hint = f"nothing is removed yet: --yes does it. `gpq history --until '{before}'` shows them"
    output.result(answer, line, *([hint] if answer.jobs else []), as_json=json)


def _place(reservation: node_answers.ReservationView) -> str:
    return (
        f"{reservation.node}:{','.join(map(str, reservation.indices))}"
        if reservation.devices
        else reservation.node
    )


def _who_leaves(answer: node_answers.Drained | node_answers.Reserved) -> Iterator[str]:
    if answer.leaving:
        yield f"leave it  {_jobs(answer.leaving)}"
    if answer.staying:
        yield f"stay      {_jobs(answer.staying)}, until they end"


def _jobs(jobs: list[int]) -> str:
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(str(job) for job in jobs)}"


def _note(problem: str, hint: str) -> None:
    output.note(f"{problem}: {hint}" if hint else problem)


def _add_each(servers: Sequence[adding.Wanted], *, yes: bool, quiet: bool) -> list[dict[str, Any]]:
    """What --json shows of the servers that gpq added. One bad server does not stop the others."""
    from gpq.servers.adding import add

    rows = []
    for server in servers:
        try:
            row = add(server, output, yes=yes, quiet=quiet)
        except GpqError as error:
            if len(servers) == 1:
                raise
            hint = f" ({error.hint})" if error.hint else ""
            output.note(f"{server.host} was not added: {error.message}{hint}")
            continue
        rows.append(row)
    return rows


@yield_.command("yield")
def _yield(
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
    answer = changes.yield_server(node, 0.0 if end else values.seconds(length, "--for"))
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
