"""Upgrades while jobs run. gpq adopts what the earlier version started and talks to its servers. A downgrade is refused
without harm if the database has a newer version.

`tests/fixtures/gpq-before-leases.tar.xz` is gpq before leases, epochs and ssh. Its database is two versions older than
today's, and its node agent puts no stamp on reports. (It holds the unchanged daemon and node agent with the fifo
policy.)
"""

from __future__ import annotations

import json
import socket
import sqlite3
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpq.rpc.job_answers import CancelResult
from gpq.rpc.requests import Cancel
from gpq.store.opening import MIGRATIONS
from tests.e2e.harness import ROOT, Daemon
from tests.support.figures import Figures
from tests.support.waiting import PATIENCE, wait_until

GATED = "echo $GPQ_ATTEMPT >> ran-{0}; while [ ! -e go ]; do sleep 0.05; done; exit {1}"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The earlier version's sources."""
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(ROOT / "tests" / "fixtures" / "gpq-before-leases.tar.xz") as archive:
        # Early releases of 3.10 and 3.11 have no filter argument, and later ones complain without it.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    assert not (folder / "gpq" / "connectors" / "ssh.py").exists()
    return folder


class Mixed(Daemon):
    """Talks to a daemon of any version. Today's requests may have fields that an earlier daemon does not know."""

    def plainly(self, op: str, **fields: Any) -> Any:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as line:
            line.settimeout(PATIENCE)
            line.connect(str(self.home / "gpq.sock"))
            line.sendall(json.dumps({"v": 1, "op": op, **fields}).encode() + b"\n")
            answer = json.loads(line.makefile("rb").readline())
        assert answer["ok"], answer
        return answer["result"]

    def put(self, command: str, **more: object) -> int:
        spec = {"argv": ["sh", "-c", command], "cwd": str(self.work), "level": "black-box", "max_gpus": 1, **more}
        return int(self.plainly("submit", spec=spec)["id"])

    def told(self, *jobs: int) -> dict[int, tuple[str, int | None]]:
        rows = self.plainly("status", jobs=[str(job) for job in jobs])["jobs"]
        return {row["id"]: (row["state"], row["exit_status"]) for row in rows}

    def reach(self, job: int, state: str) -> None:
        wait_until(lambda: self.told(job)[job][0] == state, f"job {job} is {state}")

    def agents_of(self, source: Path) -> None:
        """From the next start on, the node agent comes from this version, whichever version the daemon is."""
        script = self.home / "python"
        script.write_text(f'#!/bin/sh\nPYTHONPATH={source}/agent exec {sys.executable} "$@"\n')
        script.chmod(0o700)
        self.config.write_text(f'policy = "fifo"\n[nodes.local]\nslots = 2\npython = "{script}"\n')

    def version(self) -> int:
        with closing(sqlite3.connect(self.home / "gpq.db")) as connection:
            return int(connection.execute("SELECT max(version) FROM migrations").fetchone()[0])


@pytest.fixture
def mixed(before: Path) -> Iterator[Mixed]:
    made = Mixed(slots=2)
    made.source = before
    with made:
        yield made


@pytest.mark.row("43")
def test_jobs_of_an_earlier_version_are_adopted_and_a_downgrade_is_refused_without_harm(
    mixed: Mixed, before: Path, figures: Figures
) -> None:
    ended = mixed.put("exit 3")
    mixed.reach(ended, "failed")
    stays, goes = mixed.put(GATED.format("a", 9)), mixed.put("trap '' TERM; while :; do sleep 0.1; done", grace=0.5)
    for job in (stays, goes):
        mixed.reach(job, "running")
    waits = mixed.put(GATED.format("b", 5))
    assert mixed.version() < len(MIGRATIONS)
    mixed.kill()

    mixed.source = ROOT
    mixed.start()
    assert mixed.version() == len(MIGRATIONS)
    assert mixed.told(ended, stays, goes, waits) == {
        ended: ("failed", 3),
        stays: ("running", None),
        goes: ("running", None),
        waits: ("pending", None),
    }
    assert mixed.call(Cancel([str(goes)], wait=PATIENCE), CancelResult).cancelled == [
        goes
    ]  # its shim is the earlier one
    mixed.reach(waits, "running")
    mixed.kill()

    mixed.source = before
    with pytest.raises(AssertionError, match="newer gpq"):
        mixed.start()

    mixed.source = ROOT
    mixed.start()
    (mixed.work / "go").touch()
    found = mixed.ended(stays, waits)
    wrong = {job: end for job, end in found.items() if end != ("failed", {stays: 9, waits: 5}[job])}
    figures.exactly("jobs lost or reported wrongly after an upgrade and a downgrade", wrong, {})
    runs = [(mixed.work / name).read_text() for name in ("ran-a", "ran-b")]
    figures.exactly("runs of each job that was running", runs, ["1\n", "1\n"])


@pytest.mark.row("43")
@pytest.mark.parametrize("old", ["agent", "daemon"])
def test_each_version_of_the_daemon_works_with_the_other_versions_agent(
    mixed: Mixed, before: Path, figures: Figures, old: str
) -> None:
    mixed.source, agents = (ROOT, before) if old == "agent" else (before, ROOT)
    mixed.kill()  # the earlier version may hang if it is asked to end right after its start
    mixed.agents_of(agents)
    mixed.start()
    good, killed = mixed.put("echo said; exit 4"), mixed.put("while :; do sleep 0.1; done", grace=0.5)
    mixed.reach(good, "failed")
    mixed.reach(killed, "running")
    chunk = mixed.plainly("logs", job=str(good), wait=5.0)
    assert chunk["data"] == "c2FpZAo="
    mixed.plainly("cancel", jobs=[str(killed)], wait=PATIENCE)
    if old == "agent":
        leased = mixed.put("true", requeue_on_lost=60.0)
        wait_until(
            lambda: "does not support leases" in str(mixed.plainly("why", job=str(leased))), "gpq says why it waits"
        )
    told = mixed.told(good, killed)
    wrong = [job for job, end in told.items() if end[0] != {good: "failed", killed: "cancelled"}[job]]
    figures.exactly(f"ends reported wrongly with the {old} of the earlier version", len(wrong), 0)
    assert told[good] == ("failed", 4)
