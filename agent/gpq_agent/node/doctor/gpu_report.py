"""`gpq doctor --gpu` on the server itself: what the driver and torch say, and a trial of each GPU
that nobody uses. gpq holds their locks in the meantime.

`python -m gpq_agent.node.doctor.gpu_report` reads {"python", "env"} from stdin and prints
{"lines"}.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List, Tuple

from gpq_agent.node.devices import cuda_trial, gpu_locks
from gpq_agent.node.devices.gpu_probe import LOST
from gpq_agent.node.doctor import errand_process, gpu_facts, gpu_lines
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.wire import GpuLine

FACTS_LIMIT = 20.0  # seconds, as all limits. Together they are below wire.GPU_LIMIT
TORCH_LIMIT = 25.0
LOOK_LIMIT = 12.0
TRIAL_LIMIT = 45.0
# share of a GPU's memory that may be in use without a visible process, because drivers keep some
IN_USE = 0.05

LOOK_AT_TORCH = """
import json, platform
import torch
try:
    architectures = torch.cuda.get_arch_list()
except Exception:
    architectures = []
print("gpq:" + json.dumps({"python": platform.python_version(), "torch": str(torch.__version__),
    "cuda": str(torch.version.cuda or ""), "architectures": architectures}))
"""


def lines(python: str, env: Dict[str, str]) -> List[GpuLine]:
    """`python`: interpreter of scripts. `env`: variables of the jobs."""
    facts = _reply(FACTS_LIMIT)
    torch = errand_process.run(
        [python, "-c", LOOK_AT_TORCH], {**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, TORCH_LIMIT
    )
    return [*gpu_lines.of_facts(facts, torch, mps_servers()), trial()]


def _reply(limit: float, *arguments: str) -> Dict[str, Any]:
    """What `gpu_facts` prints, in its own process, because a faulty driver may never answer."""
    return errand_process.run(
        [sys.executable, "-m", gpu_facts.__name__, *arguments], dict(os.environ), limit
    )


def mps_servers() -> List[int]:
    """Pids of the processes of NVIDIA's multi-process service."""
    pids = []
    for entry in os.listdir("/proc"):
        try:
            with open("/proc/{}/comm".format(entry), encoding="utf-8", errors="replace") as stream:
                if entry.isdigit() and stream.read().startswith("nvidia-cuda-mps"):
                    pids.append(int(entry))
        except OSError:
            continue
    return pids


def trial() -> GpuLine:
    """CUDA writes to the memory of each GPU that nobody uses, of all at the same time."""
    look = _reply(LOOK_LIMIT, "look")
    if look.get("error"):
        return GpuLine("trial", "FAIL", look["error"], fix=gpu_lines.DRIVER_FIX)
    rows = [(str(number), {"error": LOST}) for number in look["lost"]]
    if not look["gpus"] and not rows:
        return GpuLine("trial", "SKIP", look["notice"] or "no NVIDIA GPU here")
    begin = time.monotonic()
    free, facts = free_gpus(look["gpus"])
    try:
        processes = {uuid: cuda_trial.begin(uuid) for uuid in free}
        for uuid, process in processes.items():
            facts[uuid] = _fact(process, max(begin + TRIAL_LIMIT - time.monotonic(), 0.1))
    finally:
        gpu_locks.close([lock for locks in free.values() for lock in locks])
    rows += [(_number(gpu), facts[gpu["uuid"]]) for gpu in look["gpus"]]
    line = gpu_lines.over_gpus("trial", rows, lambda judgement: judgement)
    if any(process.returncode == cuda_trial.NO_LIBRARY for process in processes.values()):
        line = line._replace(fix=gpu_lines.LIBRARY_FIX)
    return line._replace(seconds=round(time.monotonic() - begin, 1))


def _number(gpu: Dict[str, Any]) -> str:
    return "{} ({})".format(gpu["number"], gpu["uuid"]) if gpu["parent"] else str(gpu["number"])


def _fact(process: "subprocess.Popen[bytes]", limit: float) -> gpu_facts.Fact:
    """The verdict on one GPU, as gpu_lines judges it."""
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver can keep it from ending
            process.communicate(timeout=1.0)
        return {"value": (False, "CUDA did not answer within {:.0f} s".format(TRIAL_LIMIT))}
    if process.returncode == cuda_trial.USABLE:
        return {"value": (True, "CUDA wrote to its memory")}
    words = output.decode("utf-8", "replace").partition("\n")[0]
    if process.returncode == cuda_trial.BUSY:
        return {"unsupported": words}
    return {"value": (False, words or "exit {}".format(process.returncode))}


def free_gpus(
    gpus: List[Dict[str, Any]],
) -> Tuple[Dict[str, List[int]], Dict[str, gpu_facts.Fact]]:
    """The GPUs that nobody uses, by UUID, with their locks, so that no gpq starts a job there in
    the meantime. For each of the others, why not."""
    free: Dict[str, List[int]] = {}
    facts: Dict[str, gpu_facts.Fact] = {}
    guard = gpu_locks.Locks()
    for gpu in gpus:
        uuid = gpu["uuid"]
        if gpu["problem"]:
            facts[uuid] = {"error": gpu["problem"]}
        elif gpu["processes"]:
            facts[uuid] = {"unsupported": "pid {} uses it".format(gpu["processes"][0][0])}
        elif gpu["used_mib"] > IN_USE * gpu["memory_mib"]:
            facts[uuid] = {"unsupported": "{} MiB are in use".format(gpu["used_mib"])}
        else:
            try:
                free[uuid] = guard.take([uuid], 0, 0)
            except SpoolError as error:
                facts[uuid] = {"unsupported": error.message}
    return free, facts


def errand(place: errand_process.Place, fields: Dict[str, Any], pipe: int) -> None:
    """The errand `gpu`, like those in checks.py: {"python", "env"} -> {"lines"}."""
    env = {**place.base, **fields.get("env", {})}
    errand_process.tell(pipe, {"lines": _rows(str(fields["python"]), env)})


def _rows(python: str, env: Dict[str, str]) -> List[Dict[str, Any]]:
    return [line._asdict() for line in lines(python, env)]


def main() -> None:
    order = json.loads(sys.stdin.read())
    sys.stdout.write("gpq:" + json.dumps({"lines": _rows(order["python"], order["env"])}) + "\n")


if __name__ == "__main__":
    main()
