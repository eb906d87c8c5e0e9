"""`gpq nodes`: the servers and their GPUs as the daemon knows them, and which servers there are."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq.cli.shared import output
from gpq.cli.shared.typer_app import Color, ColorChoice, Json, default_to, frame
from gpq.client.connection import call
from gpq.errors import UsageError
from gpq.options import json_answers
from gpq.rpc import node_answers, requests
from gpq.servers import changes
from gpq.views import nodes as view
from gpq.views import plain

app = frame(default_to("list"))
NAMES = typer.Argument(metavar="[NODE]...", help="Names of servers; none: all.")
HOST = typer.Argument(
    metavar="[USER@HOST]", help="As for ssh: user@host, or a name of ~/.ssh/config."
)
FROM = typer.Option("--from-ssh-config", help="Offer the hosts of ~/.ssh/config.")
NAME = typer.Option("--name", metavar="NAME", help="What gpq calls it; its host name by default.")
GPUS = typer.Option(
    "--gpus", metavar="LIST", help="GPUs to use, by index or UUID: 0,1. All by default."
)
SLOTS = typer.Option("--slots", metavar="N", min=0, max=1024, help="CPU slots instead of GPUs.")
PYTHON = typer.Option(
    "--python", metavar="PATH", help="Python 3.8 or newer there; found by default."
)
PORT = typer.Option(
    "--port",
    metavar="N",
    min=1,
    max=65535,
    help="Of its sshd, where ~/.ssh/config does not say it.",
)
ADDRESS = typer.Option(
    "--address", metavar="ADDRESS", help="Where other servers reach it; found by default."
)
SSH_CONFIG = typer.Option(
    "--ssh-config", "-F", metavar="FILE", help="Another file than ~/.ssh/config."
)
YES = typer.Option(
    "--yes",
    "-y",
    help="Ask nothing: accept a new host key as it is shown, add all that is offered.",
)
FORCE = typer.Option(
    "--force", help="Also while jobs are on it: they run on, and gpq hears no more of them."
)
REASON = typer.Option(
    "--reason",
    metavar="TEXT",
    help="Shown in `gpq nodes`, and in `gpq why` of jobs that wait for it.",
)
NODE = typer.Argument(metavar="NODE", help="Name of a server.")

TARGET = typer.Argument(
    metavar="NODE[:GPUS]",
    help="A server, or some of its GPUs, by index or UUID: gpu1:0,1 or gpu1:0-3.",
)
FOR = typer.Option(
    "--for", metavar="USER", help="Whose jobs may use them; without it gpq leaves them alone."
)
START = typer.Option(
    "--from",
    metavar="WHEN",
    help="now, 18:00, 'fri 18:00', 'tomorrow 9:00', '2026-11-27 18:00', +2h.",
)
UNTIL = typer.Option("--until", metavar="WHEN", help="The end, written likewise.")
DURATION = typer.Option("--for-duration", metavar="DURATION", help="Or how long: 90m, 2d.")
RESERVATION = typer.Argument(metavar="RESERVATION", min=1, help="Its number.")


@app.callback(help="The servers and their GPUs. Without a command: `list`.")
def nodes() -> None:
    """Make it a group of commands."""


@app.command("list")
def show(
    names: Annotated[list[str] | None, NAMES] = None,
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> None:
    """The servers and their GPUs: state, memory, utilisation, and who is on them. Shows the
    daemon's last knowledge.

    \b
    Example:
      gpq nodes
      gpq nodes list local --json
    """
    answer = call(requests.Nodes(list(names or [])), node_answers.NodeList)
    if json:
        output.emit(answer)
    else:
        output.text(view.lines, answer, color.value)


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
    """Add a server that you reach by ssh: look at its host key, at its Python and GPUs, and write
    it to config.toml.

    It needs sshd and Python 3.8, and a key that ssh can use without a question. gpq puts its agent
    below ~/.gpq there.

    \b
    Example:
      gpq nodes add alice@gpu1
      gpq nodes add gpu2 --gpus 0,1 --name small
      gpq nodes add --from-ssh-config
    """
    from gpq.cli.lab import node_additions  # what they import, nobody needs who only looks
    from gpq.servers import adding

    if bool(host) == from_ssh_config:
        raise UsageError(
            "gpq nodes add: one of USER@HOST and --from-ssh-config", "gpq nodes add alice@gpu1"
        )
    if from_ssh_config and (name or address or port):
        raise UsageError(
            "--name, --address and --port are of one server",
            "leave them out with --from-ssh-config",
        )
    hosts = adding.offered(ssh_config, every=yes) if from_ssh_config else [host]
    indices = [word.strip() for word in gpus.split(",") if word.strip()]
    servers = [
        adding.Wanted(
            destination, name, indices, slots, python=python, port=port or 0, address=address,
            ssh_config=ssh_config,
        )
        for destination in hosts
    ]  # fmt: skip
    rows = node_additions.add_each(servers, yes=yes, quiet=json)
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
    """Take a server out of config.toml. Refused while jobs are on it. Nothing is deleted there.

    \b
    Example:
      gpq nodes remove gpu2
    """
    live = changes.removed(node, _note, force=force)
    if json:
        output.emit(json_answers.NodeRemoved(node, live))
    else:
        output.say(f"removed   {node}")


@app.command()
def drain(
    node: Annotated[str, NODE], reason: Annotated[str, REASON] = "", json: Json = False
) -> None:
    """Place nothing new on a server: before a reboot, a repair. Holds until `gpq nodes undrain`,
    over restarts too.

    Jobs that can be stopped and go on are moved away with their checkpoint, or wait; all others run
    to their end there.

    \b
    Example:
      gpq nodes drain gpu2 --reason "new driver on Friday"
    """
    answer = call(requests.Drain(node, reason), node_answers.Drained)
    if json:
        output.emit(answer)
        return
    output.say(f"drained   {node}{'' if answer.changed else ' (it was already)'}")
    _say_who_leaves(answer.leaving, answer.staying)


@app.command()
def undrain(node: Annotated[str, NODE], json: Json = False) -> None:
    """Place jobs on a drained server again.

    \b
    Example:
      gpq nodes undrain gpu2
    """
    answer = call(requests.Undrain(node), node_answers.Drained)
    if json:
        output.emit(answer)
    else:
        output.say(f"undrained {node}{'' if answer.changed else ' (it was not drained)'}")


@app.command()
def reserve(
    target: Annotated[str, TARGET],
    user: Annotated[str, FOR] = "",
    start: Annotated[str, START] = "now",
    until: Annotated[str, UNTIL] = "",
    duration: Annotated[str, DURATION] = "",
    json: Json = False,
) -> None:
    """Keep GPUs of a server for one user's jobs, or out of gpq's hands, for a time. Holds over
    restarts of the daemon.

    Jobs of others that can be stopped and go on leave with their checkpoint by the beginning; those
    that cannot do not start there if their --time reaches into it (or, without --time, in the last
    hour before it); what runs there runs to its end.

    \b
    Example:
      gpq nodes reserve gpu2 --from "fri 18:00" --for-duration 2d
      gpq nodes reserve gpu1:0,1 --for ana --until "tomorrow 9:00"
    """
    answer = call(changes.reserve(target, user, start, until, duration), node_answers.Reserved)
    if json:
        output.emit(answer)
        return
    reservation = answer.reservation
    output.say(
        f"reserved  {_place(reservation)} for {reservation.user or 'nobody: gpq leaves it alone'}",
        f"from      {plain.moment(reservation.start)} until {plain.moment(reservation.end)}",
        f"undo      gpq nodes unreserve {reservation.id}",
    )
    _say_who_leaves(answer.leaving, answer.staying)


@app.command()
def unreserve(reservation: Annotated[int, RESERVATION], json: Json = False) -> None:
    """Undo a reservation; `gpq nodes` lists them.

    \b
    Example:
      gpq nodes unreserve 3
    """
    answer = call(requests.Unreserve(reservation), node_answers.Reserved)
    if json:
        output.emit(answer)
    else:
        output.say(f"free      {_place(answer.reservation)}: reservation {reservation} is undone")


def _place(reservation: node_answers.ReservationView) -> str:
    return (
        f"{reservation.node}:{','.join(map(str, reservation.indices))}"
        if reservation.devices
        else reservation.node
    )


def _say_who_leaves(leaving: list[int], staying: list[int]) -> None:
    if leaving:
        output.say(f"leave it  {_jobs(leaving)}")
    if staying:
        output.say(f"stay      {_jobs(staying)}: to their end")


def _jobs(jobs: list[int]) -> str:
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(str(job) for job in jobs)}"


def _note(problem: str, hint: str) -> None:
    output.note(f"{problem}: {hint}" if hint else problem)
