"""Every fault of the network and of sshd does what it says, as seen by plain ssh and plain datagrams."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from tests.lab.lab import Lab
from tests.lab.probes import KEEPALIVE, LOUD, datagram_out, datagrams_in, reaches, session
from tests.support.figures import Figures
from tests.support.waiting import PATIENCE, wait_until

DETECTED = 10.0  # seconds until a keepalive of 2 s x 3 has noticed a dead link. Measured: 6.9 to 8.6


# -- the network


def test_keepalive_notices_every_kind_of_silence_and_the_job_continues(lab: Lab, figures: Figures) -> None:
    faults = {"srv-a": lab["srv-a"].link.cut, "srv-b": lab["srv-b"].link.drop_in, "srv-c": lab["srv-c"].link.drop_out}
    with contextlib.ExitStack() as open_sessions:
        sessions = {name: open_sessions.enter_context(session(lab, name, **KEEPALIVE)) for name in faults}
        began = time.monotonic()
        for fault in faults.values():
            fault()
        for name, ssh in sessions.items():
            assert ssh.wait(PATIENCE) == 255
            took = time.monotonic() - began
            figures.at_most(f"a keepalive of 2 s x 3 notices {faults[name].__name__}", took, DETECTED)
            assert ssh.stderr is not None
            assert "not responding" in ssh.stderr.read()
        assert all(len(server.processes("sleep")) == 2 for server in lab)  # init's own, and the one that ssh started
    for server in lab:
        server.link.heal()
        assert lab.ssh(server.name, "pkill sleep").returncode == 0


def test_a_cut_link_is_silent_and_a_healed_link_continues(lab: Lab, figures: Figures) -> None:
    with session(lab, "srv-a", LOUD, **KEEPALIVE) as ssh:
        lab["srv-a"].link.cut()
        assert not reaches(lab["srv-a"])
        assert reaches(lab["srv-b"])
        assert lab.ssh("srv-a", "true", ConnectTimeout=1).returncode == 255
        lab["srv-a"].link.heal()
        healed = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert ssh.stdout is not None
        assert any(float(line) > healed for line in ssh.stdout)  # none: the stream has ended
        took = time.clock_gettime(time.CLOCK_BOOTTIME) - healed
        figures.at_most("a stream continues after a cut of 2 s", took, 5.0)


def test_a_one_way_drop_affects_only_one_direction(lab: Lab) -> None:
    server = lab["srv-a"]
    assert (datagrams_in(server), datagram_out(lab, server)) == (1, True)
    server.link.drop_in()
    assert (datagrams_in(server), datagram_out(lab, server)) == (0, True)
    server.link.undrop()
    server.link.drop_out()
    assert (datagrams_in(server), datagram_out(lab, server)) == (1, False)
    server.link.undrop()
    assert (datagrams_in(server), datagram_out(lab, server)) == (1, True)


def test_a_fifth_of_the_packets_is_lost(lab: Lab) -> None:
    assert datagrams_in(lab["srv-a"], 1000) == 1000
    lab["srv-a"].link.loss(5)
    assert datagrams_in(lab["srv-a"], 1000) == 800


def test_a_rejected_connection_is_reset_at_once(lab: Lab, figures: Figures) -> None:
    with session(lab, "srv-a", LOUD) as ssh:
        lab["srv-a"].link.reject()
        began = time.monotonic()
        ssh.communicate(timeout=PATIENCE)
        figures.at_most("a reset ends a session", time.monotonic() - began, 5.0)
        assert ssh.returncode == 255
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((lab["srv-a"].address, 22), 1)


def test_a_slow_link_is_slow_in_both_directions_until_it_is_restored(lab: Lab, figures: Figures) -> None:
    def seconds() -> float:
        began = time.monotonic()
        assert len(lab.ssh("srv-a", "head -c 100000 /dev/urandom | base64").stdout) > 100_000
        return time.monotonic() - began

    fast = seconds()
    lab["srv-a"].link.slow("512kbit")
    slow = seconds()
    lab["srv-a"].link.full_speed()
    again = seconds()
    figures.note("133 kB over ssh", f"{fast:.2f} s, at 512 kbit/s {slow:.2f} s, then {again:.2f} s")
    assert slow > 2.0  # 1.06 Mbit at 512 kbit/s
    figures.at_most("the slower one of the two without a limit", max(fast, again), slow / 2)


# -- sshd


def test_a_frozen_sshd_accepts_connections_but_says_nothing(lab: Lab, figures: Figures) -> None:
    lab["srv-a"].freeze_sshd()
    with socket.create_connection((lab["srv-a"].address, 22), 1) as connection:
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    began = time.monotonic()
    refused = lab.ssh("srv-a", "true", ConnectTimeout=1)
    took = time.monotonic() - began
    assert refused.returncode == 255
    assert "banner exchange" in refused.stderr
    figures.at_most("ConnectTimeout=1 ends a login to a frozen sshd", took, 3.0)
    assert took >= 1.0
    assert lab.ssh("srv-b", "true").returncode == 0
    lab["srv-a"].thaw_sshd()
    assert lab.ssh("srv-a", "true").returncode == 0


def test_open_sessions_may_stay_when_the_listener_is_killed(lab: Lab) -> None:
    server = lab["srv-a"]
    with session(lab, "srv-a", LOUD) as ssh:
        server.kill_sshd(sessions=False)
        wait_until(lambda: not reaches(server), "nobody listens")
        assert ssh.poll() is None
        server.start_sshd()
        assert lab.ssh("srv-a", "true").returncode == 0
        server.kill_sshd()
        ssh.communicate(timeout=PATIENCE)
        assert ssh.returncode == 255
    server.start_sshd()
    assert lab.ssh("srv-a", "true").returncode == 0


def test_another_host_key_is_refused(lab: Lab) -> None:
    server = lab["srv-c"]
    server.kill_sshd()
    server.new_host_key()
    server.start_sshd()
    refused = lab.ssh("srv-c", "true")
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr
    known = f"srv-c {server.host_key}"
    (lab.folder / "other_hosts").write_text(known)
    assert lab.ssh("srv-c", "true", UserKnownHostsFile=str(lab.folder / "other_hosts")).returncode == 0
