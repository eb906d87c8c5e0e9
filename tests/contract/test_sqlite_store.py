"""What only the store on disk promises: nothing acknowledged is lost, there is one writer, and damage is detected."""

from __future__ import annotations

import errno
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpq.core.freedoms import with_habits
from gpq.core.model.accounts import MeanShare, Standing
from gpq.core.model.events import JobsRemoved, Succeeded
from gpq.core.model.profile import Declared, Habit, Noise, Prior, Profile, ProfileRow
from gpq.core.model.units import JobId
from gpq.errors import GpqError, Refused, StoreFailed
from gpq.ports import Wanted
from gpq.store import disk, rows
from gpq.store.opening import MIGRATIONS, migrate
from gpq.store.sqlite import SqliteStore
from tests.contract.test_stores import end, spec, submit
from tests.support.figures import Figures

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "gpq.db")


def test_a_commit_is_there_after_a_reopen_and_raises_the_epoch(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        [job] = submit(store, spec("kept"))
        assert store.epoch == 1
    with closing(SqliteStore(path)) as store:
        assert store.load().jobs == {job.id: job}
        assert store.epoch == 2


def test_removed_jobs_stay_removed_and_their_numbers_of_events_are_not_used_again(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        [job] = submit(store, spec())
        end(store, job, 10.0)
        [*_, (last, _)] = store.news(0, [Succeeded], 9)[1]
        store.commit([JobsRemoved(20.0, (job.id,))], store.load())
    with closing(SqliteStore(path)) as store:
        assert (store.history(), store.ended_count(), store.removed_ids([job.id])) == ([], 0, [job.id])
        [newer] = submit(store, spec())
        end(store, newer, 20.0)
        [*_, (number, _)] = store.news(last, [Succeeded], 9)[1]
        assert (newer.id, number > last) == (2, True)


def test_only_changed_jobs_are_written(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        submit(store, *[spec() for _ in range(50)])
        before = store._writer.total_changes
        state = store.load()
        one = replace(state.jobs[JobId(7)], notices=("changed",))
        store.commit([], replace(state, jobs={**state.jobs, one.id: one}))
        assert store._writer.total_changes - before == 1


def test_habits_are_durable_and_a_database_from_before_them_opens(path: str) -> None:
    habit = Habit("own-epochs", ("resize",), "its own epochs", "job.epochs()", until=200)
    measured = with_habits(Profile(Declared(adaptive=True, batch_size=64)), (habit, Habit("closure", ("accumulate",))))
    with closing(SqliteStore(path)) as store:
        [job] = submit(store, spec("strict"))
        state = store.load()
        one = replace(job, profile=measured)
        store.commit([], replace(state, jobs={job.id: one}, priors={"p": Prior(habits=(habit,))}, now=1.0))
    with closing(SqliteStore(path)) as store:
        assert store.load().jobs[job.id].profile == measured
        assert store.load().priors["p"].habits == (habit,)
    with closing(sqlite3.connect(path)) as connection, connection:
        [(number, state_, user, name, ended, body)] = connection.execute(
            "SELECT id, state, user, name, ended_at, body FROM jobs"
        ).fetchall()
        old = json.loads(body)
        del old["profile"]["habits"], old["profile"]["script"]
        text = json.dumps(old, separators=(",", ":"))
        total = rows.checksum(number, state_, user, name, ended, text)
        connection.execute("UPDATE jobs SET body = ?, checksum = ?", (text, total))
        [(key, prior, at)] = connection.execute("SELECT key, body, updated_at FROM priors").fetchall()
        old = json.loads(prior)
        del old["habits"]
        text = json.dumps(old, separators=(",", ":"))
        connection.execute("UPDATE priors SET body = ?, checksum = ?", (text, rows.checksum(key, at, text)))
    with closing(SqliteStore(path)) as store:
        profile = store.load().jobs[job.id].profile
        assert (profile.habits, profile.script, profile.lost) == ((), None, frozenset())
        assert store.load().priors["p"].habits == ()


LEARNT = Prior((ProfileRow(1, 2, 32, 0.1, 0.2, 40.0, "A100"),), Noise(1.0, 8.0, 640), 2)


def test_priors_survive_a_reopen_with_the_latest_last(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        store.commit([], replace(store.load(), priors={"ana:/ä.py:1:2": LEARNT, "b": Prior(), "c": Prior()}, now=1.0))
        store.commit([], replace(store.load(), priors={"b": Prior(), "ana:/ä.py:1:2": LEARNT}, now=2.0))
    with closing(SqliteStore(path)) as store:
        known = dict(store.load().priors)
        assert known == {"ana:/ä.py:1:2": LEARNT, "b": Prior()}
        again = replace(known.pop("ana:/ä.py:1:2"), max_replicas=8)
        store.commit([], replace(store.load(), priors={**known, "ana:/ä.py:1:2": again}, now=3.0))
    with closing(SqliteStore(path)) as store:
        assert list(store.load().priors)[-1] == "ana:/ä.py:1:2"
        assert store.load().priors["ana:/ä.py:1:2"] == again


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE priors SET body = replace(body, '0.2', '0.3') WHERE key = 'bad'",
        "UPDATE priors SET key = 'worse' WHERE key = 'bad'",
        "UPDATE priors SET body = CAST(x'ff00ff' AS TEXT) WHERE key = 'bad'",
        "UPDATE priors SET updated_at = 9e9 WHERE key = 'bad'",
    ],
)
def test_only_the_damaged_prior_is_dropped_with_a_notice(
    path: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(SqliteStore(path)) as store:
        store.commit([], replace(store.load(), priors={"bad": LEARNT, "good": LEARNT}, now=1.0))
        [job] = submit(store, spec("kept"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage)
    with closing(SqliteStore(path)) as store:
        assert store.load().priors == {"good": LEARNT}
        assert store.load().jobs == {job.id: job}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    caplog.clear()
    with closing(SqliteStore(path)) as store:
        assert store.load().priors == {"good": LEARNT}
    assert not caplog.records, "said once"


def test_a_commit_without_news_does_not_touch_the_disk(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        submit(store, spec())
        before = store._writer.total_changes
        store.commit([], store.load())
        assert store._writer.total_changes == before


def test_an_earlier_writer_can_no_longer_write(path: str) -> None:
    with closing(SqliteStore(path)) as old, closing(SqliteStore(path)) as new:
        submit(new, spec("new"))
        for _ in range(2):
            with pytest.raises(StoreFailed, match="another daemon"):
                submit(old, spec("old"))
        submit(new, spec("newer"))
    with closing(SqliteStore(path)) as store:
        assert [job.name for job in store.load().jobs.values()] == ["new", "newer"]


def test_ids_of_a_lost_database_are_not_reused(path: str) -> None:
    with closing(SqliteStore(path, first_id=43)) as store:
        assert submit(store, spec())[0].id == 43
    with closing(SqliteStore(path, first_id=50)) as store:  # such as a backup in its place
        assert submit(store, spec())[0].id == 50
    with closing(SqliteStore(path, first_id=50)) as store:
        assert submit(store, spec())[0].id == 51


def test_a_newer_database_is_refused_with_a_sentence_and_left_alone(path: str) -> None:
    SqliteStore(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO migrations VALUES (99, 'm099_future')")
    before = Path(path).read_bytes()
    with pytest.raises(Refused, match="newer gpq") as refusal:
        SqliteStore(path)
    assert refusal.value.hint
    assert Path(path).read_bytes() == before


def test_a_database_of_another_program_is_refused(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE theirs (a)")
    with pytest.raises(Refused, match="not one of gpq's databases"):
        SqliteStore(path)


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0 and then nothing", b"\0" * 8192])
def test_a_file_that_is_not_a_database_is_refused_and_kept(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_bytes(content)
    with pytest.raises(Refused, match="damaged") as refusal:
        SqliteStore(path)
    assert path in refusal.value.message
    assert "backup" in refusal.value.hint
    assert Path(path).read_bytes() == content


def test_a_missing_database_with_an_existing_log_is_refused(path: str) -> None:
    store = SqliteStore(path)
    submit(store, spec())
    wal = Path(path + "-wal").read_bytes()
    store.close()
    os.unlink(path)
    Path(path + "-wal").write_bytes(wal)
    with pytest.raises(Refused, match="it is missing"):
        SqliteStore(path)


@pytest.mark.row("9")
def test_flipped_bytes_are_refused_or_harmless_and_never_trusted(path: str, figures: Figures) -> None:
    with closing(SqliteStore(path)) as store:
        jobs = submit(store, *[spec(f"job-{number}") for number in range(40)])
        ended = [end(store, job, at=float(job.id)) for job in jobs[:20]]
        journal = store.events()
    sound = Path(path).read_bytes()
    dice = random.Random(7)
    refused = resets = 0
    for _ in range(200):
        where, bit = dice.randrange(len(sound)), 1 << dice.randrange(8)
        Path(path).write_bytes(sound[:where] + bytes([sound[where] ^ bit]) + sound[where + 1 :])
        try:
            with closing(SqliteStore(path)) as store:
                found = store.load().jobs
                resets += len(found) < len(jobs[20:])
                assert all(found.get(job.id) == job for job in jobs[20:]), f"byte {where}"
                assert all(one in ended for one in store.history()), f"byte {where}"
                assert all(one in journal for one in store.events()), f"byte {where}"
        except GpqError as error:
            refused += "\n" not in error.message
        finally:
            for left in (path + "-wal", path + "-shm"):
                Path(left).unlink(missing_ok=True)
    assert refused > 50, "most flips hit rows, and not the free space of pages"
    figures.exactly("silent resets of a database with a flipped bit, of 200", resets, 0)


def test_invalid_text_is_damage_and_the_error_does_not_show_the_row(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        submit(store, spec("secret").having(env=(("TOKEN", "canary"),)))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE jobs SET body = CAST(CAST(body AS BLOB) || X'ff' AS TEXT)")
    with pytest.raises(Refused, match="damaged") as refusal:
        SqliteStore(path)
    assert "canary" not in str(refusal.value)


def test_a_backup_is_a_whole_database(path: str, tmp_path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        [job] = submit(store, spec("kept"))
        store.backup()
        submit(store, spec("later"))
        store.backup()
    os.rename(path + ".backup", tmp_path / "restored.db")
    with closing(SqliteStore(str(tmp_path / "restored.db"))) as store:
        assert store.load().jobs[job.id] == job
        assert len(store.load().jobs) == 2


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        ("UPDATE jobs SET body = substr(body, 1, length(body) - 6) WHERE ended_at IS NOT NULL", "job 1 has"),
        ("UPDATE dictionaries SET body = substr(body, 1, length(body) - 9)", "a row cannot be read"),
        ("UPDATE jobs SET name = CAST(x'ff' AS TEXT)", "UTF-8"),
        ("UPDATE events SET body = substr(body, 1, length(body) - 6)", "an event has"),
        ("UPDATE meta SET value = 'x' WHERE key = 'next_id'", "table meta"),
    ],
)
def test_a_copy_of_damaged_rows_does_not_replace_the_last_backup(path: str, damage: str, part: str) -> None:
    with closing(SqliteStore(path)) as store:
        end(store, submit(store, spec("lost"))[0], at=1.0)
        store.backup()
        sound = Path(path + ".backup").read_bytes()
        with closing(sqlite3.connect(path)) as other, other:
            assert other.execute(damage).rowcount
        with pytest.raises(Refused, match="damaged") as refusal:
            store.backup()
    assert part in refusal.value.message
    assert "`gpq daemon stop && cd " in refusal.value.hint
    assert Path(path + ".backup").read_bytes() == sound
    assert not os.path.exists(path + ".backup.new")


def test_a_migration_that_fails_leaves_no_trace(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def m999_breaks(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (a)")
        raise RuntimeError("power cut")

    with closing(SqliteStore(path)) as store:
        submit(store, spec("kept"))
    monkeypatch.setattr("gpq.store.opening.MIGRATIONS", (*MIGRATIONS, m999_breaks))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with pytest.raises(RuntimeError):
            migrate(connection, upto=len(MIGRATIONS) + 1)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert "half" not in tables
    with closing(SqliteStore(path)) as store:
        assert len(store.load().jobs) == 1


@pytest.mark.parametrize("database", sorted((ROOT / "tests" / "fixtures").glob("*.db")), ids=lambda path: path.stem)
def test_a_database_of_every_release_opens(database: Path, path: str) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_bytes(database.read_bytes())
    with closing(SqliteStore(path)) as store:
        assert [job.name for job in store.load().jobs.values()] == ["waits", "runs"]
        assert [job.name for job in store.history()] == ["failed", "done"]
        assert len(store.events()) >= 8
        assert store.load().priors == {}
        store.commit([], replace(store.load(), priors={"learnt": LEARNT}))
        assert submit(store, spec("new"))[0].id == 5


def test_there_is_a_database_of_this_release() -> None:
    assert list((ROOT / "tests" / "fixtures").glob("*.db"))


# -- the file system ---------------------------------------------------------------------------------------------------

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 22 0:30 / /home rw shared:1 - nfs4 server:/home rw,vers=4.2
32 31 0:31 / /home/ada/My\\040Disk rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/home/ada", "nfs4"),
        ("/homes", "ext4"),
        ("/home/ada/My Disk/x", "xfs"),
        ("/home", "nfs4"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount(tmp_path: Path, folder: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    assert disk.mount_of(folder, str(tmp_path / "mounts"))[1] == kind


@pytest.mark.parametrize(
    ("kind", "remote"),
    [
        *((kind, True) for kind in ("nfs4", "fuse.sshfs", "fuse", "fuse.rclone", "ceph")),
        *((kind, False) for kind in ("ext4", "fuseblk", "fuse.fuse-overlayfs", "fuse.gocryptfs")),
    ],
)
def test_a_fuse_file_system_is_remote_unless_known_to_be_on_a_disk(kind: str, remote: bool) -> None:
    assert disk.is_remote(kind) is remote


def test_a_network_file_system_is_refused_in_one_line(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path} rw - nfs4 server:/x rw\n")
    with pytest.raises(Refused, match="network file system") as refusal:
        disk.refuse_network(str(tmp_path), str(mounts))
    assert "GPQ_HOME" in refusal.value.hint


@contextmanager
def mounted(folder: Path, size: str, flags: str = "") -> Iterator[Path]:
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755{flags}", "gpq-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system needs root")


def fill(folder: Path) -> None:
    """Until no page is left."""
    with (folder / "filler").open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 4096)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


# -- crashes -----------------------------------------------------------------------------------------------------------

WRITER = """
import sys
from tests.contract.test_stores import submit, spec
from gpq.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
while True:
    print(submit(store, spec("acked"))[0].id, flush=True)
"""


STRACE = "/usr/bin/strace"


@pytest.mark.skipif(not os.path.exists(STRACE), reason="failing syncs are injected by strace, which is not installed")
def test_a_failed_sync_is_never_acknowledged_and_ends_the_writer(path: str) -> None:
    SqliteStore(path).close()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}"}
    argv = [STRACE, "-f", "-o", os.devnull, "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync:error=EIO:when=4+"]
    done = subprocess.run(
        [*argv, sys.executable, "-c", WRITER, path], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode != 0
    assert "StoreFailed" in done.stderr
    with closing(SqliteStore(path)) as store:
        assert {int(line) for line in done.stdout.split()} <= set(store.load().jobs)


@pytest.mark.skipif(not os.path.exists(STRACE), reason="kills at a sync are injected by strace, which is not installed")
@pytest.mark.parametrize("sync", range(1, 13))
def test_a_kill_at_any_sync_keeps_exactly_what_was_acknowledged(path: str, sync: int) -> None:
    """The first syncs belong to the creation, the later ones to commits."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}"}
    inject = f"inject=fdatasync,fsync:signal=KILL:when={sync}"
    argv = [STRACE, "-f", "-o", os.devnull, "-e", "trace=fdatasync,fsync", "-e", inject]
    done = subprocess.run(
        [*argv, sys.executable, "-c", WRITER, path], capture_output=True, env=environment, timeout=120
    )
    acknowledged = {int(line) for line in done.stdout.split()}
    with closing(SqliteStore(path)) as store:
        found = set(store.load().jobs)
        assert acknowledged <= found
        assert len(found - acknowledged) <= 1  # the current one may be durable
        assert submit(store, spec())[0].id == max(found, default=0) + 1


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


def test_a_commit_waits_for_another_process_that_locks_the_database(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with ThreadPoolExecutor(1) as pool:
            commit = pool.submit(submit, store, spec("waited"))
            with pytest.raises(NotYet):
                commit.result(timeout=0.5)
            holder.communicate("go on\n", timeout=60)
            [job] = commit.result(timeout=60)
        assert store.load().jobs == {job.id: job}


def test_shares_survive_a_reopen_and_damaged_ones_are_counted_again(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {JobId(1): MeanShare(120.0, 60.0)}
    with closing(SqliteStore(path)) as store:
        submit(store, spec())
        store.commit([], replace(store.load(), means_kept=kept))
    with closing(SqliteStore(path)) as store:
        assert store.load().means == kept
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = 'x' WHERE key = 'means'")
    with closing(SqliteStore(path)) as store:
        assert store.load().means == {}
    assert "counts them again" in caplog.text


def test_standings_survive_a_reopen_with_their_time(path: str) -> None:
    standings = {"ana": Standing(0.1 + 0.2, 0.0), "bö": Standing(0.0, 600.0)}
    for at in (5.0, 1e9 / 3):  # the same standings count from another round on
        with closing(SqliteStore(path)) as store:
            store.commit([], replace(store.load(), standings=standings, standings_at=at))
        with closing(SqliteStore(path)) as store:
            assert (store.load().standings, store.load().standings_at) == (standings, at)
            before = store._writer.total_changes
            store.commit([], store.load())
            assert store._writer.total_changes == before


@pytest.mark.parametrize("text", ["x", "[0]", '[1,{"ana":[-1,0]}]', '[1,{"ana":["9",0]}]', '[1,{"ana":[1e999,0]}]'])
def test_damaged_standings_are_told_and_count_as_none(path: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(SqliteStore(path)) as store:
        [job] = submit(store, spec())
        store.commit([], replace(store.load(), standings={"ana": Standing(9.0, 0.0)}, standings_at=5.0))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'standings'", (text,))
    with closing(SqliteStore(path)) as store:
        assert (store.load().standings, store.load().standings_at) == ({}, 0.0)
        assert store.load().jobs == {job.id: job}
    assert "begins with nothing" in caplog.text


def test_a_damaged_row_gives_no_record(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        [job] = submit(store, spec("one"))
        end(store, job, at=1.0)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE jobs SET body = substr(body, 1, length(body) - 6)")
            shorter = "UPDATE events SET body = substr(body, 1, length(body) - 6) WHERE kind = 'Succeeded'"
            connection.execute(shorter)
        with pytest.raises(GpqError, match="checksum"):
            store.records(Wanted())
        with pytest.raises(GpqError, match="checksum"):
            list(store.journal([Succeeded]))
