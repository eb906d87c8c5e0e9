"""Drivers of five branches with the oldest and the newest nvidia-ml-py that gpq allows, in each condition that occurs
in a lab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpq_agent.node.devices.gpu_probe import BANNED, shared_memory_mib

from gpq.connectors.bundle import bundle
from tests.agent.node.harness import NodeAgent, interpreters

FAKES = Path(__file__).resolve().parents[2] / "fakes"
ROOT = FAKES.parents[1]
OLDEST = Path(sys.prefix, "nvidia-ml-py-oldest")  # the Makefile installs it there
BRANCHES = [470, 535, 550, 570, 580]
FIRST, SECOND = (f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in (0, 1))
SLICES = [f"MIG-0000000{number}-0000-0000-0000-000000000000" for number in (8, 9)]
TOTAL = 80 << 10
USER = os.getpid()

Seen = dict[str, list[Any]]  # by UUID: problem, MiB, pids that compute, pids that only draw


def both(problem: str = "", total: int = TOTAL) -> Seen:
    return {uuid: [problem, total, [], []] for uuid in (FIRST, SECOND)}


def with_first(*first: Any) -> Seen:
    return {**both(), FIRST: list(first)}


# The environment of the stub, and what a look by NVML reports.
CONDITIONS: dict[str, tuple[dict[str, object], Seen]] = {
    "healthy": ({}, both()),
    "one lost": ({"X_HANDLE": 15}, {FIRST: ["", TOTAL, [], []]}),
    "one sick": ({"X_RECOVERY": 1}, both()),
    "not permitted": ({"X_HANDLE": 4}, {FIRST: ["", TOTAL, [], []]}),
    "not supported": ({"X_MEM": 3, "X_RUN": 3}, both(total=shared_memory_mib())),
    "slow": ({"X_SLEEP": 300}, both()),
    "MIG": (
        {"X_MIG": 1, "X_SLICES": 2},
        {**{one: ["", TOTAL // 2, [], []] for one in SLICES}, SECOND: ["", TOTAL, [], []]},
    ),
    "MIG without slices": ({"X_MIG": 1}, {SECOND: ["", TOTAL, [], []]}),
    "MPS": ({"X_MPS": "pids"}, with_first("", TOTAL, [USER], [])),
    "compositor": ({"X_DRAWS": "pids"}, with_first("", TOTAL, [], [USER])),
    "prohibited": ({"X_MODE": 2}, both(BANNED)),
}
# What a fake nvidia-smi reports in the same condition. It shows nothing about processes that draw, nor about what the
# driver asks for.
GPU = {"name": "Stub", "total_mib": TOTAL, "processes": []}
PARTS = [{"uuid": one, "profile": "3g.40gb"} for one in SLICES]
BY_SMI: dict[str, list[dict[str, Any]]] = {
    "healthy": [{}, {}],
    "one lost": [{}, {"lost": "handle"}],
    "one sick": [{}, {}],
    "not permitted": [{}],
    "not supported": [{"total_mib": "[N/A]"}, {"total_mib": "[N/A]"}],
    "slow": [{}, {}],
    "MIG": [{"mig": PARTS}, {}],
    "MIG without slices": [{"mig": []}, {}],
    "MPS": [{"processes": [{"pid": USER, "mib": 64}]}, {}],
    "compositor": [{}, {}],
    "prohibited": [{"mode": "Prohibited"}, {"mode": "Prohibited"}],
}


@pytest.fixture(scope="session", params=BRANCHES)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """Branch, and folder of its library."""
    return request.param, library_of(request.param, tmp_path_factory.mktemp(f"libnvml-{request.param}"))


def library_of(branch: int, folder: Path) -> Path:
    """The folder, with the stub of that branch."""
    source = FAKES / "libnvml" / "nvml.c"
    command = ["cc", "-shared", "-fPIC", f"-DBRANCH={branch}", "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run([*command, str(source)], check=True)
    return folder


@pytest.mark.parametrize("binding", ["oldest", "newest"])
def test_the_right_devices_are_offered(driver: tuple[int, Path], binding: str, tmp_path: Path) -> None:
    branch, library = driver
    (tmp_path / "pids").write_text(f"{USER} 64\n")
    made = looks(library, OLDEST if binding == "oldest" else None, tmp_path)
    by_smi = branch < 510 and binding == "oldest"  # it cannot ask this driver which processes use a GPU
    assert {look["driver"] for look in made.values()} == {"by nvidia-smi" if by_smi else f"{branch}.159"}
    wanted = {name: seen for name, (_, seen) in CONDITIONS.items()}
    if by_smi:
        wanted["compositor"] = both()
    if branch >= 570:
        asks = "the driver asks for a reset of this GPU (nvidia-smi --gpu-reset)"
        wanted["one sick"] = with_first(asks, TOTAL, [], [])
    assert {name: seen(look) for name, look in made.items()} == wanted
    assert {name: look["error"] for name, look in made.items()} == dict.fromkeys(made, "")
    assert made["MIG"]["partitioned"] == made["MIG without slices"]["partitioned"] == [FIRST]
    if by_smi:
        assert "GPU is lost" in made["one lost"]["notice"]
    else:
        assert (made["one lost"]["lost"], made["not permitted"]["hidden"]) == ([1], [1])


def looks(library: Path, binding: Path | None, folder: Path) -> dict[str, dict[str, Any]]:
    conditions = {}
    for number, (name, (planted, _)) in enumerate(CONDITIONS.items()):
        environment = {key: str(folder / value) if value == "pids" else str(value) for key, value in planted.items()}
        state = folder / f"smi-{number}.json"
        uuids = (FIRST, SECOND)
        gpus = [{"uuid": uuid, **GPU, **more} for uuid, more in zip(uuids, BY_SMI[name], strict=False)]
        state.write_text(json.dumps({"driver": "by nvidia-smi", "gpus": gpus}))
        conditions[name] = {**environment, "FAKE_NVML_STATE": str(state)}
    if binding is not None:
        assert (binding / "pynvml.py").exists(), f"{binding} is missing: make installs it"
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.node.gpu_matrix"],
        input=json.dumps(conditions),
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "PATH": f"{FAKES / 'smi'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, [binding, ROOT, ROOT / "agent"]))),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    made: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return made


def seen(look: dict[str, Any]) -> Seen:
    return {
        uuid: [problem, total, [pid for pid, _ in computing], [pid for pid, _ in drawing]]
        for uuid, _, _, total, _, _, computing, problem, _, drawing, _ in look["gpus"]
    }


def test_a_slow_driver_is_slow_and_not_dead(agent: Callable[..., NodeAgent], tmp_path: Path) -> None:
    """Each look takes three times as long as an answer may take at first."""
    (tmp_path / "locks").mkdir()
    options = ["--probe-limit", "1", "--probe-period", "0.3", "--locks", str(tmp_path / "locks"), "--visible", "index"]
    env = {"LD_LIBRARY_PATH": str(library_of(550, tmp_path)), "X_SLEEP": "3500"}
    node = agent(*options, env=env)
    probe = node.send("probe")
    assert node.ask("hello")["devices"] == [], "nothing is known yet, and that is an answer"
    told = node.reply(probe)
    assert ([one["state"] for one in told["devices"]], told["error"]) == (["ok", "ok"], "")
    assert "persistence mode keeps the driver initialised" in told["notice"]
    key = node.start(1, ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES $GPQ_DEVICES"], devices=[SECOND])
    assert node.ended(key)["code"] == 0
    assert node.log(key).decode().split() == ["1", SECOND]
    assert node.ask("probe")["error"] == ""


@pytest.mark.parametrize("python", [sys.executable, *interpreters()])
def test_the_binding_travels_with_the_agent(python: str, tmp_path: Path) -> None:
    """For servers that have nothing but Python."""
    for path, text in json.loads(zlib.decompress(bundle().archive)).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    program = "from gpq_agent.node.devices import looking; b = looking.binding(); print(b.__name__, len(looking.probe(b).gpus))"
    env = {"PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(library_of(580, tmp_path))}
    done = subprocess.run([python, "-S", "-B", "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("gpq_agent.node.pynvml 2\n", "")
