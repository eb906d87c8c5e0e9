"""Verdicts on devices after invented looks: what each look changes, and what it leaves alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node import survey
from gpq_agent.node.devices import gpu_probe
from gpq_agent.node.devices.devices import Devices
from gpq_agent.node.devices.gpu_probe import Probe, RawGpu

from tests.support.waiting import wait_until

A, B = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "ab")
Named = Callable[[str], int]


def gpu(uuid: str, number: int = 0, **fields: object) -> RawGpu:
    return RawGpu(uuid, number, "Stub", 80_000, 600, 0, [])._replace(**fields)


def devices(owner: str = "") -> Devices:
    """`owner`: the attempt that owns every process."""
    return Devices([], True, lambda _: owner, lambda _: "")


def states(judged: Devices) -> dict[str, str]:
    return {device.id: device.state for device in judged.current()}


@pytest.fixture
def named(tmp_path: Path) -> Iterator[Named]:
    """The pid of a process with this name."""
    started = []

    def start(name: str) -> int:
        program = tmp_path / name
        program.write_bytes(Path("/bin/sleep").read_bytes())
        program.chmod(0o755)
        process = subprocess.Popen([str(program), "600"])
        started.append(process)
        # Its files close on exec before the kernel knows its command line.
        wait_until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() != b"", f"{name} has begun")
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_memory_that_our_own_job_leaves_quarantines_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = devices()
    held = survey.Release(judged)
    ghost = Probe([gpu(A, used_mib=9000)])
    judged.looking.begun = float("inf")
    ended = wire.AttemptInfo(1, 1, "exited", exit={"code": 0})
    assert held.filter("1.1", ended, [A]).state == "running"
    judged._take(ghost)
    monkeypatch.setattr(survey, "RELEASE_AFTER", -1.0)
    assert held.filter("1.1", ended, [A]).state == "exited"  # not indefinitely
    judged._take(ghost)
    [told] = judged.current()
    assert told.state == "quarantined"
    assert told.reason.startswith("attempt 1.1 has ended, but the GPU is used by somebody: 8.8 GiB")


def test_the_end_of_a_job_waits_for_its_own_gpu_when_another_is_lost() -> None:
    judged = devices(owner="1.1")
    held = survey.Release(judged)
    judged.looking.begun = float("inf")
    ended = wire.AttemptInfo(1, 1, "exited", exit={"code": 0})
    assert held.filter("1.1", ended, [A]).state == "running"
    judged._take(Probe([gpu(A, processes=[(1, 5000)])], lost=[1]))
    assert held.filter("1.1", ended, [A]).state == "running"
    assert "GPU 1 is lost" in judged.notice()
    judged._take(Probe([gpu(A)], lost=[1]))
    assert held.filter("1.1", ended, [A]).state == "exited"


def test_a_gpu_that_is_partitioned_again_is_not_lost() -> None:
    judged = devices()
    judged._take(Probe([gpu(A), gpu(B, 1)]))
    judged._take(Probe([gpu(B, 1)], partitioned=[A]))
    assert states(judged) == {B: "ok"}
    assert f"{A}: partitioned (MIG), but without a MIG device" in judged.notice()
    judged._take(Probe([gpu("MIG-1", parent=A), gpu("MIG-2", parent=A), gpu(B, 1)], partitioned=[A]))
    judged._take(Probe([gpu("MIG-3", parent=A), gpu(B, 1)], partitioned=[A]))
    assert (states(judged), judged.notice()) == ({"MIG-3": "ok", B: "ok"}, "")
    judged._take(Probe([gpu(A), gpu(B, 1)]))
    assert states(judged) == {A: "ok", B: "ok"}
    judged._take(Probe([gpu("MIG-1", parent=A), gpu(B, 1)], partitioned=[A]))
    judged._take(Probe([gpu(B, 1)]))
    assert states(judged) == {"MIG-1": "lost", B: "ok"}, "its GPU is gone with it"


def test_a_desktop_and_an_mps_server_do_not_block_a_gpu(named: Named) -> None:
    desktop, server = named("Xorg"), named("nvidia-cuda-mps-server")
    judged = devices()
    judged._take(Probe([gpu(A, used_mib=3000, drawing=[(desktop, 2400)], processes=[(server, 30)])]))
    assert states(judged) == {A: "ok"}
    [told] = judged.current()
    assert [(one["pid"], one["role"]) for one in told.processes] == [(desktop, "desktop")]
    client = named("python")
    for _ in range(3):
        judged._take(Probe([gpu(A, processes=[(server, 30), (client, 900)])]))
    [told] = judged.current()
    assert (told.state, "python" in told.reason, "mps" in told.reason) == ("foreign", True, False)


def test_a_process_of_the_doctor_is_not_foreign(monkeypatch: pytest.MonkeyPatch, named: Named) -> None:
    monkeypatch.setenv(wire.ENV_TRIAL, "1")
    trial = named("python")
    judged = devices()
    judged._take(Probe([gpu(A, used_mib=9000, processes=[(trial, 8000)])]))
    [told] = judged.current()
    assert (told.state, told.processes) == ("ok", [])


def test_gpus_that_this_account_may_not_use_give_a_note_and_no_error() -> None:
    judged = devices()
    judged._take(Probe([gpu(A)], hidden=[1, 2]))
    assert (states(judged), judged.error) == ({A: "ok"}, "")
    assert judged.notice() == "GPUs 1, 2 are off limits to this account"


def test_hardware_without_a_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def card(name: str, vendor: str, kind: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")

    monkeypatch.setattr(gpu_probe, "PCI", str(tmp_path))
    card("1", gpu_probe.INTEL, "0x030000")
    assert gpu_probe.unused_hardware() == "", "it draws the screen"
    card("1", gpu_probe.INTEL, "0x038000")
    assert "support Intel GPUs yet" in gpu_probe.unused_hardware()
    card("2", gpu_probe.NVIDIA, "0x040300")
    assert "NVIDIA" not in gpu_probe.unused_hardware(), "its sound"
    card("3", gpu_probe.NVIDIA, "0x030200")
    assert gpu_probe.unused_hardware().startswith("1 NVIDIA GPU is in this server, but no driver answers")
