"""Reading the jobs of a database while another process writes it: the reader gets all of them and changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpq.errors import NotFound, Refused
from gpq.store.past import read_jobs
from gpq.store.sqlite import SqliteStore
from tests.contract.test_stores import end, spec, submit


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "gpq.db")


def test_all_jobs_are_read_while_the_writer_continues(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        first, second = submit(store, spec("first"), spec("second"))
        end(store, first, 9.0)
        assert [(job.name, str(job.state)) for job in read_jobs(path)] == [
            ("first", "completed"),
            ("second", "pending"),
        ]
        assert read_jobs(path)[1] == second
        submit(store, spec("third"))  # the writer's epoch is still valid
        assert len(read_jobs(path)) == 3
    assert [job.name for job in read_jobs(path)] == ["first", "second", "third"]


def test_a_missing_damaged_or_newer_database_is_named(path: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no history"):
        read_jobs(path)
    with closing(SqliteStore(path)) as store:
        submit(store, spec("kept"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE jobs SET body = replace(body, 'kept', 'tepk')")
        connection.commit()
    with pytest.raises(Refused, match="damaged"):
        read_jobs(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO migrations (version, name) VALUES (99, 'later')")
        connection.commit()
    with pytest.raises(Refused, match="newer gpq"):
        read_jobs(path)
    other = tmp_path / "notes.db"
    other.write_text("buy milk")
    with pytest.raises(Refused, match="it is not a database"):
        read_jobs(str(other))
