"""A job with a lease ends without contact, and only then. Stale orders and stale daemons are refused."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpq_agent import wire
from gpq_agent.node.host import procs
from gpq_agent.node.shim import leases

from tests.agent.node.harness import NodeAgent, interpreters, survivors, wait_until
from tests.agent.node.test_survival import kill_shim
from tests.support.figures import Figures

STORE = "a1b2"
LEASE, MARGIN = 10.0, 1.8  # seconds. A busy machine may need some of them to ask


def leased(node: NodeAgent, job: int, argv: list[str], *, lease: float = LEASE, **more: Any) -> str:
    """An attempt whose lease starts now."""
    hello = node.ask("hello", store=STORE, epoch=1)
    fields = {"stamp": hello["stamp"], "boot_id": hello["boot_id"], "store": STORE}
    return node.start(job, argv, **{**fields, "lease": lease, "lease_margin": MARGIN, **more})


def acknowledge(node: NodeAgent, heard: float | None = None) -> float:
    """One watch. Returns the stamp of its answer."""
    return float(node.ask("watch", offsets={}, wait=0, seen=None, heard=heard)["stamp"])


def test_a_job_without_contact_ends_at_its_lease_and_says_so(node: NodeAgent, figures: Figures) -> None:
    begun = leases.boottime()
    key = leased(node, 1, ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"])
    node.close()  # the daemon is gone, and no other comes
    record = wait_until(lambda: wire.read_json(str(node.folder(key) / wire.EXIT)), "its end")
    took = leases.boottime() - begun
    assert took >= LEASE
    figures.at_most(f"a job of whom nobody hears ends, with a lease of {LEASE:g} s", took, LEASE + 10.0)
    assert record["fenced"]
    assert f"ended by its lease: no contact for {LEASE:g} s" in record["note"]
    assert (record["code"], record["signal"]) == (None, signal.SIGKILL)
    assert survivors(node.spool, key) == []


def test_an_acknowledged_report_renews_and_an_unheard_answer_does_not(node: NodeAgent, figures: Figures) -> None:
    key = leased(node, 1, ["sleep", "600"])
    stamp = acknowledge(node)
    until = leases.boottime() + LEASE + 2.0
    while leases.boottime() < until:
        stamp = acknowledge(node, stamp)
    assert node.attempts()[key]["state"] == "running"
    last = stamp

    def over() -> dict[str, Any]:
        acknowledge(node)  # questions, but no acknowledgement
        found = node.attempts()[key]
        return found if found["state"] != "running" else {}

    info = wait_until(over, "it ends")
    took = leases.boottime() - last
    assert took >= LEASE - 0.1 - LEASE / 20
    figures.at_most(f"it ends after its last report, with a lease of {LEASE:g} s", took, LEASE + 10.0)
    assert info["exit"]["fenced"]
    assert info["lease"] == LEASE


def test_a_stamp_that_the_agent_never_made_renews_nothing(node: NodeAgent) -> None:
    key = leased(node, 1, ["sleep", "600"])
    acknowledge(node, leases.boottime() + 1e6)
    assert node.ended(key)["fenced"]


def test_without_a_lease_a_job_outlives_its_daemon_and_one_that_ended_before_is_not_fenced(
    node: NodeAgent, agent: Callable[..., NodeAgent]
) -> None:
    free = node.start(1, ["sleep", "600"])
    quick = leased(node, 2, ["sh", "-c", "exit 3"], devices=["slot-1"])
    key = leased(node, 3, ["sleep", "600"], devices=["slot-2"])
    node.close()
    wait_until(lambda: (node.folder(key) / wire.EXIT).exists(), "the leased one ends")
    again = agent("--slots", "4")
    assert again.attempts()[free]["state"] == "running"
    record = again.ended(quick)
    assert (record["code"], record["fenced"]) == (3, False)


def test_a_lease_outlives_its_shim(node: NodeAgent) -> None:
    key = leased(node, 1, ["sleep", "600"], lease=10.0)
    node.wait_for(key, "running")
    kill_shim(node, key)
    record = node.ended(key)
    assert record["fenced"]
    assert survivors(node.spool, key) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lease_ends_even_if_shim_and_agent_do_nothing(node: NodeAgent, figures: Figures, number: int) -> None:
    begun = leases.boottime()
    key = leased(node, 1, ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
    node.wait_for(key, "running")
    shim = wire.read_json(str(node.folder(key) / wire.SHIM))
    assert shim is not None
    os.kill(shim["pid"], number)
    node.close()
    record = wait_until(lambda: wire.read_json(str(node.folder(key) / wire.EXIT)), "its end")
    figures.at_most("the end of a lease by the second guard", record["stamp"] - begun - LEASE, MARGIN)
    assert record["fenced"]
    assert survivors(node.spool, key) == []
    assert not procs.lives(shim, procs.boot_id())


def test_a_lease_overtakes_a_checkpoint_that_takes_long(node: NodeAgent) -> None:
    key = leased(node, 1, ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], level="adaptive")
    node.ask("stop", attempt=key, mode="checkpoint", grace=600.0)
    assert node.ended(key)["fenced"]


def test_a_lease_is_renewed_on_a_full_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpq_agent.node.spool.spool import Spool

    place = Spool(str(tmp_path / "spool"))
    reign = leases.DaemonEpoch(place, procs.boot_id())
    reign.greet(STORE, 1)
    reign.ready(STORE)

    def full(*_: object) -> None:
        raise AssertionError("no file may be made for a renewal")

    monkeypatch.setattr(wire, "write_json", full)
    monkeypatch.setattr(os, "open", full)
    stamp = reign.stamp()
    reign.heard(stamp, 60.0)
    monkeypatch.undo()
    path = tmp_path / "spool" / f"lease.{STORE}.json"
    assert json.loads(path.read_text())["stamp"] == stamp
    assert path.stat().st_size == leases.LEASE_BYTES


def test_a_lease_uses_the_clock_of_the_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slept for an hour had no contact for an hour. Setting the wall clock changes nothing."""
    from gpq_agent.node.spool.spool import Spool

    now = [1000.0]
    monkeypatch.setattr(leases, "boottime", lambda: now[0])
    order = wire.StartOrder(
        1, 1, ["x"], "/", {}, ["slot-0"], "black-box", stamp=990.0, boot_id="b", store=STORE, lease=60.0,
        lease_margin=15.0,
    )  # fmt: skip
    lease = leases.Lease(Spool(str(tmp_path / "spool")), order, "b")
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert not lease.is_over()
    now[0] += 49.0
    assert not lease.is_over()
    now[0] += 2.0
    assert lease.is_over()
    assert lease.until_kill() == 4.0
    now[0] += 3600.0  # it slept, so the daemon gave it up and started it elsewhere
    assert lease.is_over()
    assert lease.until_kill() == 0.0


def test_a_start_order_expires_by_the_clock_of_the_boot_and_not_by_the_wall_clock(node: NodeAgent) -> None:
    hello = node.ask("hello")
    boot, stamp = hello["boot_id"], hello["stamp"]
    fresh = {"stamp": stamp, "boot_id": boot, "expires_at": 1.0}  # of 1970, because the wall clock does not count
    assert node.start(1, ["true"], **fresh)
    for wrong in ({"stamp": stamp - 21.0}, {"boot_id": "another"}, {"stamp": stamp + 1e6}):
        told = node.try_ask("start", order=node.order(2, ["true"], devices=["slot-1"], **{**fresh, **wrong}))
        assert (told["ok"], told["kind"]) == (False, "expired"), told


def test_an_older_daemon_is_refused_and_a_newer_one_accepted_even_after_the_agent_was_killed(
    agent: Callable[..., NodeAgent],
) -> None:
    old, new = agent("--slots", "2"), agent("--slots", "2")
    old.ask("hello", store=STORE, epoch=6)
    key = old.start(1, ["sleep", "600"])
    old.ask("watch", offsets={}, wait=0, seen=None)
    new.ask("hello", store=STORE, epoch=7)
    refused = [
        old.try_ask("start", order=old.order(2, ["true"], devices=["slot-1"])),
        old.try_ask("stop", attempt=key, mode="kill", grace=0),
        old.try_ask("watch", offsets={}, wait=0, seen=None),
        old.try_ask("forget", attempt=key),
        old.try_ask("hello", store=STORE, epoch=6),
    ]
    assert {told["kind"] for told in refused} == {"stale"}
    assert old.ask("ping")["ok"]
    new.process.kill()
    third = agent("--slots", "2")
    assert third.try_ask("hello", store=STORE, epoch=6)["kind"] == "stale"
    assert third.ask("hello", store="another", epoch=1)["attempts"][0]["state"] == "running"
    assert third.ask("hello", store=STORE, epoch=8)["ok"]
    third.ask("stop", attempt=key, mode="kill", grace=0)
    third.ended(key)


def test_a_pending_watch_is_refused_once_a_newer_daemon_takes_over(agent: Callable[..., NodeAgent]) -> None:
    old, new = agent("--slots", "1"), agent("--slots", "1")
    old.ask("hello", store=STORE, epoch=1)
    seen = old.ask("watch", offsets={}, wait=0, seen=None)["digest"]
    waiting = old.send("watch", offsets={}, wait=600, seen=seen)
    new.ask("hello", store=STORE, epoch=2)
    new.start(1, ["true"])  # which is news
    assert old.reply(waiting)["kind"] == "stale"


@pytest.mark.parametrize("wrong", [{"lease": -1.0}, {"lease": 60.0}, {"lease": 60.0, "stamp": 1.0, "store": "../x"}])
def test_an_invalid_lease_is_refused(node: NodeAgent, wrong: dict[str, Any]) -> None:
    told = node.try_ask("start", order=node.order(1, ["true"], **wrong))
    assert "in the order" in told["error"], told


def test_a_lease_needs_a_daemon_that_has_said_hello(node: NodeAgent) -> None:
    hello = node.ask("hello")
    order = node.order(
        1, ["true"], stamp=hello["stamp"], boot_id=hello["boot_id"], store=STORE, lease=60.0, lease_margin=15.0
    )
    assert "has said hello" in node.try_ask("start", order=order)["error"]


@pytest.mark.parametrize("python", interpreters(), ids=os.path.basename)
def test_leases_hold_on_every_python(agent: Callable[..., NodeAgent], python: str) -> None:
    node = agent("--slots", "1", python=python)
    key = leased(node, 1, ["sleep", "600"])
    assert node.ended(key)["fenced"]
