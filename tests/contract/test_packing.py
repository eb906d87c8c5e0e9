"""Bodies of ended jobs and of the journal: packed small, read back exactly, and listed without being read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpq.core.model.events import RequeueAsked, Submitted
from gpq.core.model.jobs import JobSpec, JobState
from gpq.core.model.units import JobId
from gpq.errors import Refused
from gpq.ports import Wanted
from gpq.store.opening import MIGRATIONS, connect, migrate
from gpq.store.sqlite import SqliteStore
from tests.contract.test_stores import end, spec, submit

ENV = tuple((f"VARIABLE_{number}", f"{number}/ä" * 40) for number in range(30))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "gpq.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        yield store


def from_shell(number: int) -> JobSpec:
    """A job of one shell, in which a variable changes."""
    return spec(f"job-{number}").having(env=(*ENV, ("JOB", str(number))))


def bytes_of(store: SqliteStore) -> int:
    """Of all bodies and dictionaries."""
    tables = ("jobs", "events", "dictionaries")
    texts = [f"SELECT sum(length(CAST(body AS BLOB))) FROM {table}" for table in tables]
    return sum(int(str(store.read(text, ())[0][0] or 0)) for text in texts)


def test_a_jobs_environment_is_stored_once_for_its_shell_and_read_back_exactly(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        [first] = submit(store, from_shell(1))
        ended = [end(store, first, 1.0)]
        before = bytes_of(store)
        jobs = submit(store, *map(from_shell, range(2, 12)))
        ended += [end(store, job, float(job.id)) for job in jobs]
        assert bytes_of(store) - before < 10 * 400
        assert store.history() == ended[::-1]
        journal = store.events()
    with closing(SqliteStore(path)) as store:  # the next daemon packs with the same dictionaries
        [later] = submit(store, from_shell(12))
        ended.append(end(store, later, 12.0))
        assert store.history() == ended[::-1]
        assert store.events()[: len(journal)] == journal
        [(dictionaries,)] = store.read("SELECT count(*) FROM dictionaries WHERE length(body) > 1000", ())
        assert dictionaries == 1


def test_a_job_that_runs_again_is_live_again(store: SqliteStore) -> None:
    [job] = submit(store, from_shell(1))
    ended = end(store, job, 1.0, JobState.FAILED)
    again = replace(ended, state=JobState.PENDING, ended_at=None)
    store.commit([RequeueAsked(2.0, job.id, "ada", ended)], replace(store.load(), jobs={job.id: again}))
    assert (store.load().jobs, store.history(), store.ended_count()) == ({job.id: again}, [], 0)
    assert store.events(kinds=[RequeueAsked]) == [RequeueAsked(2.0, job.id, "ada", ended)]


def test_a_dictionary_that_did_not_fit_on_the_disk_comes_with_the_next_commit(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        [job] = submit(store, spec("small"))
        end(store, job, 1.0)
        [(pages,)] = store._writer.execute("PRAGMA page_count").fetchall()
        store._writer.execute(f"PRAGMA max_page_count = {pages}")
        big = spec("big").having(env=tuple((f"V{number}", f"{number * 7919}" * 9) for number in range(2000)))
        with pytest.raises(Refused, match="full"):
            submit(store, big)
        store._writer.execute("PRAGMA max_page_count = 1000000")
        [kept] = submit(store, big)
        ended = end(store, kept, 2.0)
    with closing(SqliteStore(path)) as store:
        assert store.history(limit=1) == [ended]
        assert Submitted(0.0, kept.id, big) in store.events()


@pytest.mark.parametrize("damage", ["substr(body, 1, length(body) - 9)", "'text'", "CAST(x'ff' AS TEXT)"])
def test_a_damaged_dictionary_gets_a_successor(path: str, damage: str) -> None:
    with closing(SqliteStore(path)) as store:
        end(store, submit(store, from_shell(1))[0], 1.0)
    with closing(sqlite3.connect(path)) as other, other:
        assert other.execute(f"UPDATE dictionaries SET body = {damage}").rowcount == 2
    ended = []
    for number in (2, 3):  # the third uses the successor
        with closing(SqliteStore(path)) as store:
            [job] = submit(store, from_shell(number))
            ended.append(end(store, job, float(number)))
            assert store.history(limit=number - 1) == ended[::-1]
            [(dictionaries,)] = store.read("SELECT count(*) FROM dictionaries", ())
            assert dictionaries == 4
            with pytest.raises(Refused, match="damaged"):
                store.history()


class Hasty(SqliteStore):
    """While it opens, an earlier daemon still writes."""

    def _take_over(self, first_id: int, path: str, is_new: bool) -> None:
        with closing(SqliteStore(self.path)) as earlier:
            end(earlier, submit(earlier, from_shell(1))[0], 1.0)
        super()._take_over(first_id, path, is_new)


def test_a_dictionary_of_an_earlier_daemons_last_commit_is_used(path: str) -> None:
    with closing(Hasty(path)) as store:
        [job] = submit(store, from_shell(2))
        ended = end(store, job, 2.0)
        [first] = store.history(ids=[JobId(1)])
        assert (first.spec, store.history(limit=1)) == (from_shell(1), [ended])


def test_a_database_of_the_version_before_keeps_its_past(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        [first, second] = submit(store, from_shell(1), from_shell(2))
        end(store, first, 1.0)
        ended = [end(store, second, 2.0, JobState.FAILED)]
        journal = store.events()
        old = [(text, number) for text, number in store.read("SELECT plain(body), id FROM jobs", ())]
        facts = [(text, number) for text, number in store.read("SELECT plain(body), seq FROM events", ())]
    with closing(sqlite3.connect(path)) as connection, connection:  # as version 3 wrote it
        connection.executemany("UPDATE jobs SET body = ? WHERE id = ?", old)
        connection.executemany("UPDATE events SET body = ? WHERE seq = ?", facts)
        connection.execute("DROP TABLE dictionaries")
        connection.execute("DROP TABLE removed")
        connection.execute("DROP INDEX jobs_past")
        connection.execute("DROP INDEX events_at")
        connection.execute("CREATE INDEX jobs_ended ON jobs (ended_at, id) WHERE ended_at IS NOT NULL")
        connection.execute("CREATE INDEX events_kind ON events (kind, seq)")
        connection.execute("DELETE FROM migrations WHERE version > 3")
    with closing(SqliteStore(path)) as store:
        assert store.history(limit=1) == ended
        assert store.events() == journal
        [third] = submit(store, from_shell(3))
        ended.append(end(store, third, 3.0))
        assert store.history(limit=2) == ended[::-1]


def test_what_is_only_listed_is_not_read(path: str) -> None:
    with closing(connect(path)) as connection:
        migrate(connection, upto=len(MIGRATIONS))
        plans = {
            "SELECT id FROM jobs WHERE ended_at IS NOT NULL AND user = 'ada' ORDER BY ended_at DESC, id DESC": "jobs_past",
            "SELECT count(*) FROM jobs WHERE ended_at IS NOT NULL AND state IN ('failed')": "jobs_past",
            "SELECT min(seq) - 1 FROM events INDEXED BY events_at WHERE at >= 5": "events_at",
        }
        for query, index in plans.items():
            [(*_, plan)] = connection.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
            assert f"USING COVERING INDEX {index}" in plan, query


def test_ids_are_those_of_the_records(store: SqliteStore) -> None:
    jobs = submit(store, spec("a"), spec("b", "bo"), spec("a", "bo"), spec("live"))
    for at, job in enumerate(jobs[:3]):
        end(store, job, float(at))
    for query in (Wanted(), Wanted(limit=2), Wanted(user="bo"), Wanted(names=["a"]), Wanted([JobId(1), JobId(4)])):
        assert store.ids(query) == [record.id for record in store.records(query)]
    everything = Wanted([JobId(number) for number in range(1, 300_000)])
    assert store.ids(everything) == [3, 2, 1], "more ids than SQLite takes as values"
