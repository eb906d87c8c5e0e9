"""Servers, their power, and labs next to each other are what they claim to be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.lab.kinds import PLAIN
from tests.lab.lab import Lab, sweep
from tests.lab.machine import run, started
from tests.lab.probes import KEEPALIVE, reaches, session
from tests.lab.server import ROOT, Server
from tests.support.figures import Figures
from tests.support.waiting import PATIENCE, wait_until

# -- servers


def test_servers_share_nothing(lab: Lab) -> None:
    mark = f"mark-{os.getpid()}"
    said = lab.ssh("srv-a", f"hostname; touch ~/{mark} /tmp/{mark} /var/tmp/{mark} /dev/shm/{mark}; ls ~ /tmp").stdout
    assert said.split()[0] == "srv-a"
    assert said.count(mark) == 2
    elsewhere = lab.ssh("srv-b", f"hostname; ls -d ~/{mark} /tmp/{mark} /var/tmp/{mark} /dev/shm/{mark} {ROOT}/tests")
    assert elsewhere.stdout.split() == ["srv-b"]
    assert not any(os.path.exists(f"{folder}/{mark}") for folder in ("/tmp", "/var/tmp", "/dev/shm", "~/"))
    ids = {lab.ssh(server.name, "cat /proc/sys/kernel/random/boot_id").stdout.strip() for server in lab}
    assert ids == {server.boot_id for server in lab}
    assert len(ids) == len(list(lab))


def test_servers_reach_each_other_by_name(lab: Lab) -> None:
    listening = (
        "import socket; end = socket.create_server(('', 7001)); print('up', flush=True); end.accept()[0].send(b'hello')"
    )
    asking = "import socket; print(socket.create_connection(('srv-b', 7001), 5).recv(9))"
    with session(lab, "srv-b", f'python3 -c "{listening}"'):
        assert lab.ssh("srv-a", f'python3 -c "{asking}"').stdout == "b'hello'\n"


# -- the power


def test_a_reboot_keeps_only_the_disk(lab: Lab, figures: Figures) -> None:
    server = lab["srv-b"]
    before = server.boot_id
    patient = {**KEEPALIVE, "ServerAliveCountMax": 30}  # something tells it, or it waits a minute
    with session(lab, "srv-b", "touch ~/kept /tmp/lost; setsid sleep 1000 & echo here; wait", **patient) as ssh:
        inside = server.processes()
        server.power_off()
        assert all(started(pid) is None for pid in inside)
        assert not reaches(server)
        assert ssh.poll() is None  # nothing told it
        server.boot()
        began = time.monotonic()
        ssh.communicate(timeout=PATIENCE)
        assert ssh.returncode == 255
        figures.at_most("an old ssh learns of a reboot", time.monotonic() - began, 8.0)
    said = lab.ssh("srv-b", "cat /proc/sys/kernel/random/boot_id; ls ~; ls /tmp").stdout.split()
    assert said == [server.boot_id, "kept"]
    assert server.boot_id != before
    assert len(server.processes("sleep")) == 1  # init's own


def test_an_unplugged_cable_stays_unplugged_after_a_reboot(lab: Lab) -> None:
    lab["srv-b"].link.cut()
    lab["srv-b"].reboot()
    assert not reaches(lab["srv-b"])
    lab["srv-b"].link.heal()
    assert reaches(lab["srv-b"])


def test_a_pid_can_be_reused(lab: Lab) -> None:
    server = lab["srv-a"]
    for _ in range(3):
        server.as_pid(31_000, "sleep", "1000")
        [again] = [pid for pid in server.processes("sleep") if server.pid_inside(pid) == 31_000]
        server.inside("kill", "-9", "31000")
        wait_until(lambda pid=again: started(pid) is None, "it is gone")  # type: ignore[misc]


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


def test_a_lab_whose_creation_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    def refuse(self: Server) -> None:
        raise OSError("no more of them")

    before = len(ours())
    other = Lab({"srv-a": PLAIN})
    monkeypatch.setattr(Server, "boot", refuse)
    with pytest.raises(OSError, match="no more"), other:
        pass
    assert not other.folder.exists()
    assert len(ours()) == before


def test_the_next_lab_removes_the_remains_of_a_killed_one() -> None:
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
    wait_until(lambda: all(started(int(pid)) is None for pid in inits), "its servers died with it")
    assert os.path.exists(folder)
    sweep()
    assert not os.path.exists(folder)
    assert f"gpq-lab {owner.pid} " not in run("ip", "-json", "link")
