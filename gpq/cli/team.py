"""`gpq team`: one queue with colleagues. `gpq join` and `gpq leave` take this user's daemon into it
and out of it."""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated

import typer

from gpq import config, paths
from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Json, default_to, frame
from gpq.client import team as client
from gpq.client.autostart import own_teams
from gpq.client.connection import connect
from gpq.config_rules import MOST_WEIGHT
from gpq.errors import DaemonUnreachable, UsageError
from gpq.rpc import requests
from gpq.rpc.job_answers import JobList
from gpq.rpc.team_messages import Amend, AuditLines, Queue, Receipt, TeamServers, View
from gpq.servers import membership, offered
from gpq.views import team as view

app = frame(default_to("show", alone=True))
join = frame()
leave = frame()
REBOOT = (
    "the arbiter runs. After a reboot it starts with the next gpq command of yours that starts your"
    " daemon. `@reboot gpq daemon start` in your crontab makes it independent of you"
)
COMMON = "others can delay you: you have no socket of your own. See arbiter.log. /run/gpq may help"
TOLD = "names, sizes, times, speeds. Not commands, files, logs"
NAME = typer.Argument(metavar="NAME", help="Name of the team.")
MEMBER = typer.Argument(metavar="MEMBER", help="A name in `gpq team`.")
LOGIN = typer.Argument(metavar="LOGIN", help="Login name or uid of a user of this machine.")
SHARE = typer.Argument(
    metavar="NUMBER", help="All members have 1 at first. Twice as much counts twice."
)
RECALL = typer.Argument(metavar="MEMBER/JOB", help="Such as bob/42.")
GROUP = typer.Option("--group", metavar="GROUP", help="Users of this Unix group may join.")
PLACE = typer.Argument(metavar="[HEAD:]NAME", help="Name of the team, and where its arbiter runs.")
NO_SERVERS = typer.Option("--no-servers", help="Add none of the team's servers.")
UID = typer.Option("--uid", metavar="N", min=0, help="User who decides, if there are several.")
LINES = typer.Option("--lines", "-n", metavar="N", min=1, max=1000, help="How many, the newest.")


class Switch(str, Enum):
    on = "on"
    off = "off"


ADMIN = typer.Argument(metavar="on|off", help="May the member change who is in the team?")


@app.callback(
    help=(
        "Share one queue with colleagues. Jobs run as their users, in everybody's own daemon."
        " Without a command: `show`."
    )
)
def team() -> None:
    """Make it a group of commands."""


@app.command()
def init(name: Annotated[str, NAME], group: Annotated[str, GROUP] = "") -> None:
    """Make a team, for which your account decides on this machine, and join it.

    For a team of yours it starts the arbiter again.

    \b
    Example:
      gpq team init lab --group gpu-users
    """
    if not client.start_new(name, group):
        output.say(f"team {name} is yours already: {REBOOT}")
        if config.load().team.name != name:
            output.note(f"you are not in it: `gpq join {name}`")
        return
    membership.enter(config.TeamConfig(name=name, uid=os.getuid()))
    with client.arbiter() as arbiter:  # others may join once it knows of the servers
        client.membership(arbiter, arbiter.welcome().member)
    who = "others may join after `gpq team add LOGIN`"
    if group:
        who = f"users of the Unix group {group} may join"
    nodes = config.load().nodes
    output.say(
        f"team {name}: this account, {client.person(os.getuid())}, decides, and {who}",
        f"your servers are the team's: {' '.join(nodes)}",
        REBOOT,
        f"others type:  gpq join {name}",
    )


@join.command("join")
def _join(
    place: Annotated[str, PLACE],
    uid: Annotated[int | None, UID] = None,
    no_servers: Annotated[bool, NO_SERVERS] = False,
) -> None:
    """Join the queue of a team. Your jobs keep running, and run as you.

    Its arbiter runs on this machine, or on HEAD, which you reach by ssh, and which has gpq.

    The servers of the team that you reach by ssh become yours, as with `gpq nodes add`. Your daemon
    starts again. Then the arbiter of the team says which GPUs your jobs get. To join again adds the
    servers that came later.

    \b
    Example:
      gpq join lab
      gpq join head:lab
    """
    membership.expect_shell()
    team, decider = client.search(place, uid)
    client.expect_free((team.name, team.uid, team.arbiter))
    output.say(f"team {team.name} is decided by {decider}. It will know of your jobs: {TOLD}")
    with client.arbiter(team) as arbiter:
        member = arbiter.welcome().member
        servers = arbiter.call(View(kind="servers"), TeamServers)
    if not no_servers:
        offered.add_each(servers.rows, output, here=not team.arbiter)
    membership.enter(team)
    with client.arbiter() as arbiter:
        members = client.membership(arbiter, member)
    output.say(f"joined as {member}", *view.prospects(members, member))


@leave.command("leave")
def _leave(
    end: Annotated[bool, typer.Option("--end", help="End the team, as its last member.")] = False,
) -> None:
    """Leave your team. Your jobs keep running, and your daemon decides alone again.

    \b
    Example:
      gpq leave
    """
    if end:
        name = membership.end()
        output.say(f"team {name} has ended. Its audit stays in {paths.team(name)}")
        return
    name = membership.leave(output.note)
    output.say(f"left team {name}")
    if name in own_teams():
        output.note(f"your account goes on to decide for team {name}")


@app.command()
def show(color: Color = ColorChoice.auto, json: Json = False) -> None:
    """Show the members: shares, floors, what they hold, borrow and owe.

    \b
    Example:
      gpq team
      gpq team show --json
    """
    with client.arbiter() as arbiter:
        output.text(view.lines, arbiter.members(), color.value, as_json=json)


@app.command()
def add(login: Annotated[str, LOGIN]) -> None:
    """Let a user join. For admins.

    \b
    Example:
      gpq team add bob
    """
    name, uid = client.user(login)
    _amend("add", name, uid, f"{name} (uid {uid}) is a member and may join")


def _offer(action: str, result: str, summary: str) -> None:
    """A command that needs only the member."""

    def command(member: Annotated[str, MEMBER]) -> None:
        _amend(action, member, 0, f"{member} is {result}")

    text = f"{summary} For admins.\n\n\b\nExample:\n  gpq team {action} bob\n"
    app.command(action, help=text)(command)


_offer("remove", "removed", "Remove a member. Their jobs keep running, in their own daemon.")


@app.command()
def share(member: Annotated[str, MEMBER], number: Annotated[str, SHARE]) -> None:
    """Say how much a member counts. For admins.

    \b
    Example:
      gpq team share bob 2
    """
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST_WEIGHT:
        hint = f"it must be above 0 and at most {MOST_WEIGHT:g}"
        raise UsageError(f"invalid share `{number}`", hint)
    _amend("share", member, value, f"{member} has a share of {value:g}")


_offer("pause", "paused", "Give a member nothing new, for example when an account was stolen.")
_offer("resume", "not paused", "Take back `gpq team pause`.")


@app.command()
def admin(member: Annotated[str, MEMBER], switch: Annotated[Switch, ADMIN]) -> None:
    """Say who may change the team. For admins.

    \b
    Example:
      gpq team admin bob on
    """
    is_on = switch is Switch.on
    role = "an admin" if is_on else "no admin"
    _amend("admin", member, int(is_on), f"{member} is {role}")


@app.command()
def recall(job: Annotated[str, RECALL]) -> None:
    """Take the GPUs of a job back that gpq can stop. It goes on later, after 5 minutes or more. For
    admins.

    \b
    Example:
      gpq team recall bob/42
    """
    member, number = client.member_and_job(job)
    _amend("recall", member, number, f"{job} gives its GPUs back")


@app.command()
def audit(
    lines: Annotated[int, LINES] = 20, color: Color = ColorChoice.auto, json: Json = False
) -> None:
    """Show what was decided: who joined, who changed what, which jobs got GPUs.

    \b
    Example:
      gpq team audit -n 50
    """
    with client.arbiter() as arbiter:
        answer = arbiter.call(View(kind="audit", lines=lines), AuditLines)
    output.text(view.audit, answer, color.value, as_json=json)
    if answer.broken and not json:
        output.note(view.breach(answer))


@app.command()
def check() -> int:
    """Check that the audit is whole, that floors hold now, that your daemon hears the arbiter, and
    that nobody can delay you there. Exit code 1 if not.

    \b
    Example:
      gpq team check
    """
    own = client.own_team()
    with client.arbiter() as arbiter:
        warnings = _warnings(own.name) + [COMMON] * (not arbiter.welcome().alone)
        members = arbiter.members()
        queue = arbiter.call(View(kind="queue"), Queue)
        trail = arbiter.call(View(kind="audit", lines=0), AuditLines)
    results = list(view.checks(members, queue, trail, warnings))
    output.say(*(f"{'ok  ' if holds else 'not '}  {text}" for holds, text in results))
    return int(not all(holds for holds, _ in results))


@app.command()
def link(name: Annotated[str, NAME], uid: Annotated[int | None, UID] = None) -> None:
    """Copy between stdin, stdout and the arbiter. gpq on other machines runs it by ssh.

    \b
    Example:
      ssh head gpq team link lab
    """
    client.link(name, uid, 0, 1)


def _warnings(name: str) -> list[str]:
    """Of this user's daemon about the team."""
    try:
        with connect(start=False) as connection:
            answer = connection.call(requests.Status(), JobList)
    except DaemonUnreachable as error:
        return [f"your daemon: {error.message}"]
    return [line for line in answer.warnings if line.startswith(f"team {name}: ")]


def _amend(action: str, member: str, value: float, result: str) -> None:
    with client.arbiter() as arbiter:
        arbiter.call(Amend(action=action, member=member, value=value), Receipt)
    output.confirm(result)
