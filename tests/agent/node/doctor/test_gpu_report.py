"""The driver's part of `gpq doctor --gpu`: the real nvidia-ml-py on a compiled stub of NVML with a planted defect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node.devices import gpu_locks
from gpq_agent.node.devices.gpu_probe import RawGpu
from gpq_agent.node.doctor import errand_process, gpu_beside, gpu_facts, gpu_lines, gpu_looks, gpu_report

from tests.agent.node.harness import wait_until

FAKES = Path(__file__).resolve().parents[3] / "fakes"
FIRST, SECOND = (f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in (0, 1))
TORCH = {"torch": "2.11.0", "cuda": "13.0", "python": "3.12.0", "architectures": ["sm_80", "sm_90"]}
Plant = Callable[..., None]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libnvml")
    source = FAKES / "libnvml" / "nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return folder


@pytest.fixture
def plant(library: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Two healthy GPUs for every process that starts, except for what is planted: plant(X_ECC=1)."""

    def planted(**what: object) -> None:
        for name, value in what.items():
            monkeypatch.setenv(name, str(value))

    planted(LD_LIBRARY_PATH=library)
    return planted


def facts() -> dict[str, object]:
    return errand_process.run([sys.executable, "-m", gpu_facts.__name__], gpu_looks.environment(), 30.0)


def verdicts(mps: list[int] | None = None, torch: dict[str, object] | None = None) -> dict[str, wire.GpuLine]:
    made = gpu_lines.of_facts(facts(), torch or TORCH, mps or [])
    return {line.name: line for line in made}


def test_two_healthy_gpus_pass(plant: Plant) -> None:
    made = verdicts()
    assert {name: line.verdict for name, line in made.items()} == dict.fromkeys(made, "PASS")
    assert "driver 580.159 for CUDA 13.0" in made["versions"].figure
    assert made["idle memory"].figure == "GPU 0, 1: 601 MiB by v1, 1 MiB by v2, 600 MiB reserved"
    assert set(made) | {"looks by NVML", "looks by nvidia-smi", "same answers"} == set(wire.GPU_PARTS["driver"].names)


@pytest.mark.parametrize(
    ("name", "defect", "figure"),
    [
        ("persistence", {"X_PERSISTENCE": 0}, "off: every look"),
        ("idle memory", {"X_USED": 900}, "900 MiB by v2"),
        ("MIG", {"X_MIG": 1}, "without a device"),
        ("compute mode", {"X_MODE": 2}, "prohibited"),
        ("recovery action", {"X_RECOVERY": 1}, "asks for a reset"),
        ("ECC", {"X_ECC": 3}, "3 uncorrectable"),
        ("remapped rows", {"X_PENDING": 1}, "a reset is needed"),
        ("remapped rows", {"X_FAILED": 1}, "one remap failed"),
        ("architectures", {"X_MAJOR": 12}, "needs sm_120"),
        ("versions", {"X_CUDA": 12080}, "too old for torch"),
        ("ECC", {"X_HANDLE": 15}, "GPU 1: GPU is lost"),
        ("persistence", {"X_INIT": 999}, "NVML: Unknown Error"),
    ],
)
def test_a_planted_defect_is_a_fail(plant: Plant, name: str, defect: dict[str, int], figure: str) -> None:
    plant(**defect)
    line = verdicts()[name]
    assert (line.verdict, figure in line.figure) == ("FAIL", True), line


@pytest.mark.parametrize(("name", "variable"), [("graphics", "X_DRAWS"), ("MPS", "X_MPS")])
def test_processes_that_draw_or_share_are_named(plant: Plant, tmp_path: Path, name: str, variable: str) -> None:
    (tmp_path / "pids").write_text(f"{os.getpid()} 64\n")
    plant(**{variable: tmp_path / "pids"})
    line = verdicts()[name]
    assert (line.verdict, str(os.getpid()) in line.figure) == ("PASS", True)


def test_an_mps_server_is_recognised_by_its_name(plant: Plant, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cuda-mps-server"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    with subprocess.Popen([str(program), "60"]) as process:
        try:
            wait_until(lambda: process.pid in gpu_report.mps_servers(), "the name of the process")
        finally:
            process.kill()
    assert f"server {process.pid}" in verdicts(mps=[process.pid])["MPS"].figure


def test_what_a_gpu_does_not_know_is_skipped(plant: Plant) -> None:
    plant(X_NO_ECC=3)
    assert verdicts()["ECC"] == wire.GpuLine("ECC", "SKIP", "GPU 0, 1: Not Supported")
    made = verdicts(torch={"error": "exit 1: ModuleNotFoundError: No module named 'torch'"})
    assert (made["versions"].verdict, made["architectures"].verdict) == ("SKIP", "SKIP")
    assert verdicts(torch={**TORCH, "cuda": ""})["versions"].verdict == "FAIL", (
        "a torch for CPUs on a machine with GPUs"
    )


@pytest.mark.parametrize(
    ("architecture", "able"),
    [("sm_80", True), ("sm_89", False), ("sm_90", False), ("compute_80", True), ("sm_90a", False), ("", False)],
)
def test_which_kernels_run_on_which_gpu(architecture: str, able: bool) -> None:
    assert gpu_lines.runs_on([architecture], 8, 6) is able


def smi_sees(monkeypatch: pytest.MonkeyPatch, path: Path, **differently: object) -> None:
    """nvidia-smi reports the same two GPUs, but the first one differs."""
    gpu = {"name": "Stub", "total_mib": 81920, "used_mib": 1, "processes": []}
    path.write_text(json.dumps({"gpus": [{"uuid": FIRST, **gpu, **differently}, {"uuid": SECOND, **gpu}]}))
    monkeypatch.setenv("FAKE_NVML_STATE", str(path))
    monkeypatch.setenv("PATH", f"{FAKES / 'smi'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(gpu_looks, "LOOKS", 2)
    monkeypatch.setattr(gpu_looks, "SLOW", 60.0)  # seconds, while other tests run


def looks() -> dict[str, wire.GpuLine]:
    return {line.name: line for line in gpu_looks.both()}


def test_both_ways_to_look_see_the_same(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi_sees(monkeypatch, tmp_path / "smi.json")
    made = looks()
    assert {line.verdict for line in made.values()} == {"PASS"}, made
    assert made["looks by NVML"].figure.startswith("2 looks, median")


@pytest.mark.parametrize(
    ("differently", "figure"),
    [
        ({"name": "Other"}, f"name of {FIRST}: Stub by NVML, Other by nvidia-smi"),
        ({"total_mib": 40000}, f"memory of {FIRST}"),
        ({"uuid": "GPU-x"}, "only nvidia-smi shows GPU-x"),
        ({"processes": [{"pid": 7, "mib": 5}]}, f"processes of {FIRST}: [] by NVML, [7] by nvidia-smi"),
    ],
)
def test_answers_that_differ_are_a_fail(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differently: dict[str, object], figure: str
) -> None:
    smi_sees(monkeypatch, tmp_path / "smi.json", **differently)
    line = looks()["same answers"]
    assert (line.verdict, figure in line.figure) == ("FAIL", True), line


def test_a_slow_driver_and_a_failing_one_are_fails(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_looks, "LOOKS", 2)
    monkeypatch.setattr(gpu_looks, "SLOW", 0.5)
    plant(X_SLEEP=600)
    assert looks()["looks by NVML"].verdict == "FAIL"
    plant(X_SLEEP=0, X_RUN=999)
    line = looks()["looks by NVML"]
    assert (line.verdict, line.figure) == ("FAIL", "look 1: NVML: Unknown Error; NVML: Unknown Error")
    monkeypatch.setattr(gpu_looks, "LOOK_LIMIT", 1.0)
    plant(X_SLEEP=30000, X_RUN=0)
    assert looks()["looks by NVML"].figure == "look 1: no answer within 1 s"


HOLDER = """
import os, sys, time
with open(os.environ["X_PIDS"], "w") as stream:
    stream.write("{} {}".format(os.getpid() + int(sys.argv[1]), sys.argv[2]))
print("holding", flush=True)
time.sleep(60)
"""


def held(pids: Path, off: int, mib: int) -> list[wire.GpuLine]:
    command = [sys.executable, "-c", HOLDER, str(off), str(mib)]
    return gpu_looks.holder(command, {**os.environ, "X_PIDS": str(pids)}, FIRST)


def test_a_process_is_named_and_gone_when_it_is(plant: Plant, tmp_path: Path) -> None:
    plant(X_PIDS=tmp_path / "pids")
    seen, gone = held(tmp_path / "pids", 0, 2500)
    assert (seen.verdict, gone.verdict) == ("PASS", "PASS"), (seen, gone)
    assert "with 2500 MiB in look 1" in seen.figure


def test_a_process_that_is_unseen_too_small_or_still_there_is_a_fail(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_looks, "GONE_WITHIN", 1.0)
    plant(X_PIDS=tmp_path / "pids", X_GHOSTS=1)
    assert held(tmp_path / "pids", 1, 2500)[0].verdict == "FAIL"
    assert held(tmp_path / "pids", 0, 100)[0].verdict == "FAIL"
    seen, gone = held(tmp_path / "pids", 0, 2500)
    assert (seen.verdict, gone.verdict) == ("PASS", "FAIL")
    [seen, gone] = gpu_looks.holder([sys.executable, "-c", "raise MemoryError('planted')"], dict(os.environ), FIRST)
    assert (seen.verdict, seen.figure) == ("FAIL", "the test process did not get its memory: MemoryError: planted")
    assert gone.verdict == "SKIP"


WORKER = """
import os, time
print("working", flush=True)
while True:
    begin = time.monotonic()
    time.sleep(0.02)
    slow = os.path.exists("looking")
    print(begin, time.monotonic(), 95.0 if slow else 100.0, flush=True)
"""


@pytest.mark.parametrize(("cost", "verdict"), [(False, "PASS"), (True, "FAIL")])
def test_what_looks_cost_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost: bool, verdict: str) -> None:
    monkeypatch.setattr(gpu_beside, "PHASE", 0.5)
    marker = tmp_path / "looking"

    def looked(_: str) -> gpu_looks.GpuReading:
        if cost:
            marker.touch()
        return gpu_looks.GpuReading(0.0)

    plain = gpu_beside._phase

    def phase(seen_by: Callable[[str], gpu_looks.GpuReading] | None) -> tuple[float, float]:
        marker.unlink(missing_ok=True)
        return plain(seen_by)

    monkeypatch.setattr(gpu_beside, "_phase", phase)
    program = WORKER.replace('"looking"', repr(str(marker)))
    line = gpu_beside.beside([sys.executable, "-c", program], dict(os.environ), looked)
    assert (line.verdict, "100.0 products per second" in line.figure) == (verdict, True), line
    silent = gpu_beside.beside([sys.executable, "-c", "print('working')"], dict(os.environ), looked)
    assert (silent.verdict, silent.figure) == ("FAIL", "the test program reported no progress")
    broken = gpu_beside.beside([sys.executable, "-c", "raise MemoryError('planted')"], dict(os.environ), looked)
    assert broken.figure == "the test program did not start: MemoryError: planted"


def test_gpus_that_somebody_uses_are_left_alone(tmp_path: Path) -> None:
    def seen(uuid: str, used: int = 600, *pids: int, problem: str = "") -> gpu_looks.GpuReading:
        return gpu_looks.GpuReading(0.1, [RawGpu(uuid, 0, "Stub", 81920, used, 0, [(pid, 5) for pid in pids], problem)])

    own = f"GPU-{os.getpid():08d}-0000-0000-0000-000000000000"
    free = gpu_report.free_gpus(seen(own))
    assert (free.uuids, free.why) == ([own], "")
    assert "held by" in gpu_report.free_gpus(seen(own)).why, "two reports do not share one"
    gpu_locks.close(free.locks)
    for look, why in (
        (seen(own, 600, 77), "pid 77 uses it"),
        (seen(own, 20000), "20000 MiB are in use"),
        (seen(own, problem="lost"), "lost"),
        (gpu_looks.GpuReading(0.1), "no NVIDIA GPU here"),
        (gpu_looks.GpuReading(0.1, error="no answer"), "no answer"),
    ):
        assert why in gpu_report.free_gpus(look).why


def test_an_interpreter_that_ends_early_loses_only_its_checks(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\necho \'gpq:{"name": "events", "verdict": "PASS", "figure": "1", "seconds": 1}\'\n'
        "echo 'Segmentation fault' >&2; exit 139\n"
    )
    python.chmod(0o755)
    made = {line.name: line for line in gpu_report.trained("kernels", str(python), {}, ["cpu"])}
    assert made["events"].verdict == "PASS"
    assert (made["wrong names"].verdict, made["wrong names"].figure) == ("FAIL", "exit 139: Segmentation fault")
    [line, *_] = gpu_report.trained("kernels", str(tmp_path / "none"), {}, ["cpu"])
    assert (line.verdict, "cannot run" in line.figure) == ("FAIL", True)


def test_a_missing_torch_is_not_a_fault_of_the_gpu(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    made = gpu_report.trained("replicas", str(python), {"PYTHONPATH": gpu_report.library()}, ["cpu"])
    assert {(line.verdict, "No module named 'torch'" in line.figure) for line in made} == {("SKIP", True)}
