"""What the commands of a team ask of its arbiter, and where they find it."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import signal
import time
from collections.abc import Iterator
from typing import TypeVar

from gpq import config, paths
from gpq.client.autostart import arbiter_runs, own_teams, start_arbiter
from gpq.config_rules import TEAM_NAME
from gpq.connectors.arbiter import ANSWER_SECONDS, ArbiterClient
from gpq.connectors.arbiter_link import READY, ArbiterLink
from gpq.errors import DaemonUnreachable, GpqError, NotFound, Refused, UsageError
from gpq.rpc.team_messages import Look, Membership, Queue, TeamServers, View

R = TypeVar("R")
END_SECONDS = 40.0
SETTLE_SECONDS = 10.0  # for a daemon that was just started to tell of its servers
LOOK_SECONDS = 0.1


@contextlib.contextmanager
def arbiter(team: config.TeamConfig | None = None) -> Iterator[ArbiterClient]:
    """An open connection, by default to that of this user's team. Raises GpqError."""
    team = team or own_team()
    try:
        connection = ArbiterClient(team.name, team.uid, team.arbiter)
    except DaemonUnreachable as error:
        hint = f"`gpq team init {team.name}` of {person(team.uid)} starts it again"
        raise DaemonUnreachable(error.message, hint) from None
    with contextlib.closing(connection):
        yield connection


def own_team() -> config.TeamConfig:
    """The team of this user. Raises Refused if there is none."""
    team = config.load().team
    if not team.name:
        raise Refused(
            "you are in no team", "`gpq join NAME` joins one, `gpq team init NAME` makes one"
        )
    return team


def expect_free(place: tuple[str, int, str] = ("", 0, "")) -> None:
    """Raises Refused if this user is in a team, another one than that with this name, decider and
    machine."""
    team = config.load().team
    if team.name and (team.name, team.uid, team.arbiter) != place:
        hint = "`gpq team` shows it, `gpq leave` leaves it"
        raise Refused(f"you are in team {team.name} already", hint)


def expect_name(name: str) -> None:
    """Raises UsageError."""
    if not TEAM_NAME.fullmatch(name):
        hint = "use at most 32 letters, digits, dashes and underscores"
        raise UsageError(f"invalid name of a team `{name}`", hint)


def _expect_group(group: str) -> None:
    """Raises UsageError, unless it is "" or a Unix group of this machine."""
    try:
        if group:
            grp.getgrnam(group)
    except KeyError:
        hint = "`getent group` lists them"
        raise UsageError(f"this machine has no Unix group {group}", hint) from None


def person(uid: int) -> str:
    """`ana (uid 1001)`, or `uid 1001` if the user has no name."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def user(word: str) -> tuple[str, int]:
    """The name and the uid of a login name or a uid. Raises NotFound and UsageError."""
    try:
        entry = pwd.getpwuid(int(word)) if word.isdecimal() else pwd.getpwnam(word)
    except OverflowError:
        raise UsageError(f"invalid uid {word}", "`id -u` prints a uid") from None
    except KeyError:
        if word.isdecimal():
            return word, int(word)
        raise NotFound(f"this machine has no user {word}", "give a login name or a uid") from None
    return entry.pw_name, entry.pw_uid


def member_and_job(word: str) -> tuple[str, int]:
    """Of `bob/42`. Raises UsageError."""
    match = re.fullmatch(r"(.+)/(\d{1,15})", word)
    if match is None:
        raise UsageError(f"invalid job `{word}`", "name the member and the job: bob/42")
    return match[1], int(match[2])


def ask(view: View, kind: type[R]) -> R:
    """The answer of the arbiter of this user's team. Raises GpqError."""
    with arbiter() as connection:
        return connection.call(view, kind)


def look(patience: float = ANSWER_SECONDS) -> Look:
    """The members and the jobs of all. Raises GpqError."""
    with arbiter() as connection:
        members = connection.call(View(kind="members"), Membership, patience)
        return Look(members, connection.call(View(kind="queue"), Queue, patience))


def deciders(name: str) -> list[int]:
    """The users who have a folder for the socket of an arbiter of this team."""
    uids = set()
    for place in paths.team_folders(name, 0):
        with contextlib.suppress(OSError), os.scandir(os.path.dirname(place)) as entries:
            for entry in entries:
                match = re.fullmatch(rf"gpq-team-(\d+)-{re.escape(name)}", entry.name)
                if match and entry.is_dir(follow_symlinks=False):
                    uids |= {entry.stat(follow_symlinks=False).st_uid} & {int(match[1])}
    return sorted(uids)


def decider(name: str, uid: int | None) -> int:
    """Who decides for this team, `uid` if there are several. Raises NotFound and Refused."""
    uids = deciders(name)
    if uid is not None:
        uids = [candidate for candidate in uids if candidate == uid]
    if not uids:
        hint = f"ask who decides, or make the team: `gpq team init {name}`"
        raise NotFound(f"there is no arbiter of a team {name} on this machine", hint)
    if len(uids) > 1:
        people = ", ".join(map(person, uids))
        hint = "ask which is yours, then add `--uid N`"
        raise Refused(f"several users decide for a team {name}: {people}", hint)
    return uids[0]


def search(word: str, uid: int | None) -> tuple[config.TeamConfig, str]:
    """The team that `lab` or `head:lab` names, and who decides for it, `uid` if there are several.
    Raises GpqError."""
    head, _, name = word.rpartition(":")
    expect_name(name)
    if not head:
        uid = decider(name, uid)
        return config.TeamConfig(name=name, uid=uid), person(uid)
    with contextlib.closing(ArbiterLink(head, name, uid)) as link:
        team = config.TeamConfig(name=name, uid=link.uid, arbiter=head)
        return team, f"{link.user} (uid {link.uid}) on {head}"


def link(name: str, uid: int | None, source: int, sink: int) -> None:
    """Copy between two descriptors and the arbiter of this machine, after a line about who decides.
    The other end is `ArbiterLink`. Raises GpqError."""
    expect_name(name)
    team = config.TeamConfig(name=name, uid=decider(name, uid))
    with arbiter(team) as connection:
        user = person(team.uid).partition(" (")[0].replace(" ", "-")
        os.write(sink, f"\n{team.uid} {user}\n{READY}\n".encode())
        connection.copy(source, sink)


def start_new(name: str, group: str) -> bool:
    """Make a team for which this user decides, and start its arbiter. False if the team is there,
    and only the arbiter had to start. Raises GpqError."""
    expect_name(name)
    if name in own_teams():
        start_arbiter(name)
        return False
    expect_free()
    _expect_group(group)
    strangers = [uid for uid in deciders(name) if uid != os.getuid()]
    if strangers:
        hint = f"`gpq join {name}` joins it, or choose another name"
        raise Refused(f"{person(strangers[0])} decides for a team {name} on this machine", hint)
    start_arbiter(name, "--new", f"--group={group}")
    return True


def membership(connection: ArbiterClient, member: str) -> Membership:
    """The members, if possible after the daemon of `member` has told of all its servers."""
    count, until = len(config.load().nodes), time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until:
        rows = connection.call(View(kind="servers"), TeamServers).rows
        if sum(member in row.members for row in rows) >= count:
            break
        time.sleep(LOOK_SECONDS)
    return connection.members()


def end_arbiter(connection: ArbiterClient) -> None:
    """End the arbiter of a team of this user for good. Its audit stays. Raises GpqError."""
    name, folder = connection.name, paths.team(connection.name)
    if not connection.pid:  # the kernel cannot name it here
        raise Refused("the arbiter runs in another container", "end the team there")
    with contextlib.suppress(ProcessLookupError):
        os.kill(connection.pid, signal.SIGTERM)
    until = time.monotonic() + END_SECONDS
    while arbiter_runs(name):
        if time.monotonic() > until:
            pid = connection.pid
            raise GpqError(f"the arbiter (pid {pid}) does not end", f"run `kill -9 {pid}`")
        time.sleep(LOOK_SECONDS / 5)
    os.replace(os.path.join(folder, "roster.json"), os.path.join(folder, "roster-ended.json"))
    for place in paths.team_folders(name, os.getuid()):
        with contextlib.suppress(OSError):
            os.rmdir(place)
