"""Who is in a team, and what an admin may change about that.

roster.json  {"name", "group", "members": {name: {"uids", "share", "admin", "paused"}},
             "outcasts", "floor_patience", "borrow_limit"}

A user is known by the uid that the kernel of the arbiter's machine names, and by nothing else.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
from collections.abc import Iterator

import msgspec
from gpq_agent import records
from msgspec.structs import replace

from gpq.arbiter import files
from gpq.config_rules import BETWEEN, MOST_WEIGHT, TEAM_NAME, USER_NAME
from gpq.errors import GpqError, NotFound, Refused, UsageError

NO_UID = (1 << 32) - 1  # no user has it, nor a larger one
CHANGES = ("add", "remove", "share", "pause", "resume", "admin")
NAME_HINT = "a name has at most 64 printable characters, without spaces, slashes and colons"


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uids: list[int]
    share: float = 1.0
    admin: bool = False
    paused: bool = False


class Roster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Users of the Unix group `group` may join on their own. "": nobody may."""

    name: str
    group: str = ""
    members: dict[str, Member] = {}
    outcasts: list[int] = []  # uids that an admin removed. They join only if an admin adds them
    floor_patience: float = 600.0  # seconds
    borrow_limit: float = 7200.0  # seconds

    @property
    def admins(self) -> list[str]:
        """Those who are not paused."""
        return [name for name, row in self.members.items() if row.admin and not row.paused]

    @property
    def uids(self) -> set[int]:
        """Those of all members."""
        return {uid for row in self.members.values() for uid in row.uids}

    def member_of(self, uid: int) -> str:
        """The name of the member, or "". The overflow uid is nobody's, because the kernel shows
        every user without a uid here as that one."""
        names = (name for name, row in self.members.items() if uid in row.uids)
        return "" if uid == overflow_uid() else next(names, "")

    def may_join(self, uid: int) -> str:
        """The login name of a user who is in the group and no member yet, or "". Never root, and
        nobody whose name a member has already."""
        nobody = (0, overflow_uid(), *self.outcasts)
        if not self.group or uid in nobody or self.member_of(uid):
            return ""
        try:
            login, gid = pwd.getpwuid(uid), grp.getgrnam(self.group).gr_gid
        except KeyError:
            return ""
        if login.pw_name in self.members or not is_name(login.pw_name):
            return ""
        is_in_group = gid in os.getgrouplist(login.pw_name, login.pw_gid)
        return login.pw_name if is_in_group else ""

    def digest(self) -> str:
        """SHA-256 in hex. The order of the members does not matter."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    def save(self, path: str) -> None:
        """Raises UsageError for a roster that `load` would not take, and Refused."""
        _expect_sound(self)
        files.write(path, self)

    def with_uid(self, member: str, uid: int) -> Roster:
        """`member` has this uid, too, and is new if there is no such member. Raises UsageError."""
        row = self.members.get(member, Member([]))
        uids = sorted({*row.uids, uid})
        if uid == overflow_uid():
            raise UsageError(f"uid {uid} stands for all users without one", "`id -u` prints a uid")
        members = {**self.members, member: replace(row, uids=uids)}
        outcasts = [outcast for outcast in self.outcasts if outcast != uid]
        roster = replace(self, members=members, outcasts=outcasts)
        _expect_sound(roster)
        return roster

    def amendment(self, action: str, member: str, value: float, by: str) -> Roster:
        """The roster after the member `by` has changed it. `action` and `value` are as in
        `gpq.rpc.team_messages.Amend`. Raises Refused, NotFound and UsageError."""
        self._expect_right(action, member, by)
        if action == "add":
            return self.with_uid(member, _whole(value))
        if not is_name(member):
            raise UsageError("invalid name of a member", NAME_HINT)
        if member not in self.members:
            hint = f"its members are {', '.join(self.members)}"
            raise NotFound(f"team {self.name} has no member {member}", hint)
        members, outcasts = dict(self.members), self.outcasts
        row = members.pop(member)
        if action != "remove":
            members[member] = _row_after(row, action, value)
        elif by != member:
            outcasts = sorted({*outcasts, *row.uids})
        roster = replace(self, members=members, outcasts=outcasts)
        if not roster.admins:
            hint = "make another member an admin first"
            raise Refused(f"{member} is the last admin who is not paused", hint)
        _expect_sound(roster)
        return roster

    def _expect_right(self, action: str, member: str, by: str) -> None:
        """Who is paused may not leave, or they could join again."""
        sender = self.members.get(by, Member([], paused=True))
        is_leaving = action == "remove" and by == member
        if sender.paused or not (sender.admin or is_leaving):
            hint = f"ask {' or '.join(self.admins)}"
            raise Refused(f"only an admin may change who is in team {self.name}", hint)


def load(path: str) -> Roster:
    """Raises NotFound if there is no file, and GpqError if it is damaged."""
    try:
        roster = files.read(path, Roster)
        if roster is None:
            raise NotFound(f"no team is decided here: there is no {path}", "make a team first")
        for flaw in _flaws(roster):
            raise records.Damaged(path, flaw)
    except records.Damaged as damage:
        hint = "repair it, or put a copy of it there. gpq did not change it"
        raise GpqError(f"the roster {path} is damaged: {damage.why}", hint) from None
    return roster


def create(path: str, name: str, group: str) -> None:
    """Write the roster of a new team, whose admin is this user. Raises Refused if there is one."""
    if os.path.exists(path):
        raise Refused(f"there is a team {name} of yours", f"`gpq team init {name}` starts it again")
    uid = os.getuid()
    try:
        login = pwd.getpwuid(uid).pw_name
    except KeyError:
        login = str(uid)
    Roster(name, group, {login: Member([uid], admin=True)}).save(path)


def overflow_uid() -> int:
    """As which the kernel shows a user who has no uid in this user namespace."""
    try:
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as stream:
            return int(stream.read())
    except OSError:
        return 65534


def is_name(text: str) -> bool:
    """May a member have this name?"""
    return USER_NAME.fullmatch(text) is not None and text.isprintable()


def _row_after(row: Member, action: str, value: float) -> Member:
    if action == "share":
        return replace(row, share=float(value))
    if action in ("pause", "resume"):
        return replace(row, paused=action == "pause")
    if action != "admin":
        raise UsageError("the roster has no such change", f"choose one of {', '.join(CHANGES)}")
    if value not in (0, 1):
        raise UsageError("invalid value for admin", "it is 1 or 0")
    return replace(row, admin=value == 1)


def _whole(value: float) -> int:
    if not float(value).is_integer():
        raise UsageError(f"invalid uid {value}", "`id -u` prints a uid")
    return int(value)


def _expect_sound(roster: Roster) -> None:
    for flaw in _flaws(roster):
        raise UsageError(f"invalid roster: {flaw}")


def _flaws(roster: Roster) -> Iterator[str]:
    if not TEAM_NAME.fullmatch(roster.name):
        yield "the name of a team has at most 32 letters, digits, dashes and underscores"
    if roster.group and not is_name(roster.group):
        yield "invalid name of its group"
    for key in ("floor_patience", "borrow_limit"):
        lowest, highest, unit = BETWEEN[key]
        if not lowest <= getattr(roster, key) <= highest:
            yield f"{key} must be between {lowest} and {highest}{unit}"
    if not all(is_name(name) for name in roster.members):
        yield f"invalid name of a member: {NAME_HINT}"
    for name, row in roster.members.items():
        if not row.uids or not all(0 <= uid < NO_UID for uid in row.uids):
            yield f"{name} has no uid, or one that no user can have"
        if not 0 < row.share <= MOST_WEIGHT:
            yield f"the share of {name} must be above 0 and at most {MOST_WEIGHT}"
    uids = [uid for row in roster.members.values() for uid in row.uids]
    if len(set(uids)) < len(uids):
        yield "a uid is there twice"
    if not roster.admins:
        yield "it has no admin who is not paused"
