"""Takes the own daemon into a team and out of it. Jobs keep running. Prints nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from gpq import paths
from gpq.client import daemon_control
from gpq.client.autostart import ensure_daemon, start_arbiter
from gpq.client.team import arbiter, end_arbiter, own_team, person
from gpq.config import TeamConfig
from gpq.errors import GpqError, Refused
from gpq.rpc.team_messages import Amend, Receipt
from gpq.servers import config_file


def enter(team: TeamConfig) -> None:
    """Write the team into config.toml and start the daemon anew. Raises GpqError."""
    _begin_anew(lambda text: config_file.with_team(text, team), starts=True)


def leave(note: Callable[[str], None]) -> str:
    """Leave the team of this user, and return its name. If the arbiter cannot be told, that is a
    note. Raises Refused if nobody else could change the team then."""
    team = own_team()
    _expect_successor()

    def tell() -> None:
        try:
            with arbiter(team) as connection:
                member = connection.welcome().member
                connection.call(Amend(action="remove", member=member), Receipt)
        except GpqError as error:
            note(f"the arbiter does not know that you left: {error.message}")

    _begin_anew(config_file.without_team, tell)
    return team.name


def end() -> str:
    """End the team of this user, who decides for it and is its last member. Returns its name.
    Raises GpqError."""
    team = own_team()
    if team.arbiter or team.uid != os.getuid():
        decider = f"uid {team.uid} on {team.arbiter}" if team.arbiter else person(team.uid)
        hint = f"`gpq leave` leaves it, and {decider} may end it"
        raise Refused(f"{decider} decides for team {team.name}, not you", hint)
    start_arbiter(team.name)
    with arbiter() as connection:
        member = connection.welcome().member
        names = ", ".join(row.name for row in connection.members().rows if row.name != member)
        if names:
            hint = "`gpq team remove` removes them, or `gpq leave` leaves the team to them"
            raise Refused(f"there are other members: {names}", hint)
        _begin_anew(config_file.without_team, lambda: end_arbiter(connection))
    return team.name


def _expect_successor() -> None:
    """Raises Refused if this member is the last admin. An arbiter that is gone does not object."""
    try:
        with arbiter() as connection:
            welcome, rows = connection.welcome(), connection.members().rows
    except GpqError:
        return
    admins = [row.name for row in rows if row.admin and not row.paused]
    if admins == [welcome.member]:
        hint = "make another member an admin first: `gpq team admin MEMBER on`"
        if len(rows) == 1:
            hint = "`gpq leave --end` ends the team"
        raise Refused(f"you are the last admin of team {connection.name}", hint)


def _begin_anew(
    change: Callable[[str], str],
    farewell: Callable[[], None] | None = None,
    *,
    starts: bool = False,
) -> None:
    """Change config.toml and start the daemon again, if it has run or it `starts`. `farewell` comes
    while no daemon runs, because it would say hello again."""
    expect_shell()
    before = config_file.read()
    config_file.write(change(before), before)
    try:
        starts |= daemon_control.stop()
        # it is of an earlier team, whose epochs say nothing about another
        with contextlib.suppress(FileNotFoundError):
            os.unlink(paths.team_state())
        if farewell is not None:
            farewell()
    finally:  # also after Ctrl-C
        if starts:
            ensure_daemon()


def expect_shell() -> None:
    """Raises Refused in a job, which cannot start the daemon again."""
    if os.environ.get("GPQ_MARK"):
        raise Refused("a job cannot start your daemon again", "run this in your shell")
