"""A database that was restored from a copy: no epoch, no id and no attempt number is used a second time."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpq.core.model.jobs import Job, JobState
from gpq.core.model.units import JobId
from gpq.errors import Refused, StoreFailed
from gpq.store import takeover
from gpq.store.sqlite import SqliteStore
from tests.contract.test_sqlite_store import fill, mounted, needs_root
from tests.contract.test_stores import spec, submit


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "gpq.db")


def opened(path: str) -> SqliteStore:
    return SqliteStore(path, marks=beside(path))


def beside(path: str) -> str:
    return os.path.join(os.path.dirname(path), "marks.json")


def launch(store: SqliteStore, job: Job) -> Job:
    """Its next attempt, which ends at once."""
    state = store.load()
    after = replace(state.jobs[job.id], attempt=state.jobs[job.id].next_attempt, state=JobState.PENDING)
    store.commit([], replace(state, jobs={**state.jobs, job.id: after}))
    return after


def restore(path: str, copy: str) -> None:
    for name in ("", "-wal", "-shm"):
        Path(path + name).unlink(missing_ok=True)
    shutil.copy(copy, path)


def test_a_restarted_daemon_leaves_no_gap(path: str) -> None:
    for number in range(1, 4):
        with closing(opened(path)) as store:
            assert (store.epoch, store.notes, store.load().lost_ids) == (number, [], ())
            [job] = submit(store, spec())
            assert (job.id, launch(store, job).attempt) == (number, 1)


@pytest.mark.parametrize("later", [1, 3 * takeover.ID_BLOCK])
@pytest.mark.parametrize("reigns", [0, 2])
def test_after_a_restore_no_number_is_used_twice(path: str, later: int, reigns: int) -> None:
    with closing(opened(path)) as store:
        old = submit(store, spec("old"), spec("older"))
        launch(store, old[1])
        store.backup()
        lost = [submit(store, spec())[0].id for _ in range(later)]
        numbers = [launch(store, old[0]).attempt for _ in range(later)]
        epoch = store.epoch
    for _ in range(reigns):
        with closing(opened(path)) as store:
            epoch = store.epoch
    restore(path, path + ".backup")
    for _ in range(2):  # even if it is started once more
        with closing(opened(path)) as store:
            assert store.epoch > epoch
            state = store.load()
            assert all(any(first <= name <= last for first, last in state.lost_ids) for name in lost)
            assert not any(first <= job.id <= last for first, last in state.lost_ids for job in old)
            [new] = submit(store, spec("new"))
            assert new.id > max(lost)
            assert launch(store, old[0]).attempt > max(numbers)
            assert [state.jobs[job.id].lost_attempts[0] for job in old] == [1, 2]
            assert launch(store, new).attempt == 1, "of a job that is new, none is lost"


def test_a_manual_copy_of_a_closed_database_is_detected(path: str, tmp_path: Path) -> None:
    with closing(opened(path)) as store:
        submit(store, spec())
    shutil.copy(path, tmp_path / "copy.db")
    with closing(opened(path)) as store:
        lost = submit(store, spec())[0].id
    restore(path, str(tmp_path / "copy.db"))
    with closing(opened(path)) as store:
        assert "restored from a copy: new jobs begin with" in store.notes[0]
        assert submit(store, spec())[0].id > lost
        assert store.epoch == 3


def test_a_backup_restored_twice_continues_above_the_numbers_of_the_first(path: str) -> None:
    with closing(opened(path)) as store:
        [old] = submit(store, spec())
        store.backup()
    given = [(0, 0, 0)]
    for _ in range(3):
        restore(path, path + ".backup")
        with closing(opened(path)) as store:
            epoch, new, attempt = given[-1]
            given.append((store.epoch, submit(store, spec())[0].id, launch(store, old).attempt))
            assert given[-1][0] > epoch
            assert given[-1][1] > new
            assert given[-1][2] > attempt


def test_a_new_database_does_not_reuse_ids_of_the_lost_one(path: str) -> None:
    with closing(opened(path)) as store:
        lost = submit(store, spec())[0].id
    os.unlink(path)
    with closing(opened(path)) as store:
        assert submit(store, spec())[0].id > lost
        assert store.load().lost_ids[0][0] == 1
        assert store.epoch == 1
        assert store.notes == []


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"store":1,"epoch":"x","ids":-1,"attempts":null}', b"\xff"])
def test_lost_marks_are_written_again_and_the_log_says_so(path: str, content: bytes | None) -> None:
    with closing(opened(path)) as store:
        submit(store, spec())
    os.unlink(beside(path))
    if content is not None:
        Path(beside(path)).write_bytes(content)
    with closing(opened(path)) as store:
        assert "so gpq writes it again" in store.notes[0]
        assert submit(store, spec())[0].id == 2
    with closing(opened(path)) as store:
        assert store.notes == []


def test_a_daemon_killed_before_it_wrote_the_marks_loses_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(path)) as store:
        store.backup()
        lost = submit(store, spec())[0].id
    restore(path, path + ".backup")
    with monkeypatch.context() as patch:
        patch.setattr(takeover, "write_marks", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            opened(path)
    with closing(opened(path)) as store:
        assert submit(store, spec())[0].id > lost
        assert store.epoch == 3
        assert len(store.load().lost_ids) == 1


def test_no_stored_number_is_above_the_marks(path: str) -> None:
    written: list[takeover.Marks] = []
    with closing(opened(path)) as store:
        for _ in range(takeover.ID_BLOCK + 50):
            [job] = submit(store, spec())
            found, _ = takeover.read_marks(beside(path))
            assert found is not None
            assert found.ids >= job.id
            written += [found] if found not in written else []
        assert len(written) == 2, "one write for a block of ids"
        for _ in range(2 * takeover.ATTEMPT_BLOCK):
            done = launch(store, job)
            found, _ = takeover.read_marks(beside(path))
            assert found is not None
            assert found.attempts >= done.attempt


def test_nothing_is_acknowledged_if_the_marks_cannot_be_written(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with closing(opened(path)) as store:
        before = store.load()
        monkeypatch.setattr(takeover, "write_marks", broken)
        with pytest.raises(Refused, match=r"cannot write .*: Input/output error\. gpq changed nothing"):
            submit(store, *[spec() for _ in range(takeover.ID_BLOCK + 2)])
        assert store.load() is before


def test_an_earlier_writer_does_not_overwrite_later_marks(path: str) -> None:
    with closing(opened(path)) as old, closing(opened(path)):
        with pytest.raises(StoreFailed, match="another daemon"):
            submit(old, *[spec() for _ in range(takeover.ID_BLOCK + 2)])
        found, _ = takeover.read_marks(beside(path))
        assert found is not None
        assert found.epoch == 2


@needs_root
def test_on_a_full_disk_the_marks_are_overwritten_in_place(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "1m") as small:
        path = str(small / "marks.json")
        takeover.write_marks(path, takeover.Marks("a", 1, 2, 3))
        fill(small)
        takeover.write_marks(path, takeover.Marks("a", 2, 300, 4000))
        assert takeover.read_marks(path) == (takeover.Marks("a", 2, 300, 4000), "")
        with pytest.raises(OSError, match="No space"):
            takeover.write_marks(str(small / "other.json"), takeover.Marks("a", 1, 2, 3))


def test_a_backup_says_that_it_is_one_and_is_a_single_file(path: str) -> None:
    with closing(opened(path)) as store:
        submit(store, spec())
        store.backup()
    with closing(sqlite3.connect(path + ".backup")) as copy:
        assert copy.execute("SELECT value FROM meta WHERE key = ?", (takeover.COPY,)).fetchall() == [("1",)]
    with closing(opened(path)) as store:
        assert store.load().jobs.keys() == {JobId(1)}
    left = {name for name in os.listdir(os.path.dirname(path)) if ".backup" in name}
    assert left == {"gpq.db.backup"}
