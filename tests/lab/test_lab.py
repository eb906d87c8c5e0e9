"""The laboratory does what it says: every fault as plain ssh and plain datagrams see it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.lab.kinds import PLAIN
from tests.lab.lab import Lab, sweep
from tests.lab.machine import run, started
from tests.lab.server import ROOT, Server
from tests.waiting import wait_until

KEEPALIVE = {"ServerAliveInterval": 2, "ServerAliveCountMax": 3}
DETECTED = 10.0  # seconds until a keepalive of 2 s x 3 has noticed a dead link; 6.9 to 8.6 were measured
LOUD = "while :; do echo tick; sleep 0.1; done"


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    with Lab({"srv-a": PLAIN, "srv-b": PLAIN, "srv-c": PLAIN}) as lab:
        yield lab


@pytest.fixture
def lab(shared: Lab) -> Iterator[Lab]:
    """All servers on and well at the start of each test."""
    yield shared
    for server in shared:
        if not server.on:
            server.boot()
        server.link.heal()
        server.thaw_sshd()


@contextlib.contextmanager
def session(lab: Lab, name: str, command: str = "echo here; exec sleep 1000", **options: int) -> Iterator[subprocess.Popen[str]]:
    """An ssh that is logged in and stays."""
    argv = lab.ssh_argv(name, command, **options)
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ssh:
        try:
            assert ssh.stdout is not None
            assert ssh.stdout.readline().strip()
            yield ssh
        finally:
            ssh.kill()


def reaches(server: Server, patience: float = 1.0) -> bool:
    try:
        socket.create_connection((server.address, server.kind.port), patience).close()
    except OSError:
        return False
    return True


def datagrams_in(server: Server, count: int = 1) -> int:
    """How many of so many that this machine sends to the server arrive, looked at where they arrive."""
    code = (
        "import socket, sys\n"
        "end = socket.socket(type=socket.SOCK_DGRAM); end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)\n"
        "end.bind(('', 9999)); end.settimeout(0.5); print('bound', flush=True); sys.stdin.readline(); seen = 0\n"
        "try:\n  while True: end.recv(9); seen += 1\n"
        "except TimeoutError: print(seen)"
    )
    argv = server.network_argv(sys.executable, "-c", code)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdin is not None
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "bound\n"
        with socket.socket(type=socket.SOCK_DGRAM) as end:
            for _ in range(count):
                end.sendto(b"x", (server.address, 9999))
        receiver.stdin.write("sent\n")
        receiver.stdin.flush()
        return int(receiver.stdout.readline())


def datagram_out(lab: Lab, server: Server) -> bool:
    """Whether one that the server sends to this machine arrives."""
    gateway = f"{server.address.rpartition('.')[0]}.1"
    with socket.socket(type=socket.SOCK_DGRAM) as end:
        end.bind((gateway, 0))
        end.settimeout(0.5)
        code = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('{gateway}', {end.getsockname()[1]}))"
        with contextlib.suppress(AssertionError):  # the sender may be told that its packet was dropped
            run(*server.network_argv(sys.executable, "-W", "ignore", "-c", code))
        try:
            return end.recv(9) == b"x"
        except TimeoutError:
            return False


# -- servers


def test_servers_share_nothing(lab: Lab) -> None:
    mark = f"mark-{os.getpid()}"
    said = lab.ssh("srv-a", f"hostname; touch ~/{mark} /tmp/{mark} /var/tmp/{mark} /dev/shm/{mark}; ls ~ /tmp").stdout
    assert said.split()[0] == "srv-a"
    assert said.count(mark) == 2
    elsewhere = lab.ssh("srv-b", f"hostname; ls -d ~/{mark} /tmp/{mark} /var/tmp/{mark} /dev/shm/{mark} {ROOT}")
    assert elsewhere.stdout.split() == ["srv-b"]
    assert not any(os.path.exists(f"{folder}/{mark}") for folder in ("/tmp", "/var/tmp", "/dev/shm", "~/"))
    ids = {lab.ssh(server.name, "cat /proc/sys/kernel/random/boot_id").stdout.strip() for server in lab}
    assert ids == {server.boot_id for server in lab}
    assert len(ids) == len(list(lab))


def test_servers_reach_each_other_by_name(lab: Lab) -> None:
    listening = "import socket; end = socket.create_server(('', 7001)); print('up', flush=True); end.accept()[0].send(b'hello')"
    asking = "import socket; print(socket.create_connection(('srv-b', 7001), 5).recv(9))"
    with session(lab, "srv-b", f'python3 -c "{listening}"'):
        assert lab.ssh("srv-a", f'python3 -c "{asking}"').stdout == "b'hello'\n"


# -- the network


@pytest.mark.parametrize("keepalive", [KEEPALIVE])
def test_keepalive_notices_every_way_of_silence_and_the_job_lives_on(lab: Lab, keepalive: dict[str, int]) -> None:
    faults = {"srv-a": lab["srv-a"].link.cut, "srv-b": lab["srv-b"].link.drop_in, "srv-c": lab["srv-c"].link.drop_out}
    with contextlib.ExitStack() as open_sessions:
        sessions = {name: open_sessions.enter_context(session(lab, name, **keepalive)) for name in faults}
        began = time.monotonic()
        for fault in faults.values():
            fault()
        for name, ssh in sessions.items():
            assert ssh.wait(DETECTED + 5) == 255
            took = time.monotonic() - began
            print(f"{name}: {faults[name].__name__} noticed after {took:.1f} s, asked: {DETECTED:.0f} s")
            assert took < DETECTED
            assert ssh.stderr is not None
            assert "not responding" in ssh.stderr.read()
        assert all(len(server.processes("sleep")) == 2 for server in lab)  # init's own, and the one that ssh started
    for server in lab:
        server.link.heal()
        assert lab.ssh(server.name, "pkill sleep").returncode == 0


def test_a_cut_cuts_and_a_healed_link_goes_on(lab: Lab) -> None:
    with session(lab, "srv-a", LOUD) as ssh:
        lab["srv-a"].link.cut()
        assert not reaches(lab["srv-a"])
        assert reaches(lab["srv-b"])
        assert lab.ssh("srv-a", "true", ConnectTimeout=1).returncode == 255
        lab["srv-a"].link.heal()
        began = time.monotonic()
        assert ssh.stdout is not None
        os.set_blocking(ssh.stdout.fileno(), False)
        wait_until(lambda: ssh.stdout and ssh.stdout.read(), "old lines", 5.0)
        wait_until(lambda: ssh.stdout and ssh.stdout.read(), "fresh lines", 5.0)
        print(f"a stream of before the cut went on {time.monotonic() - began:.2f} s after it healed, asked: 5 s")
        assert ssh.poll() is None


def test_a_one_way_drop_is_one_way(lab: Lab) -> None:
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
    lab["srv-a"].link.loss(0.2)
    assert 700 < datagrams_in(lab["srv-a"], 1000) < 900  # five standard deviations are 63


def test_rejected_is_reset_at_once(lab: Lab) -> None:
    with session(lab, "srv-a", LOUD) as ssh:
        lab["srv-a"].link.reject()
        began = time.monotonic()
        ssh.communicate(timeout=5)
        took = time.monotonic() - began
        print(f"a reset ended the session after {took:.2f} s, asked: 5 s")
        assert ssh.returncode == 255
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((lab["srv-a"].address, 22), 1)


def test_slow_is_slow_each_way_and_only_until_it_is_not(lab: Lab) -> None:
    def seconds() -> float:
        began = time.monotonic()
        assert len(lab.ssh("srv-a", "head -c 100000 /dev/urandom | base64").stdout) > 100_000
        return time.monotonic() - began

    fast = seconds()
    lab["srv-a"].link.slow("512kbit")
    slow = seconds()
    lab["srv-a"].link.full_speed()
    again = seconds()
    print(f"133 kB: {fast:.2f} s, at 512 kbit/s {slow:.2f} s, then {again:.2f} s")
    assert slow > 2.0  # 1.06 Mbit at 512 kbit/s
    assert max(fast, again) < slow / 2


# -- sshd


def test_a_frozen_sshd_accepts_and_says_nothing(lab: Lab) -> None:
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
    print(f"ConnectTimeout=1 ended a login at a frozen sshd after {took:.2f} s")
    assert 1.0 <= took < 3.0
    assert lab.ssh("srv-b", "true").returncode == 0
    lab["srv-a"].thaw_sshd()
    assert lab.ssh("srv-a", "true").returncode == 0


def test_open_sessions_may_stay_when_the_listener_is_killed(lab: Lab) -> None:
    server = lab["srv-a"]
    with session(lab, "srv-a", LOUD) as ssh:
        server.kill_sshd(sessions=False)
        wait_until(lambda: not reaches(server), "nobody listens", 5.0)
        assert ssh.poll() is None
        server.start_sshd()
        assert lab.ssh("srv-a", "true").returncode == 0
        server.kill_sshd()
        ssh.communicate(timeout=5)
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


# -- the power


def test_a_reboot_keeps_the_disk_and_nothing_else(lab: Lab) -> None:
    server = lab["srv-b"]
    before = server.boot_id
    with session(lab, "srv-b", "touch ~/kept /tmp/lost; setsid sleep 1000 & echo here; wait", **KEEPALIVE) as ssh:
        inside = server.processes()
        server.power_off()
        assert all(started(pid) is None for pid in inside)
        assert not reaches(server)
        assert ssh.poll() is None  # nobody has told it
        server.boot()
        began = time.monotonic()
        ssh.communicate(timeout=10)
        assert ssh.returncode == 255
        print(f"an ssh of before the reboot ended {time.monotonic() - began:.1f} s after it")
    said = lab.ssh("srv-b", "cat /proc/sys/kernel/random/boot_id; ls ~/kept /tmp").stdout.split()
    assert said == [server.boot_id, "/home/ada/kept", "/tmp:"] or said[:2] == [server.boot_id, "/home/ada/kept"]
    assert "lost" not in said
    assert server.boot_id != before
    assert server.processes("sleep") == server.processes("sleep")[:1]


def test_a_cable_that_is_out_stays_out_over_a_reboot(lab: Lab) -> None:
    lab["srv-b"].link.cut()
    lab["srv-b"].reboot()
    assert not reaches(lab["srv-b"])
    lab["srv-b"].link.heal()
    assert reaches(lab["srv-b"])


def test_a_pid_can_be_had_again(lab: Lab) -> None:
    server = lab["srv-a"]
    for _ in range(3):
        server.as_pid(31_000, "sleep", "1000")
        [again] = [pid for pid in server.processes("sleep") if server.pid_inside(pid) == 31_000]
        server.inside("kill", "-9", "31000")
        wait_until(lambda pid=again: started(pid) is None, "it is gone", 5.0)  # type: ignore[misc]


# -- labs


def ours() -> list[dict[str, str]]:
    return [
        link
        for link in json.loads(run("ip", "-json", "link"))
        if link["ifname"].startswith("gq") and f"gpq-lab {os.getpid()} " in link.get("ifalias", "")
    ]


def test_two_labs_side_by_side(lab: Lab) -> None:
    before = len(ours())
    with Lab({"srv-a": PLAIN}) as other:
        assert len(ours()) == before + 2
        assert other["srv-a"].address.rpartition(".")[0] != lab["srv-a"].address.rpartition(".")[0]
        ids = [each.ssh("srv-a", "cat /proc/sys/kernel/random/boot_id").stdout.strip() for each in (lab, other)]
        assert ids == [lab["srv-a"].boot_id, other["srv-a"].boot_id]
        other["srv-a"].link.cut()
        assert reaches(lab["srv-a"])
        inside, folder = other["srv-a"].processes(), other.folder
    assert all(started(pid) is None for pid in inside)
    assert not folder.exists()
    assert len(ours()) == before
    assert lab.ssh("srv-a", "true").returncode == 0


def test_a_lab_that_fails_while_it_is_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    def refuse(self: Server) -> None:
        raise OSError("no more of them")

    before = len(ours())
    other = Lab({"srv-a": PLAIN})
    monkeypatch.setattr(Server, "boot", refuse)
    with pytest.raises(OSError, match="no more"), other:
        pass
    assert not other.folder.exists()
    assert len(ours()) == before


def test_what_a_killed_lab_left_is_taken_by_the_next() -> None:
    code = (
        "from tests.lab.lab import Lab\nimport sys\n"
        "with Lab() as lab:\n"
        "  print(lab.folder, *[server.init for server in lab], flush=True)\n"
        "  sys.stdin.readline()\n"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        folder, *inits = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: all(started(int(pid)) is None for pid in inits), "its servers died with it", 10.0)
    assert os.path.exists(folder)
    sweep()
    assert not os.path.exists(folder)
    assert f"gpq-lab {owner.pid} " not in run("ip", "-json", "link")
