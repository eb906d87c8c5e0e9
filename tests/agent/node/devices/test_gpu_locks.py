"""Locks of GPUs between the gpq of several users on one server: who has one, who is refused, and what frees it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpq_agent import wire
from gpq_agent.node.devices import gpu_locks
from gpq_agent.node.devices.gpu_locks import TAKEN, Locks
from gpq_agent.node.host import procs
from gpq_agent.node.host.errors import SpoolError

from tests.agent.node.devices.test_gpus import FAKES, A, B, Driver, start_agent
from tests.agent.node.harness import NodeAgent, sweep, wait_until
from tests.support.users import BOB

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "locks"
    path.mkdir()
    return path


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "nvml.json")


def of(folder: Path, spool: str = "mine") -> Locks:
    """The lock of another user's gpq."""
    return Locks(str(folder), spool)


def test_one_user_has_it_and_the_other_learns_who_and_gets_it_afterwards(folder: Path) -> None:
    held = of(folder).take([A, B], 7, 2)
    gpu_locks.sign(held, 4242)
    with pytest.raises(SpoolError, match=rf"{A} is held by {ME}'s gpq \(job 7, since \d\d:\d\d\)") as caught:
        of(folder, "other").take([A], 1, 1)
    assert caught.value.kind == TAKEN
    told = json.loads((folder / f"gpq-{A}.{os.geteuid()}.holder").read_text())
    assert (told["job"], told["attempt"], told["pid"], told["spool"]) == (7, 2, 4242, "mine")
    gpu_locks.close(held)
    assert of(folder).holder(A) == ""
    gpu_locks.close(of(folder, "other").take([A], 1, 1))


def test_several_locks_are_taken_together_or_not_at_all(folder: Path) -> None:
    held = of(folder).take([B], 7, 1)
    with pytest.raises(SpoolError):
        of(folder, "other").take([A, B], 1, 1)
    assert of(folder).holder(A) == ""
    gpu_locks.close(held)


def test_a_look_at_a_lock_blocks_nobody(folder: Path) -> None:
    gpu_locks.close(of(folder).take([A], 1, 1))
    looking = os.open(folder / f"gpq-{A}.lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    with pytest.raises(SpoolError, match="held by another gpq"):
        of(folder).take([A], 1, 1)
    assert of(folder).holder(A) == ""  # two that only look
    os.close(looking)


def test_what_was_seen_of_an_own_lock_is_forgotten_with_it(folder: Path) -> None:
    """One look serves for a while, and until then the GPU would seem to be somebody else's."""
    one = of(folder)
    held = one.take([A], 0, 0)
    assert one.holder(A).startswith("held by")
    gpu_locks.close(held)
    one.forget(A)
    assert one.holder(A) == ""


def test_a_released_lock_is_free_even_if_others_inherited_it(folder: Path) -> None:
    """A process that was just forked has all descriptors of its parent until it first runs."""
    held = of(folder).take([A], 0, 0)
    inherited = [os.dup(descriptor) for descriptor in held]
    gpu_locks.release(held)
    assert of(folder, "other").holder(A) == ""
    gpu_locks.close(inherited)


def test_a_lock_outlives_the_file_of_all_users_whose_owner_may_remove_it(folder: Path) -> None:
    held = of(folder).take([A], 1, 1)
    (folder / f"gpq-{A}.lock").unlink()
    with pytest.raises(SpoolError, match="held by"):
        of(folder, "other").take([A], 2, 1)
    (folder / f"gpq-{A}.{os.geteuid()}.holder").unlink()
    again = of(folder, "other").take([A], 2, 1)
    gpu_locks.close(held)
    assert "job 2" in of(folder).holder(A)
    gpu_locks.close(again)


def plant_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def plant_file(path: Path) -> None:
    """Another user's, which nobody else can open."""
    path.touch(0o000)
    os.chown(path, BOB.pw_uid, BOB.pw_gid)


def plant_linked(path: Path) -> None:
    """A file that is somebody's lock, too, so that one GPU would lock another."""
    other = path.with_suffix(".other")
    other.touch()
    os.link(other, path)


PLANTS = [plant_link, os.mkfifo, Path.mkdir, plant_file, plant_linked]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's file needs root")
@pytest.mark.parametrize("spares", range(gpu_locks.SPARE_NAMES + 1))
@pytest.mark.parametrize("plant", PLANTS)
def test_what_nobody_holds_blocks_nobody_and_stays_as_it_is(
    folder: Path, plant: Callable[[Path], None], spares: int
) -> None:
    own = gpu_locks.own_names(str(folder / f"gpq-{A}.{os.geteuid()}.holder"))
    planted = [folder / f"gpq-{A}.lock", *map(Path, own[:spares])]
    for path in planted:
        plant(path)
    before = [os.lstat(path) for path in planted]
    assert of(folder).holder(A) == ""
    held = of(folder).take([A], 1, 1)
    assert "job 1" in of(folder).holder(A)
    with pytest.raises(SpoolError, match="held by"):
        of(folder, "other").take([A], 2, 1)
    gpu_locks.close(held)
    assert of(folder).holder(A) == ""
    assert [(os.lstat(path).st_mode, os.lstat(path).st_size, os.lstat(path).st_ino) for path in planted] == [
        (status.st_mode, status.st_size, status.st_ino) for status in before
    ]


def test_a_gpu_whose_every_name_is_taken_is_refused_in_one_line(folder: Path) -> None:
    for path in (folder / f"gpq-{A}.lock", *map(Path, gpu_locks.own_names(str(of(folder)._path(A, os.geteuid()))))):
        path.mkdir()
    with pytest.raises(SpoolError, match="cannot lock") as caught:
        of(folder).take([A], 1, 1)
    assert caught.value.kind == TAKEN
    assert str(folder) in caught.value.hint


def test_a_holders_name_that_is_another_file_of_mine_does_not_change_it(folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o600)
    os.link(key, folder / f"gpq-{A}.{os.geteuid()}.holder")
    gpu_locks.close(of(folder).take([A], 1, 1))
    assert (key.read_text(), key.stat().st_mode & 0o777) == ("secret", 0o600)


@pytest.mark.parametrize(
    "content",
    ["[" * 4000, '{"a":' * 600 + "1" + "}" * 600, '{"job": 1e999}', '{"job": %s}' % ("9" * 3000), "\udcff", "7"],
)
def test_a_holder_that_writes_nonsense_is_a_holder_without_a_name(folder: Path, content: str) -> None:
    """Another user can, because the file is theirs."""
    held = of(folder).take([A], 1, 1)
    path = folder / f"gpq-{A}.{os.geteuid()}.holder"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert of(folder, "other").holder(A) == f"held by {ME}'s gpq"
    with pytest.raises(SpoolError, match="held by"):
        of(folder, "other").take([A], 2, 1)
    gpu_locks.close(held)


def test_an_older_gpq_that_knows_only_the_file_of_all_users_keeps_its_gpu(folder: Path) -> None:
    (folder / f"gpq-{A}.lock").touch(0o644)
    with open(folder / f"gpq-{A}.lock", "rb") as older:
        fcntl.flock(older, fcntl.LOCK_EX)
        assert of(folder).holder(A) == "held by the gpq of an unknown user"
        with pytest.raises(SpoolError, match="unknown user"):
            of(folder).take([A], 1, 1)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"job": "\x1b[2J", "since": "x"}', b'{"since": 1e300}', b"\xff"]
)
def test_nonsense_in_a_holders_file_is_not_passed_on(folder: Path, content: bytes) -> None:
    held = of(folder).take([A], 1, 1)
    (folder / f"gpq-{A}.{os.geteuid()}.holder").write_bytes(content)
    assert of(folder, "other").holder(A) == f"held by {ME}'s gpq"
    gpu_locks.close(held)


def test_names_of_devices_stay_in_the_folder(folder: Path) -> None:
    gpu_locks.close(of(folder).take(["MIG-GPU-1/../../x"], 1, 1))
    assert {path.name.rpartition(".")[2] for path in folder.iterdir()} == {"lock", "holder"}


def test_in_the_common_folder_nobody_can_remove_files_of_others() -> None:
    found = os.stat(gpu_locks.common_folder())
    assert found.st_mode & 0o1002 == 0o1002
    assert found.st_uid == 0


def test_no_agent_lists_the_common_folder_where_others_may_put_any_number_of_files(
    agent: Callable[..., NodeAgent], folder: Path, tmp_path: Path
) -> None:
    """Python runs `sitecustomize` first. It notes every folder that the agent lists."""
    code, listed = tmp_path / "code", tmp_path / "listed"
    code.mkdir()
    (code / "sitecustomize.py").write_text(
        "import sys\n"
        "def note(event, args):\n"
        "    if event in ('os.listdir', 'os.scandir'):\n"
        f"        with open({str(listed)!r}, 'a') as stream:\n"
        "            stream.write(str(args[0]) + '\\n')\n"
        "sys.addaudithook(note)\n"
    )
    node = agent("--slots", "2", "--lock-slots", "--locks", str(folder), path=[code])
    key = node.start(1, ["true"])
    node.ended(key)
    node.ask("forget", attempt=key)
    assert list(folder.iterdir())  # it has locked the slot there
    folders = listed.read_text().splitlines()
    assert str(node.spool / "attempts") in folders
    assert str(folder) not in folders


def test_a_lock_outlives_agent_and_shim_and_not_the_job(
    agent: Callable[..., NodeAgent], driver: Driver, folder: Path, spool: Path
) -> None:
    node = start_agent(agent, driver, "nvml")
    key = node.start(1, ["sleep", "600"], devices=[A])
    pid = node.wait_for(key, "running")["pid"]
    # Until the shim lets it begin, it ends with the shim.
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", "the job's program")
    record = wire.read_json(str(node.folder(key) / wire.SHIM))
    assert record is not None
    assert "job 1, since" in of(folder).holder(A)
    assert json.loads((folder / f"gpq-{A}.{os.geteuid()}.holder").read_text())["pid"] == record["pid"]
    node.process.kill()
    node.process.wait()
    assert of(folder).holder(A)
    os.kill(record["pid"], signal.SIGKILL)
    wait_until(lambda: not procs.lives(record, procs.boot_id()), "the shim's end")
    assert of(folder).holder(A)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not of(folder).holder(A), "the lock to be free")


def test_the_lock_is_free_when_the_end_is_reported(
    agent: Callable[..., NodeAgent], driver: Driver, folder: Path
) -> None:
    node = start_agent(agent, driver, "nvml")
    for number in range(1, 4):
        node.ended(node.start(number, ["sh", "-c", "sleep 0.1 & exit 3"], devices=[A]))
        assert of(folder).holder(A) == ""


# -- two people


class Person:
    """Another user's agent, with that user's rights."""

    def __init__(self, name: str, place: Path, driver: Path, python: str, *options: str) -> None:
        self.entry = pwd.getpwnam(name)
        self.home = place / name
        self.home.mkdir()
        os.chown(self.home, self.entry.pw_uid, self.entry.pw_gid)
        self.spool = self.home / "spool"
        path = os.pathsep.join(map(str, (place / "fakes" / "nvml", place / "agent")))
        argv = [python, "-m", "gpq_agent.node", "--spool", str(self.spool), "--locks", str(place / "locks")]
        self.process = subprocess.Popen(
            [*argv, "--probe-period", "0.3", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                "PYTHONPATH": path,
                "FAKE_NVML_STATE": str(driver),
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
            },
            cwd="/",
            user=self.entry.pw_uid,
            group=self.entry.pw_gid,
            extra_groups=[],
        )
        self._number = 0
        self.greeting = self._reply()

    def _reply(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the agent of {self.entry.pw_name} ended"
        return wire.decode(line)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self._number += 1
        self.process.stdin.write(wire.encode({"v": wire.VERSION, "id": self._number, "op": op, **fields}))
        self.process.stdin.flush()
        return self._reply()

    def start(self, job: int, device: str) -> dict[str, Any]:
        order = {"job": job, "attempt": 1, "argv": ["sleep", "600"], "cwd": "/", "env": {}, "level": "black-box"}
        return self.ask("start", order={**order, "devices": [device]})

    def stop(self, job: int) -> None:
        self.ask("stop", attempt=f"{job}.1", mode="kill", grace=0)

    def device(self, name: str) -> dict[str, Any]:
        news = self.ask("watch", offsets={}, wait=0.0)
        return {one["id"]: one for one in news["devices"]}[name]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
        sweep(self.spool)


def everybodys_python() -> str:
    """An interpreter that other users may run, because ours may be in a folder of root."""
    for path in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([path, "-c", "import json"], user="nobody", check=True, capture_output=True, timeout=60)
            return path
    raise AssertionError("no Python that user nobody may run")


@contextlib.contextmanager
def users(*options: str) -> Iterator[tuple[Person, Person, Driver]]:
    """Two users of one server. `options`: of both agents."""
    place = Path(tempfile.mkdtemp(prefix="gpq-people-"))
    found: list[Person] = []
    try:
        place.chmod(0o755)
        (place / "locks").mkdir()
        (place / "locks").chmod(0o1777)
        shutil.copytree(Path(wire.__file__).parent, place / "agent" / "gpq_agent")
        shutil.copytree(FAKES / "nvml", place / "fakes" / "nvml")
        driver = Driver(place / "nvml.json")
        python = everybodys_python()
        found += [Person(name, place, driver.path, python, *options) for name in ("daemon", "nobody")]
        yield found[0], found[1], driver
    finally:
        for one in found:
            one.close()
        shutil.rmtree(place)


@pytest.fixture
def people() -> Iterator[tuple[Person, Person, Driver]]:
    """Two users of one server with two GPUs."""
    with users() as both:
        yield both


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as two users needs root")
def test_two_users_never_get_the_same_locked_slot_and_learn_when_it_is_free() -> None:
    with users("--slots", "2", "--cores", "0", "--lock-slots") as (first, second, _):
        assert first.greeting["machine"] == second.greeting["machine"]
        assert first.start(1, "slot-0")["ok"]
        refused = second.start(1, "slot-0")
        assert re.match(r"slot-0 is (foreign: )?held by daemon's gpq \(job 1, since ", refused["error"])
        assert refused["taken"]
        wait_until(lambda: second.device("slot-0")["state"] == "foreign", "the lock to be seen")
        reason = second.device("slot-0")["reason"]
        assert re.fullmatch(r"held by daemon's gpq \(job 1, since \d\d:\d\d\)", reason)
        assert first.device("slot-0")["state"] == "ok"
        assert second.start(2, "slot-1")["ok"]
        first.stop(1)
        wait_until(lambda: second.device("slot-0")["state"] == "ok", "the slot to be free")
        assert second.start(3, "slot-0")["ok"]
        for number in (2, 3):
            second.stop(number)


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as two users needs root")
def test_two_users_of_one_server_never_get_the_same_gpu(people: tuple[Person, Person, Driver]) -> None:
    first, second, driver = people
    assert first.start(1, A)["ok"]
    refused = second.start(1, A)
    assert refused["error"].startswith(f"{A} is foreign: held by daemon's gpq (job 1, since ")
    assert (refused["kind"], refused["taken"]) == ("busy", True)
    seen = second.device(A)
    assert seen["state"] == "foreign"
    assert re.fullmatch(r"held by daemon's gpq \(job 1, since \d\d:\d\d\)", seen["reason"])
    assert first.device(A)["state"] == "ok"
    record = str(first.spool / "attempts" / "1.1" / wire.SHIM)
    shim = wait_until(lambda: wire.read_json(record), "the shim to have said who it is")  # it may still be starting
    driver.set_gpus({"uuid": A, "used_mib": 900, "processes": [{"pid": shim["pid"], "mib": 700}]}, {"uuid": B})
    wait_until(lambda: second.device(A)["processes"], "the process to be seen")
    assert second.device(A)["reason"] == seen["reason"]  # the lock says more than the process
    assert second.device(A)["processes"][0]["user"] == "daemon"
    assert second.start(2, B)["ok"]
    driver.set_gpus({"uuid": A}, {"uuid": B})
    first.stop(1)
    wait_until(lambda: second.device(A)["state"] == "ok", "the GPU to be free")
    wait_until(lambda: second.start(3, A)["ok"], "the other's turn, on a lock file that the first one made")
    theirs = f"{A} is foreign: held by nobody's gpq (job 3"
    wait_until(lambda: first.start(2, A)["error"].startswith(theirs), "the first one to have let go, and to be refused")
    for number in (2, 3):
        second.stop(number)


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as two users needs root")
def test_a_name_that_somebody_else_wrote_is_not_believed(people: tuple[Person, Person, Driver]) -> None:
    first, second, _ = people
    folder = first.home.parent / "locks"
    forged = folder / f"gpq-{A}.0.holder"
    forged.write_text('{"job": 99}')
    os.chown(forged, second.entry.pw_uid, second.entry.pw_gid)
    holding = os.open(forged, os.O_RDWR)
    fcntl.flock(holding, fcntl.LOCK_EX)
    assert first.start(1, A)["ok"]
    assert "daemon's gpq (job 1" in second.device(A)["reason"]
    os.close(holding)
    first.stop(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as two users needs root")
def test_two_users_never_get_the_same_gpu_even_if_a_third_has_spoiled_the_common_file(
    people: tuple[Person, Person, Driver],
) -> None:
    first, second, _ = people
    folder = first.home.parent / "locks"
    folder.chmod(0o1733)  # nobody can list it, and nobody needs to
    spoiled = folder / f"gpq-{A}.lock"
    spoiled.touch(0o600)
    os.chown(spoiled, 54321, 54321)
    assert second.device(A)["state"] == "ok"
    assert first.start(1, A)["ok"]
    assert "held by daemon's gpq (job 1, since " in second.start(1, A)["error"]
    spoiled.unlink()  # its owner may
    assert second.start(2, A)["taken"]
    first.stop(1)
    wait_until(lambda: second.device(A)["state"] == "ok", "the GPU to be free")
    assert second.start(3, A)["ok"]
    second.stop(3)
