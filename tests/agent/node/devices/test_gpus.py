"""GPUs, through a fake NVML, and through a fake nvidia-smi that a server may have instead."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml
import pytest
from gpq_agent import wire
from gpq_agent.node.devices import gpu_probe, nvml

from tests.agent.node.harness import NodeAgent, wait_until
from tests.support.figures import Figures

FAKES = Path(__file__).resolve().parents[3] / "fakes"
A, B, C = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abc")


class Driver:
    """The state that the fakes read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: dict[str, Any] = {"mode": "ok", "driver": "550.54.14", "gpus": []}
        self.set_gpus({"uuid": A}, {"uuid": B})

    def set_gpus(self, *found: dict[str, Any], mode: str = "ok") -> None:
        self.state.update(gpus=list(found), mode=mode)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(self.state))
        temporary.replace(self.path)

    def set_mode(self, mode: str) -> None:
        self.set_gpus(*self.state["gpus"], mode=mode)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "nvml.json")


@pytest.fixture(params=["nvml", "smi"])
def node(request: pytest.FixtureRequest, agent: Callable[..., NodeAgent], driver: Driver) -> NodeAgent:
    return start_agent(agent, driver, request.param)


@pytest.fixture
def nvml_node(agent: Callable[..., NodeAgent], driver: Driver) -> NodeAgent:
    return start_agent(agent, driver, "nvml")


@pytest.fixture
def smi_node(agent: Callable[..., NodeAgent], driver: Driver) -> NodeAgent:
    return start_agent(agent, driver, "smi")


def start_agent(agent: Callable[..., NodeAgent], driver: Driver, way: str, *options: str) -> NodeAgent:
    env = {"FAKE_NVML_STATE": str(driver.path)}
    if way == "smi":
        env["PATH"] = f"{FAKES / 'smi'}{os.pathsep}{os.environ['PATH']}"
    path = FAKES / ("nvml" if way == "nvml" else "no_nvml")
    locks = driver.path.parent / "locks"
    locks.mkdir(exist_ok=True)
    return agent("--probe-limit", "6", "--probe-period", "0.3", "--locks", str(locks), *options, env=env, path=[path])


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    # which returns in the middle of the exec, when the kernel shows no command line yet
    wait_until(Path(f"/proc/{process.pid}/cmdline").read_bytes, "it runs")
    yield process
    process.kill()
    process.wait()


def devices(node: NodeAgent) -> dict[str, dict[str, Any]]:
    return {device["id"]: device for device in node.ask("probe")["devices"]}


def devices_seen(node: NodeAgent) -> dict[str, dict[str, Any]]:
    """After a short watch, because watching makes the agent look again."""
    news = node.ask("watch", offsets={}, wait=0.3, seen=node.ask("watch", offsets={}, wait=0, seen="")["digest"])
    return {device["id"]: device for device in news["devices"]}


def wait_for_device(node: NodeAgent, name: str, state: str) -> dict[str, Any]:
    """Watching makes the agent look again."""

    def look() -> dict[str, Any] | None:
        found = devices_seen(node)
        return found[name] if name in found and found[name]["state"] == state else None

    return wait_until(look, f"{name} to be {state}")


def test_healthy_gpus_are_listed_by_uuid(node: NodeAgent, driver: Driver) -> None:
    reply = node.ask("hello")
    assert [device["id"] for device in reply["devices"]] == [A, B]
    assert [device["index"] for device in reply["devices"]] == [0, 1]
    first = reply["devices"][0]
    assert (first["kind"], first["type"], first["memory_mib"]) == ("cuda", "NVIDIA A100-SXM4-80GB", 81920)
    assert (first["state"], first["reason"], first["processes"]) == ("ok", "", [])
    probe = node.ask("probe")
    assert (probe["driver"], probe["error"]) == ("550.54.14", "")


@pytest.mark.row("37")
def test_a_job_gets_the_uuids_of_its_gpus_whatever_their_order(
    node: NodeAgent, driver: Driver, figures: Figures
) -> None:
    driver.set_gpus({"uuid": C}, {"uuid": B}, {"uuid": A})
    wait_for_device(node, C, "ok")
    key = node.start(1, ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $GPQ_DEVICES"], devices=[A, C])
    assert node.ended(key)["code"] == 0
    figures.exactly("what it is given", node.log(key).decode().split(), [f"{A},{C}", "PCI_BUS_ID", f"{A},{C}"])
    assert devices(node)[A]["index"] == 2


def test_a_gpu_that_falls_off_the_bus_is_lost_and_the_others_stay(nvml_node: NodeAgent, driver: Driver) -> None:
    assert devices(nvml_node)[A]["state"] == "ok"
    for way in ("handle", "query"):
        driver.set_gpus({"uuid": A, "lost": way}, {"uuid": B})
        lost = wait_for_device(nvml_node, A, "lost")
        assert "fell off the bus" in lost["reason"]
        assert lost["memory_mib"] == 81920
        assert devices(nvml_node)[B]["state"] == "ok"
        reply = nvml_node.try_ask("start", order=nvml_node.order(1, ["true"], devices=[A]))
        assert f"{A} is lost" in reply["error"]
        driver.set_gpus({"uuid": A}, {"uuid": B})
        wait_for_device(nvml_node, A, "ok")


def test_nvidia_smi_that_names_a_lost_gpu_leaves_the_others(smi_node: NodeAgent, driver: Driver) -> None:
    assert devices(smi_node)[A]["state"] == "ok"
    driver.set_gpus({"uuid": A, "lost": "query"}, {"uuid": B})
    wait_for_device(smi_node, A, "lost")
    assert devices(smi_node)[B]["state"] == "ok"
    driver.set_gpus({"uuid": A, "lost": "handle"}, {"uuid": B})  # then it reports nothing about all GPUs at once

    def words() -> bool:
        return bool(devices_seen(smi_node)) and "Unable to determine" in smi_node.ask("probe")["notice"]

    wait_until(words, "its words")
    assert [devices(smi_node)[name]["state"] for name in (A, B)] == ["lost", "ok"]


def test_a_driver_that_hangs_degrades_the_gpus_and_blocks_nothing(node: NodeAgent, driver: Driver) -> None:
    assert set(devices(node)) == {A, B}
    driver.set_mode("hang")
    reason = wait_for_device(node, A, "degraded")["reason"]
    assert re.search(r"did not answer within \d+ s, and gpq still waits", reason)
    assert node.ask("ping")["ok"]
    assert "is degraded" in node.try_ask("start", order=node.order(1, ["true"], devices=[A]))["error"]
    driver.set_mode("ok")
    wait_for_device(node, A, "ok")


def test_a_driver_that_hangs_from_the_first_moment_only_delays_the_answer(
    agent: Callable[..., NodeAgent], driver: Driver
) -> None:
    driver.set_mode("hang")
    node = start_agent(agent, driver, "nvml", "--probe-limit", "2")
    hello, probe = node.send("hello"), node.send("probe")
    assert node.ask("ping")["ok"]
    assert node.reply(hello)["devices"] == []
    assert "still waits" not in node.reply(probe)["error"]
    driver.set_mode("ok")
    wait_for_device(node, A, "ok")


def test_a_job_goes_on_and_ends_while_the_driver_hangs(nvml_node: NodeAgent, driver: Driver, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = f"while [ ! -e {gate} ]; do sleep 0.05; done; exit 3"
    key = nvml_node.start(1, ["sh", "-c", command], devices=[A])
    nvml_node.wait_for(key, "running")
    driver.set_mode("hang")
    wait_for_device(nvml_node, A, "degraded")
    gate.touch()
    assert nvml_node.ended(key)["code"] == 3


@pytest.mark.parametrize("mode", ["mismatch", "mismatch-later"])
def test_an_updated_driver_degrades_every_gpu(nvml_node: NodeAgent, driver: Driver, mode: str) -> None:
    assert devices(nvml_node)[A]["state"] == "ok"
    driver.set_mode(mode)
    for name in (A, B):
        assert wait_for_device(nvml_node, name, "degraded")["reason"] == gpu_probe.MISMATCH


def test_an_updated_driver_is_seen_through_nvidia_smi_too(smi_node: NodeAgent, driver: Driver) -> None:
    assert devices(smi_node)[A]["state"] == "ok"
    driver.set_mode("mismatch")
    assert wait_for_device(smi_node, A, "degraded")["reason"] == gpu_probe.MISMATCH


@pytest.mark.parametrize("way", ["nvml", "smi"])
def test_without_a_driver_there_are_no_gpus_and_slots_step_in(
    agent: Callable[..., NodeAgent], driver: Driver, way: str
) -> None:
    driver.set_mode("no-driver")
    cores = len(os.sched_getaffinity(0))
    reply = start_agent(agent, driver, way, "--slots", "auto").ask("hello")
    assert [device["id"] for device in reply["devices"]] == [f"slot-{index}" for index in range(cores)]
    assert start_agent(agent, driver, way).ask("hello")["devices"] == []


def test_with_a_gpu_no_slot_steps_in(agent: Callable[..., NodeAgent], driver: Driver) -> None:
    reply = start_agent(agent, driver, "nvml", "--slots", "auto").ask("hello")
    assert [device["id"] for device in reply["devices"]] == [A, B]


def test_a_foreign_process_on_a_gpu_is_named_and_left_alone(
    node: NodeAgent, driver: Driver, stranger: subprocess.Popen[bytes]
) -> None:
    process = {"pid": stranger.pid, "mib": 5000}
    driver.set_gpus({"uuid": A, "used_mib": 5400, "processes": [process]}, {"uuid": B})
    found = wait_for_device(node, A, "foreign")
    user = found["processes"][0]["user"]
    assert user
    assert re.fullmatch(rf"used by {user} \(sleep, 4\.9 GiB, since \d\d:\d\d\)", found["reason"])
    assert found["processes"][0]["command"] == "sleep 600"
    assert abs(found["processes"][0]["since"] - time.time()) < 600
    assert found["processes"][0]["attempt"] == ""
    assert devices(node)[B]["state"] == "ok"
    reply = node.try_ask("start", order=node.order(1, ["true"], devices=[A]))
    assert f"{A} is foreign: used by {user} (sleep" in reply["error"]
    assert (reply["kind"], reply["taken"]) == ("busy", True)
    node.ended(node.start(2, ["true"], devices=[B]))
    assert stranger.poll() is None
    driver.set_gpus({"uuid": A}, {"uuid": B})
    wait_for_device(node, A, "ok")


def test_memory_without_a_visible_process_is_somebody_elses(nvml_node: NodeAgent, driver: Driver) -> None:
    driver.set_gpus({"uuid": A, "used_mib": 20_000}, {"uuid": B, "used_mib": 500})
    assert "20 GiB are in use, but by no visible process" in wait_for_device(nvml_node, A, "foreign")["reason"]
    assert devices(nvml_node)[B]["state"] == "ok"


def test_a_process_that_is_only_seen_by_number_is_foreign(nvml_node: NodeAgent, driver: Driver) -> None:
    driver.set_gpus({"uuid": A, "processes": [{"pid": 2**22 + 5, "mib": None}]})
    assert "not visible from here" in wait_for_device(nvml_node, A, "foreign")["reason"]


def test_our_own_processes_are_recognised_even_without_their_mark(node: NodeAgent, driver: Driver) -> None:
    key = node.start(1, ["env", "-i", "/bin/sh", "-c", "sleep 600 & wait"], devices=[A])
    wait_until(lambda: node.attempts()[key]["processes"] == 2, "the tree")
    pid = node.wait_for(key, "running")["pid"]
    driver.set_gpus({"uuid": A, "used_mib": 900, "processes": [{"pid": pid, "mib": 700}]}, {"uuid": B})

    def attributed() -> bool:
        node.ask("watch", offsets={}, wait=0.2, seen=node.ask("watch", offsets={}, wait=0, seen="")["digest"])
        return [one["attempt"] for one in devices(node)[A]["processes"]] == [key]

    wait_until(attributed, "the process to be known as ours")
    assert devices(node)[A]["state"] == "ok"


def test_a_job_on_a_gpu_that_is_not_its_own_is_reported(nvml_node: NodeAgent, driver: Driver) -> None:
    key = nvml_node.start(1, ["sleep", "600"], devices=[A])
    pid = nvml_node.wait_for(key, "running")["pid"]
    driver.set_gpus({"uuid": A}, {"uuid": B, "processes": [{"pid": pid, "mib": 700}]})
    assert f"attempt {key} (700 MiB, not assigned to it)" in wait_for_device(nvml_node, B, "foreign")["reason"]


def test_an_end_is_not_reported_before_the_gpu_is_free(nvml_node: NodeAgent, driver: Driver, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    key = nvml_node.start(1, ["sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done; exit 2"], devices=[A])
    pid = nvml_node.wait_for(key, "running")["pid"]
    driver.set_gpus({"uuid": A, "used_mib": 9000, "processes": [{"pid": pid, "mib": 8000}]}, {"uuid": B})
    gate.touch()
    wait_until((nvml_node.folder(key) / wire.EXIT).exists, "the exit record")
    for _ in range(3):  # looks at the driver that still show it
        nvml_node.ask("watch", offsets={}, wait=0.4, seen=nvml_node.ask("watch", offsets={}, wait=0, seen="")["digest"])
        assert nvml_node.attempts()[key]["state"] == "running"
    assert "still uses" in nvml_node.try_ask("start", order=nvml_node.order(2, ["true"], devices=[A]))["error"]
    assert "not free yet" in nvml_node.try_ask("forget", attempt=key)["error"]
    driver.set_gpus({"uuid": A, "used_mib": 9000}, {"uuid": B})  # the process is gone, its memory is not
    threading.Event().wait(1.5)
    assert nvml_node.attempts()[key]["state"] == "running"
    driver.set_gpus({"uuid": A}, {"uuid": B})
    assert nvml_node.ended(key)["code"] == 2
    nvml_node.ended(nvml_node.start(2, ["true"], devices=[A]))


@pytest.mark.row("34")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [({"broken": True}, "NVML: Unknown Error"), ({"remapped": [0, 1, 1, 0]}, gpu_probe.REMAP)],
    ids=["error", "remap"],
)
def test_a_faulty_gpu_is_quarantined_alone_says_when_the_next_look_is_and_comes_back(
    nvml_node: NodeAgent, driver: Driver, fault: dict[str, Any], reason: str, figures: Figures
) -> None:
    assert devices(nvml_node)[A]["state"] == "ok"
    driver.set_gpus({"uuid": A, **fault}, {"uuid": B})
    wait_for_device(nvml_node, A, "quarantined")
    sick = wait_until(lambda: (found := devices(nvml_node)[A])["next_probe"] and found, "when it is looked at again")
    assert sick["reason"] == reason
    figures.at_most("until it is looked at again", sick["next_probe"], 1.8)
    assert wait_until(lambda: devices(nvml_node)[A]["age"] > 0.5, "it to grow older")
    refused = nvml_node.try_ask("start", order=nvml_node.order(1, ["true"], devices=[A]))
    figures.exactly("start on it", (refused["kind"], refused["taken"]), ("busy", True))
    nvml_node.ended(nvml_node.start(2, ["true"], devices=[B]))
    driver.set_gpus({"uuid": A}, {"uuid": B})
    assert wait_for_device(nvml_node, A, "ok")["age"] == 0


@pytest.mark.row("35")
def test_a_job_on_a_gpu_that_is_lost_says_so_and_others_run(
    nvml_node: NodeAgent, driver: Driver, tmp_path: Path, figures: Figures
) -> None:
    wait = f"while [ ! -e {tmp_path / 'gate'} ]; do sleep 0.05; done"
    hit = nvml_node.start(1, ["sh", "-c", f"{wait}; exit 1"], devices=[A])
    other = nvml_node.start(2, ["sh", "-c", f"{wait}; exit 4"], devices=[B])
    driver.set_gpus({"uuid": A, "lost": "query"}, {"uuid": B})
    wait_for_device(nvml_node, A, "lost")
    nvml_node.wait_for(other, "running")
    (tmp_path / "gate").touch()
    figures.exactly("its end", nvml_node.ended(hit)["note"], f"GPU lost: {A}")
    record = nvml_node.ended(other)
    assert (record["code"], record["note"]) == (4, "")


@pytest.mark.row("36")
def test_a_foreign_process_next_to_our_job_is_a_warning_and_blocks_the_gpu_afterwards(
    nvml_node: NodeAgent, driver: Driver, stranger: subprocess.Popen[bytes], tmp_path: Path, figures: Figures
) -> None:
    key = nvml_node.start(1, ["sh", "-c", f"while [ ! -e {tmp_path / 'gate'} ]; do sleep 0.05; done"], devices=[A])
    pid = nvml_node.wait_for(key, "running")["pid"]
    both = [{"pid": pid, "mib": 700}, {"pid": stranger.pid, "mib": 300}]
    driver.set_gpus({"uuid": A, "used_mib": 1000, "processes": both}, {"uuid": B})
    warned = wait_until(lambda: devices_seen(nvml_node)[A]["reason"] and devices(nvml_node)[A], "the warning")
    assert warned["state"] == "ok"
    assert warned["reason"].startswith("also used by ")
    (tmp_path / "gate").touch()
    driver.set_gpus({"uuid": A, "used_mib": 300, "processes": both[1:]}, {"uuid": B})
    assert nvml_node.ended(key)["code"] == 0
    assert devices(nvml_node)[A]["state"] == "foreign"
    figures.exactly("strangers killed", stranger.poll(), None)


def test_an_implausible_utilisation_is_unknown(node: NodeAgent, driver: Driver) -> None:
    driver.set_gpus({"uuid": A, "utilisation": 37100}, {"uuid": C, "utilisation": 42})
    wait_for_device(node, C, "ok")
    assert devices(node)[A]["utilisation"] is None
    assert devices(node)[C]["utilisation"] == 42


def test_mig_devices_stand_for_their_gpu(node: NodeAgent, driver: Driver) -> None:
    parts = [
        {"uuid": f"MIG-{n}", "name": "NVIDIA A100 MIG 3g.40gb", "profile": "3g.40gb", "total_mib": 40960, "used_mib": 0}
        for n in (1, 2)
    ]
    driver.set_gpus({"uuid": A, "mig": parts}, {"uuid": B, "mig": None})
    wait_for_device(node, "MIG-1", "ok")
    found = devices(node)
    assert {name for name, device in found.items() if device["state"] == "ok"} == {"MIG-1", "MIG-2", B}
    assert found["MIG-2"]["memory_mib"] == 40960
    assert found["MIG-2"]["utilisation"] is None
    key = node.start(1, ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], devices=["MIG-2"])
    node.ended(key)
    assert node.log(key) == b"MIG-2\n"


def fake_nvml() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_pynvml", FAKES / "nvml" / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def used_names() -> set[str]:
    """Every attribute of NVML that the agent touches."""
    tree = ast.parse(inspect.getsource(nvml))
    attributes = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nvml"
    }
    assert len(attributes) > 15
    return attributes


@pytest.mark.parametrize("name", sorted(used_names()))
def test_the_fake_nvml_is_the_real_one_in_name_value_and_signature(name: str) -> None:
    real, fake = getattr(pynvml, name), getattr(fake_nvml(), name)
    if inspect.isclass(real):
        assert inspect.isclass(fake)
        assert issubclass(fake, Exception) == issubclass(real, Exception)
    elif callable(real):
        names = [list(inspect.signature(function).parameters.values()) for function in (real, fake)]
        assert [(one.name, one.kind, one.default) for one in names[0]] == [
            (one.name, one.kind, one.default) for one in names[1]
        ]
    else:
        assert fake == real


def test_the_fake_nvml_has_the_structs_and_errors_of_the_real_one() -> None:
    fake = fake_nvml()
    for struct in ("c_nvmlMemory_t", "c_nvmlUtilization_t"):
        assert [name for name, *_ in getattr(fake, struct)._fields_] == [
            name for name, *_ in getattr(pynvml, struct)._fields_
        ]
    for code in (15, 18, 12, 999, 1):
        real_error, fake_error = pynvml.NVMLError(code), fake.NVMLError(code)
        assert (fake_error.value, str(fake_error)) == (real_error.value, str(real_error))
    assert type(fake.NVMLError(15)).__name__ == type(pynvml.NVMLError(15)).__name__
    with pytest.raises(fake.NVMLError) as caught:
        fake.nvmlDeviceGetCount()
    assert caught.value.value == pynvml.NVML_ERROR_UNINITIALIZED


def test_the_real_library_without_a_driver_means_no_gpus() -> None:
    """In a separate process, like the agent. On a machine with a GPU it must find that GPU."""
    code = "import json, pynvml; from gpq_agent.node.devices import looking; print(json.dumps(looking.probe(pynvml)))"
    home = str(Path(wire.__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found, _, error, *_ = json.loads(done.stdout)
    if not os.path.exists("/dev/nvidiactl"):
        assert (found, error) == ([], "")
    else:
        assert found or error
