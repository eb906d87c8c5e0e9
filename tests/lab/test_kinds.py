"""Every kind of server and user is what its name says, as plain ssh sees it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab import kinds
from tests.lab.lab import Lab

KINDS = {
    "srv-plain": kinds.PLAIN,
    "srv-old": kinds.OLD_PYTHON,
    "srv-new": kinds.NEW_PYTHON,
    "srv-none": kinds.NO_PYTHON,
    "srv-csh": kinds.CSH,
    "srv-fish": kinds.FISH,
    "srv-noisy": kinds.NOISY,
    "srv-noisy-csh": kinds.NOISY_CSH,
    "srv-exit": kinds.EXITING,
    "srv-talk": kinds.TALKATIVE,
    "srv-2222": kinds.PORT_2222,
    "srv-one": kinds.ONE_SESSION,
    "srv-zero": kinds.NO_SESSION,
    "srv-far": kinds.behind("srv-plain"),
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(KINDS) as lab:
        yield lab


@pytest.mark.parametrize(("name", "version"), [("srv-old", (3, 8)), ("srv-new", (3, 13))])
def test_pythons(lab: Lab, name: str, version: tuple[int, int]) -> None:
    for command in ("python3", "sh -c 'exec python3 \"$@\"' -", "bash -lc 'python3 \"$@\"' -"):
        said = lab.ssh(name, f'{command} -c "import sys, ssl, sqlite3, ctypes; print(sys.version_info[:2])"')
        assert said.stdout.strip() == str(version), said.stderr


def test_no_python(lab: Lab) -> None:
    found = lab.ssh(
        "srv-none", "ls /usr/bin/python* /usr/local/bin/python*; sh -c 'command -v python3 python || echo none'"
    )
    assert found.stdout == "none\n"
    assert "none" not in lab.ssh("srv-plain", "sh -c 'command -v python3 || echo none'").stdout


@pytest.mark.parametrize(("name", "says"), [("srv-csh", "echo $version"), ("srv-fish", "echo fish $FISH_VERSION")])
def test_login_shells(lab: Lab, name: str, says: str) -> None:
    shell = name.removeprefix("srv-")
    assert lab.ssh(name, "echo $shell $SHELL").stdout.strip().endswith(f"/bin/{shell}")
    assert lab.ssh(name, "set x=1; exit 3").returncode == {"csh": 3, "fish": 3}[shell]
    # A shell other than sh refuses what only sh understands.
    assert lab.ssh(name, "for i in 1 2; do echo $i; done").stdout == ""
    assert lab.ssh(name, "sh -c 'for i in 1 2; do echo $i; done'").stdout == "1\n2\n"


def test_noise(lab: Lab) -> None:
    said = lab.ssh("srv-noisy", "echo answer")
    assert said.stdout == "Welcome to this server!\n\nno newline \033[31mand red\033[0manswer\n"
    assert "complaint" in said.stderr
    said = lab.ssh("srv-noisy-csh", "echo answer")
    assert said.stdout == "Welcome to this server!\nanswer\n"
    assert said.stderr  # stty without a terminal
    assert lab.ssh("srv-talk", "echo answer").stdout.endswith("answer\n")
    assert len(lab.ssh("srv-talk", "echo answer").stdout) > 200_000


def test_a_start_file_that_exits(lab: Lab) -> None:
    said = lab.ssh("srv-exit", "echo answer")
    assert (said.returncode, said.stdout) == (0, "")


def test_another_port(lab: Lab) -> None:
    assert lab.ssh("srv-2222", "hostname").stdout == "srv-2222\n"
    assert lab.ssh("srv-2222", "true", Port=22).returncode == 255


def test_a_server_behind_another(lab: Lab) -> None:
    assert lab.ssh("srv-far", "hostname").stdout == "srv-far\n"
    with pytest.raises(OSError, match=r"timed out|unreachable|No route"):
        socket.create_connection((lab["srv-far"].address, 22), 0.5)
    assert lab.ssh("srv-far", "true", ProxyJump="none", ConnectTimeout=1).returncode == 255
    lab["srv-plain"].link.cut()
    try:
        assert lab.ssh("srv-far", "true", ConnectTimeout=1).returncode == 255
    finally:
        lab["srv-plain"].link.heal()
    lab["srv-plain"].reboot()
    assert lab.ssh("srv-far", "hostname").stdout == "srv-far\n"


def test_sessions_on_one_connection(lab: Lab) -> None:
    control = lab.folder / "control"
    argv = lab.ssh_argv("srv-one", "echo here; exec sleep 1000", ControlMaster="yes", ControlPath=str(control))
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as master:
        assert master.stdout is not None
        assert master.stdout.readline() == b"here\n"
        second = lab.ssh("srv-one", "echo second", ControlPath=str(control), ProxyCommand="false")
        master.kill()
    assert second.returncode == 255
    assert "open refused" in second.stderr
    assert lab.ssh("srv-one", "echo first").stdout == "first\n"
    assert lab.ssh("srv-zero", "echo first").returncode != 0


def test_the_path_of_the_lab_has_its_own_ssh(lab: Lab) -> None:
    done = subprocess.run([lab.bin / "ssh", "srv-2222", "hostname"], capture_output=True, text=True, timeout=30)
    assert done.stdout == "srv-2222\n"


def test_a_server_sees_only_the_folders_shown_to_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    shown = tmp_path_factory.mktemp("shown")
    (shown / "file").write_text("here")
    with Lab({"srv-a": kinds.Kind(shown=(shown,)), "srv-b": kinds.PLAIN}) as lab:
        assert lab["srv-a"].inside("cat", str(shown / "file")) == "here"
        assert lab["srv-a"].inside("sh", "-c", f"echo other >{shown}/file || echo refused").strip() == "refused"
        assert lab["srv-b"].inside("sh", "-c", f"test -e {shown} || echo hidden") == "hidden\n"
