"""Who is in a team: who may change that, what always stays true, and what a file of it must be."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.arbiter import roster
from gpq.arbiter.roster import Member, Roster
from gpq.errors import GpqError, NotFound, Refused, UsageError
from tests.agent.harm import HARM
from tests.contract.test_sqlite_store import fill, mounted, needs_root

LAB = Roster("lab", members={"ana": Member([1001], admin=True), "bob": Member([1002]), "cat": Member([1003])})
NAMES = st.sampled_from(["ana", "bob", "cat", "dan", "", "a/b", "a\nb", "\ud800", "x" * 65])
VALUES = st.sampled_from([0.0, 1.0, 1001.0, 1002.0, 2.5, -1.0, 65534.0, 2.0**32 - 1, 1e300, float("inf"), float("nan")])
CHANGES = st.tuples(st.sampled_from([*roster.CHANGES, "recall", ""]), NAMES, VALUES | st.floats(), NAMES)


@given(st.lists(CHANGES, max_size=30))
def test_whatever_is_asked_a_team_keeps_an_admin_and_uids_of_one_member_each(
    changes: list[tuple[str, str, float, str]],
) -> None:
    team = LAB
    for action, member, value, by in changes:
        before, admins = team.digest(), team.admins
        with suppress(Refused, NotFound, UsageError):
            changed = team.amendment(action, member, value, by)
            assert by in admins or (action == "remove" and by == member and not team.members[by].paused)
            assert team.digest() == before
            team = changed
        uids = [uid for row in team.members.values() for uid in row.uids]
        assert team.admins
        assert len(set(uids)) == len(uids)
        assert {team.member_of(uid) for uid in uids} == set(team.members)


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (("add", "dan", 1004), Member([1004])),
        (("add", "bob", 7), Member([7, 1002])),
        (("add", "bob", 1002), Member([1002])),
        (("share", "bob", 2), Member([1002], share=2.0)),
        (("pause", "bob", 0), Member([1002], paused=True)),
        (("resume", "bob", 0), Member([1002])),
        (("admin", "bob", 1), Member([1002], admin=True)),
        (("remove", "bob", 0), None),
    ],
)
def test_each_change_is_of_that_member_alone_and_is_the_same_after_a_save(
    tmp_path: Path, change: tuple[str, str, float], row: Member | None
) -> None:
    path, changed = str(tmp_path / "roster.json"), LAB.amendment(*change, by="ana")
    others = {name: member for name, member in LAB.members.items() if name != change[1]}
    assert changed.members == (others if row is None else {**others, change[1]: row})
    changed.save(path)
    assert roster.load(path) == changed
    assert roster.load(path).digest() == changed.digest()


@pytest.mark.parametrize(
    ("change", "by", "error"),
    [
        (("remove", "cat", 0), "bob", Refused),
        (("add", "bob", 5), "bob", Refused),
        (("share", "bob", 9), "", Refused),
        (("remove", "ana", 0), "ana", Refused),  # the last admin
        (("pause", "ana", 0), "ana", Refused),
        (("admin", "ana", 0), "ana", Refused),
        (("pause", "dan", 0), "ana", NotFound),
        (("add", "dan", 1002), "ana", UsageError),  # bob's
        (("add", "dan", roster.overflow_uid()), "ana", UsageError),
        (("share", "bob", 0), "ana", UsageError),
        (("recall", "bob", 41), "ana", UsageError),
        (("admin", "bob", 2), "ana", UsageError),
    ],
)
def test_a_change_is_refused(change: tuple[str, str, float], by: str, error: type[GpqError]) -> None:
    with pytest.raises(error):
        LAB.amendment(*change, by=by)


def test_who_is_paused_may_neither_change_the_team_nor_leave_it_to_join_again() -> None:
    team = LAB.amendment("admin", "bob", 1, "ana").amendment("pause", "bob", 0, "ana")
    for change in (("resume", "bob", 0), ("remove", "bob", 0)):
        with pytest.raises(Refused):
            team.amendment(*change, by="bob")
    assert "bob" not in LAB.amendment("remove", "bob", 0, "bob").members


def test_users_of_the_group_may_join_but_not_root_nor_nobody_nor_under_the_name_of_another() -> None:
    logins = [row for row in pwd.getpwall() if row.pw_uid not in (0, roster.overflow_uid())]
    login = next(row for row in logins if row == pwd.getpwuid(row.pw_uid))
    group = grp.getgrgid(login.pw_gid).gr_name
    team = msgspec.structs.replace(LAB, group=group)
    assert team.may_join(login.pw_uid) == login.pw_name
    assert LAB.may_join(login.pw_uid) == ""
    assert msgspec.structs.replace(LAB, group="root").may_join(0) == ""
    assert msgspec.structs.replace(LAB, group="nogroup").may_join(roster.overflow_uid()) == ""
    assert team.may_join((1 << 32) - 2) == ""
    assert team.with_uid(login.pw_name, 1 << 20).may_join(login.pw_uid) == ""
    assert team.with_uid("bob", login.pw_uid).may_join(login.pw_uid) == ""
    with_login = team.with_uid(login.pw_name, login.pw_uid)
    removed = with_login.amendment("remove", login.pw_name, 0, "ana")
    assert removed.may_join(login.pw_uid) == ""
    assert with_login.amendment("remove", login.pw_name, 0, login.pw_name).may_join(login.pw_uid) == login.pw_name
    assert removed.amendment("add", login.pw_name, login.pw_uid, "ana").outcasts == []
    stranger = next(row for row in logins if group not in {grp.getgrgid(gid).gr_name for gid in _groups(row)})
    assert team.may_join(stranger.pw_uid) == ""


def _groups(row: pwd.struct_passwd) -> list[int]:
    return os.getgrouplist(row.pw_name, row.pw_gid)


def test_the_digest_is_of_the_content_whatever_its_order() -> None:
    turned = msgspec.structs.replace(LAB, members=dict(reversed(LAB.members.items())))
    assert turned.digest() == LAB.digest() != LAB.amendment("pause", "cat", 0, "ana").digest()


def test_the_overflow_uid_is_nobody_even_in_a_file(tmp_path: Path) -> None:
    team = Roster("lab", members={"ana": Member([1001, roster.overflow_uid()], admin=True)})
    team.save(str(tmp_path / "roster.json"))
    loaded = roster.load(str(tmp_path / "roster.json"))
    assert [loaded.member_of(uid) for uid in (1001, roster.overflow_uid(), 1002)] == ["ana", "", ""]


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_roster_is_named_and_stays(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "roster.json"
    HARM[harm](path)
    with pytest.raises(GpqError, match=r"roster\.json is damaged") as error:
        roster.load(str(path))
    assert "\n" not in error.value.message
    assert os.path.lexists(path)


GOOD = b'{"name":"lab","members":{"ana":{"uids":[1],"admin":true},"bob":{"uids":[2]}}}'


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (b'"lab"', b'"-lab"'),
        (b'"lab"', b'"' + b"a" * 33 + b'"'),
        (b'"bob"', b'"b b"'),
        (b'"bob"', rb'"b\u001b"'),
        (b"[2]", b"[1]"),
        (b"[2]", b"[2,2]"),
        (b"[2]", b"[]"),
        (b"[2]", b"[-1]"),
        (b"[2]", b"[4294967295]"),
        (b"[2]", b'["2"]'),
        (b"[2]", b'[2],"share":0'),
        (b"[2]", b'[2],"share":1000.5'),
        (b"[2]", b'[2],"share":1e999'),
        (b"[2]", b'[2],"pausde":true'),
        (b"true", b"false"),
        (b"true", b'true,"paused":true'),
        (b'"lab"', b'"lab","group":"a b"'),
        (b'"lab"', b'"lab","floor_patience":-1'),
        (b'"lab"', b'"lab","borrow_limit":1e9'),
    ],
)
def test_one_wrong_value_makes_a_roster_damaged(tmp_path: Path, part: bytes, other: bytes) -> None:
    path = tmp_path / "roster.json"
    path.write_bytes(GOOD)
    assert roster.load(str(path)).member_of(2) == "bob"
    path.write_bytes(GOOD.replace(part, other))
    with pytest.raises(GpqError, match="damaged"):
        roster.load(str(path))


def test_a_roster_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Roster("lab", members={"ana": Member([1001])}).save(str(tmp_path / "roster.json"))
    with pytest.raises(NotFound):
        roster.load(str(tmp_path / "roster.json"))


@needs_root
def test_on_a_full_disk_the_old_roster_stays(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "256k") as folder:
        path = str(folder / "roster.json")
        LAB.save(path)
        fill(folder)
        with pytest.raises(Refused, match="No space left"):
            LAB.amendment("remove", "bob", 0, "ana").save(path)
        assert roster.load(path) == LAB
        assert sorted(os.listdir(folder)) == ["filler", "roster.json"]
