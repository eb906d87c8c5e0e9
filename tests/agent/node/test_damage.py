"""Files that others write, damaged in every way that a generator knows: gpq sets them aside, reports them, and
everything else continues."""

from __future__ import annotations

import math
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpq_agent import records, wire
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import leases
from gpq_agent.node.spool import shapes
from gpq_agent.node.spool.spool import Spool

from tests.agent.harm import HARM
from tests.agent.node.harness import NodeAgent, survivors, wait_until
from tests.agent.node.shim.test_leases import STORE
from tests.support.figures import Figures


def identity(path: Path) -> dict[str, Any]:
    content = records.read_object(str(path))
    assert content is not None
    return records.check(shapes.Identity, content, str(path))


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_file_is_named(tmp_path: Path, harm: str) -> None:
    path = tmp_path / wire.SHIM
    HARM[harm](path)
    with pytest.raises(records.Damaged) as caught:
        identity(path)
    assert caught.value.path == str(path)
    assert caught.value.why
    place = Path(records.set_aside(str(path)))
    assert (os.path.lexists(path), os.path.lexists(place)) == (False, True)


def test_a_complete_file_is_accepted_even_with_unknown_fields(tmp_path: Path) -> None:
    path = tmp_path / wire.SHIM
    wire.write_json(str(path), {"pid": 1, "start_time": 2, "boot_id": "b", "newer": [1]})
    assert identity(path)["newer"] == [1]
    assert records.read_object(str(tmp_path / "none")) is None


def neighbour_runs(node: NodeAgent, figures: Figures) -> None:
    began = time.monotonic()
    neighbour = node.start(1000, ["true"])
    figures.at_most("a neighbour's job starts", time.monotonic() - began, 5.0)
    assert node.ended(neighbour)["code"] == 0


# Of an attempt that has ended, and of one that lives.
SLOTS = str(len(HARM) + 1)
ENDED = (wire.EXIT, wire.STARTED, wire.SHIM, wire.ORDER, wire.STOP, wire.CONTROL, shapes.NOTE, wire.REPORT, wire.LOG)


@pytest.mark.parametrize("name", ENDED)
def test_a_damaged_file_of_one_attempt_affects_no_other(
    agent: Callable[..., NodeAgent], figures: Figures, name: str
) -> None:
    """Every kind of damage to one file, each in its own attempt, followed by a new agent."""
    node = agent("--slots", SLOTS)
    keys = {harm: node.start(number, ["true"], devices=[f"slot-{number}"]) for number, harm in enumerate(HARM, start=1)}
    for key in keys.values():
        node.ended(key)
    node.close()
    for harm, key in keys.items():
        path = Path(node.spool, "attempts", key, name)
        if os.path.lexists(path):
            path.unlink()
        HARM[harm](path)
    node = agent("--slots", SLOTS)
    infos = node.attempts()
    assert set(infos) == set(keys.values()), "none is taken for one that never was"
    assert {one["state"] for one in infos.values()} <= {"exited", "lost"}
    neighbour_runs(node, figures)


LIVING = (
    wire.SHIM,
    wire.STARTED,
    wire.ORDER,
    wire.STOP,
    wire.CONTROL,
    shapes.NOTE,
    wire.REPORT,
    wire.LOG,
    wire.RANK + "0",
)


@pytest.mark.parametrize("name", LIVING)
@pytest.mark.parametrize("again", [False, True], ids=["the same agent", "a new agent"])
def test_a_job_whose_file_was_damaged_can_be_cancelled(
    agent: Callable[..., NodeAgent], figures: Figures, name: str, again: bool
) -> None:
    node = agent("--slots", SLOTS)
    keys = {
        harm: node.start(number, ["sleep", "600"], devices=[f"slot-{number}"])
        for number, harm in enumerate(HARM, start=1)
    }
    for key in keys.values():
        node.wait_for(key, "running")
    for harm, key in keys.items():
        path = Path(node.spool, "attempts", key, name)
        if os.path.lexists(path):
            path.unlink()
        HARM[harm](path)
    if again:
        node.close()
        node = agent("--slots", SLOTS)
    infos = node.attempts()
    assert set(infos) == set(keys.values())
    assert {one["state"] for one in infos.values()} <= {"starting", "running", "orphan"}, "they live"
    neighbour_runs(node, figures)
    began = time.monotonic()
    for key in keys.values():
        node.ask("stop", attempt=key, mode="kill", grace=0.0)
    for key in keys.values():
        node.wait_for(key, "exited", "lost")
    figures.at_most(f"{len(keys)} jobs are cancelled", time.monotonic() - began, 10.0)
    assert not [key for key in keys.values() if survivors(node.spool, key)]


def test_a_number_that_nothing_can_have_is_damage(tmp_path: Path) -> None:
    end = wire.ExitRecord(1, 1, 0, None, False, None, 1.0, 2.0)._asdict()
    assert records.check(wire.ExitRecord, end, "exit.json") == end
    wrong = [
        *({"code": code} for code in (1 << 60, 256, -1, True, "0", "\u00b2", 1e308, math.inf)),
        *({"stamp": stamp} for stamp in (1e200, -1.0, math.nan, math.inf, "1", False)),
        *({"ended_at": moment} for moment in (9e15, -1.0, None)),
        *({"signal": number} for number in (65, -9, 1 << 63)),
    ]
    for lie in wrong:
        with pytest.raises(records.Damaged, match=next(iter(lie))):
            records.check(wire.ExitRecord, {**end, **lie}, "exit.json")


@pytest.mark.parametrize("lie", [{"code": 1 << 60}, {"stamp": 1e200}, {"code": 0, "note": "all is well"}])
def test_what_a_job_writes_as_its_own_end_counts_for_nothing(
    agent: Callable[..., NodeAgent], figures: Figures, lie: dict[str, Any]
) -> None:
    node = agent("--slots", "2")
    key = node.start(1, ["sh", "-c", "while ! test -e go; do sleep 0.01; done; exit 3"], devices=["slot-1"])
    node.wait_for(key, "running")
    end = wire.ExitRecord(1, 1, 0, None, False, None, 1.0, 2.0)._asdict()
    wire.write_json(str(node.folder(key) / wire.EXIT), {**end, **lie})
    info = node.attempts()[key]
    assert (info["state"], info["exit"], info["damage"]) == ("running", None, [])
    neighbour_runs(node, figures)
    (node.spool.parent / "go").touch()
    assert node.ended(key)["code"] == 3


@pytest.mark.parametrize("seq", [1 << 53, (1 << 53) - 1, 1 << 60])
def test_a_job_cannot_number_its_stop_so_high_that_no_other_counts(
    agent: Callable[..., NodeAgent], figures: Figures, seq: int
) -> None:
    node = agent("--slots", "1")
    script = "trap : TERM; echo ready; while :; do sleep 0.01; done"
    key = node.start(1, ["sh", "-c", script], level="signal", signal="TERM")
    wait_until(lambda: b"ready" in node.log(key), "its trap")
    shim = wire.read_json(str(node.folder(key) / wire.SHIM))
    assert shim is not None
    wire.write_json(str(node.folder(key) / wire.STOP), {"mode": "signal", "grace": 1e9, "seq": seq})
    os.kill(shim["pid"], signal.SIGUSR1)
    began = time.monotonic()
    node.ask("stop", attempt=key, mode="kill", grace=0.0)
    node.wait_for(key, "exited", "lost")
    figures.at_most("a job is cancelled", time.monotonic() - began, 10.0)


@pytest.mark.parametrize("shim", ["lives", "stands still", "is gone"])
@pytest.mark.parametrize("again", [False, True], ids=["the same agent", "a new agent"])
def test_a_job_that_removed_its_folder_can_be_cancelled(
    agent: Callable[..., NodeAgent], shim: str, again: bool
) -> None:
    node = agent("--slots", "2")
    key = node.start(1, ["sleep", "600"])
    wait_until(lambda: survivors(node.spool, key), "its program")
    record = wire.read_json(str(node.folder(key) / wire.SHIM))
    assert record is not None
    if shim != "lives":
        os.kill(record["pid"], signal.SIGSTOP if shim == "stands still" else signal.SIGKILL)
    shutil.rmtree(node.folder(key))
    if again:
        node.close()
        node = agent("--slots", "2")
    info = node.attempts()[key]
    assert (info["state"], "was removed" in str(info["damage"])) == ("orphan", True)
    node.ask("stop", attempt=key, mode="kill", grace=0.0)
    node.wait_for(key, "exited", "lost")
    assert survivors(node.spool, key) == []


STATEMENTS = (
    wire.UNLAUNCHED,
    wire.EXCUSED,
    wire.FIRST_ERROR,
    wire.DEPARTED,
    wire.STOPPED,
    wire.FINISHED,
    wire.REPORT,
    wire.RANK + "0",
    wire.CONTROL,
)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_job_that_leaves_nonsense_for_gpq_still_ends(
    agent: Callable[..., NodeAgent], figures: Figures, tmp_path: Path, name: str
) -> None:
    node = agent("--slots", SLOTS)
    keys = []
    for number, harm in enumerate(HARM.values(), start=1):
        place = tmp_path / f"harm-{number}"
        harm(place)
        command = f'rm -f "$GPQ_RUN_DIR/{name}"; cp -a --sparse=always {place} "$GPQ_RUN_DIR/{name}"; exit 3'
        keys.append(node.start(number, ["sh", "-c", command], devices=[f"slot-{number}"]))
    for key in keys:
        node.ended(key)
    neighbour_runs(node, figures)


@pytest.mark.parametrize("name", [f"epoch.{STORE}.json", f"epoch.{STORE}.json.copy", f"lease.{STORE}.json"])
def test_leases_survive_their_damaged_files(agent: Callable[..., NodeAgent], name: str) -> None:
    node = agent("--slots", "2")

    def start(job: int, argv: list[str]) -> str:
        hello = node.ask("hello", store=STORE, epoch=5)
        lease = {"store": STORE, "lease": 600.0, "lease_margin": 60.0, "boot_id": hello["boot_id"]}
        return node.start(job, argv, devices=[f"slot-{int(job > 1)}"], stamp=hello["stamp"], **lease)

    key = start(1, ["sleep", "600"])
    node.wait_for(key, "running")
    path, older = node.spool / name, agent("--slots", "2")
    for number, harm in enumerate(HARM.values(), start=2):
        path.unlink()
        harm(path)
        assert older.try_ask("hello", store=STORE, epoch=4)["kind"] == "stale", "what a newer daemon has taken over"
        older.ask("hello", store=STORE, epoch=5)
        assert node.ended(start(number, ["true"]))["code"] == 0
        assert path.is_file()
        assert 0 < path.stat().st_size <= leases.LEASE_BYTES
        for old in node.spool.glob(name + ".damaged*"):
            os.rename(old, node.spool / f"old-{len(os.listdir(node.spool))}")
    assert node.attempts()[key]["state"] == "running"
    node.ask("stop", attempt=key, mode="kill", grace=0.0)
    node.wait_for(key, "exited")


@pytest.mark.parametrize("name", ["spool.json", "spool.json.copy", "checkpoints/.storage.json"])
def test_a_damaged_file_of_the_spool_loses_no_attempt(agent: Callable[..., NodeAgent], name: str) -> None:
    """Every kind of damage, one after the other, each for a new agent."""
    node = agent("--slots", "2")
    key = node.start(1, ["sleep", "600"])
    node.wait_for(key, "running")
    spool = node.greeting["spool"]
    for harm in HARM.values():
        node.close()
        path = node.spool / name
        path.unlink()
        harm(path)
        node = agent("--slots", "2")
        assert node.greeting["spool"] == spool
        assert [Path(name).name in line for line in node.greeting["damage"]] == [True]
        assert node.attempts()[key]["state"] == "running"
        for old in path.parent.glob(path.name + ".damaged*"):
            os.rename(old, path.parent / f"old-{len(os.listdir(path.parent))}")
    node.ask("stop", attempt=key, mode="kill", grace=0.0)
    node.wait_for(key, "exited")


def test_without_its_own_file_and_the_copy_a_spool_with_attempts_says_what_to_do(tmp_path: Path) -> None:
    known = Spool(str(tmp_path)).id
    os.mkdir(tmp_path / "attempts" / "1.1")
    (tmp_path / "spool.json").unlink()
    assert Spool(str(tmp_path)).id == known
    for name in ("spool.json", "spool.json.copy"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(SpoolError, match=r"spool\.json was damaged \(it is empty\).*gpq cannot tell which attempts"):
        Spool(str(tmp_path))
    (tmp_path / "attempts" / "1.1").rmdir()
    (tmp_path / "spool.json").write_bytes(b"")
    assert Spool(str(tmp_path)).id != known
