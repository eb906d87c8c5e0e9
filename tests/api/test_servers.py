"""Servers, the daemon and notification targets from Python, with a real daemon and real ssh."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import gpq as api
from gpq.client import daemon_control
from tests.cli.conftest import Gpq
from tests.e2e.harness import Daemon
from tests.support.sshd import Sshd
from tests.support.waiting import wait_until
from tests.support.webhook import webhook


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(slots=2) as daemon:
        yield daemon


@pytest.fixture
def asked(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """This process uses the daemon as a user's program would."""
    for name, value in daemon.environment().items():
        if name.startswith(("GPQ_", "PYTHONPATH")):
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(daemon.work)
    wait_until(lambda: [node.state for node in api.nodes().nodes] == ["up"], "the server is up")
    return daemon


def test_a_server_can_be_drained_and_used_again(asked: Daemon) -> None:
    first = api.drain("local", "new driver")
    assert (first.node, first.drained, first.changed, first.reason) == ("local", True, True, "new driver")
    assert not api.drain("local").changed
    assert api.nodes().nodes[0].drained
    assert api.undrain("local").changed
    assert not api.undrain("local").changed
    for call in (api.drain, api.undrain):
        with pytest.raises(api.errors.NotFound, match="nowhere"):
            call("nowhere")


def test_gpus_can_be_reserved_and_freed_again(asked: Daemon) -> None:
    held = api.reserve("local:0", user="ana", start=timedelta(hours=1), duration=timedelta(days=2))
    shown = held.reservation
    assert (shown.node, shown.indices, shown.user) == ("local", [0], "ana")
    assert 3500 < shown.begins_in_seconds <= 3600
    assert 49 * 3600 - 100 < shown.ends_in_seconds <= 49 * 3600
    assert [one.id for one in api.nodes().reservations] == [shown.id]
    with pytest.raises(api.errors.Refused):
        api.reserve("local", duration="2d")
    assert api.unreserve(held).reservation.id == shown.id
    second = api.reserve("local", until="tomorrow 23:00")
    assert api.unreserve(second.reservation.id).reservation.user == ""
    with pytest.raises(api.errors.NotFound):
        api.unreserve(second)
    for wrong in ({}, {"until": "+2h", "duration": "2h"}, {"duration": 0}, {"until": "someday"}, {"duration": "2"}):
        with pytest.raises(api.errors.UsageError):
            api.reserve("local", **wrong)  # type: ignore[arg-type]


def test_an_owner_can_take_a_server_and_give_it_back(asked: Daemon) -> None:
    try:
        mine = api.yield_node(duration=timedelta(hours=2))
        assert (mine.node, mine.seconds, mine.user != "") == ("local", 7200.0, True)
    finally:
        back = api.yield_node(end=True)
    assert (back.seconds, back.changed) == (None, True)
    with pytest.raises(api.errors.NotFound, match="nowhere"):
        api.yield_node("nowhere")
    with pytest.raises(api.errors.UsageError, match="--for"):
        api.yield_node(duration="soon")


def test_top_and_daemon_status_answer(asked: Daemon) -> None:
    job = api.submit(command=["true"], name="seen", hold=True)
    view = api.top()
    assert ([node.name for node in view.nodes], [row.id for row in view.jobs]) == (["local"], [job.id])
    assert api.top("name=other").jobs == []
    assert api.top(job).jobs[0].name == "seen"
    info = api.daemon_status()
    assert (info.policy, info.nodes, api.start_daemon()) == ("fifo", {"local": "up"}, False)
    assert 0 < len(api.daemon_log(3)) <= 3
    assert (api.settings().policy, list(api.settings().nodes)) == ("fifo", ["local"])
    job.cancel()


def test_a_daemon_can_be_started_and_stopped(gpq: Gpq, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPQ_HOME", "GPQ_CONFIG", "PYTHONPATH"):
        monkeypatch.setenv(name, gpq.environment[name])
    with pytest.raises(api.errors.DaemonUnreachable, match="the daemon is not running"):
        api.daemon_status()
    assert not api.stop_daemon()
    try:
        assert api.start_daemon()
        assert api.daemon_status().jobs_total == 0
    finally:
        assert api.stop_daemon()
    assert daemon_control.running() is None


def test_targets_are_listed_and_tested_without_showing_a_url(asked: Daemon) -> None:
    before = asked.config.read_text()
    with webhook() as slack, webhook("refuses") as deaf:
        with asked.config.open("a") as stream:
            stream.write(f'[notify]\nslack = "{slack.url("geheim")}"\ndeaf = "{deaf.url("geheim")}"\n')
        found = api.notify_targets()
        assert (list(found.targets), found.default, found.on) == (["slack", "deaf"], [], ["end"])
        sent = api.notify_test("slack", "deaf").targets
        assert [(one.name, one.sent, one.problem != "") for one in sent] == [
            ("slack", True, False),
            ("deaf", False, True),
        ]
        assert "geheim" not in f"{found}{sent}{api.settings()}"
        with pytest.raises(api.errors.UsageError, match="no target `nobody`"):
            api.notify_test("slack", "nobody")
        assert len(slack.told) == 1
    asked.config.write_text(before)


def test_a_server_can_be_added_and_removed(
    gpq: Gpq,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.WARNING, "gpq")
    for name in ("GPQ_HOME", "GPQ_CONFIG", "PYTHONPATH"):
        monkeypatch.setenv(name, gpq.environment[name])
    before = (gpq.home / "config.toml").read_text()
    with Sshd(tmp_path / "sshd") as server:
        server.known_hosts.write_text("")
        with pytest.raises(api.errors.Refused, match="is not known"):
            api.add_node(server.name, ssh_config=server.config, slots=1)
        assert (gpq.home / "config.toml").read_text() == before
        added = api.add_node(server.name, name="far", ssh_config=server.config, slots=1, yes=True)
        assert [(one.name, len(one.devices)) for one in added.added] == [("far", 1)]
        assert not added.live
        assert "saved the host key of" in caplog.text
        assert "[nodes.far]" in (gpq.home / "config.toml").read_text()
        with pytest.raises(api.errors.Refused, match="already"):
            api.add_node(server.name, name="far", ssh_config=server.config)
        assert api.remove_node("far", force=True).removed == "far"
    assert (gpq.home / "config.toml").read_text() == before
    assert capfd.readouterr() == ("", "")
    for wrong in ({"slots": -1}, {"port": 70000}, {"ssh_config": tmp_path}, {"name": "a b"}):
        with pytest.raises(api.errors.UsageError):
            api.add_node("far", **wrong)  # type: ignore[arg-type]
    with pytest.raises(api.errors.NotFound):
        api.remove_node("nowhere", force=True)
