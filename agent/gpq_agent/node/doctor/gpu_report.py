"""`gpq doctor --gpu` on the server itself: one part of the report after the other, each within its
limit.

Standard library only. The interpreter of the user's scripts runs what needs torch
(`gpq_agent.gpucheck`), on GPUs that nobody uses. gpq holds their locks in the meantime. `python -m
gpq_agent.node.doctor.gpu_report` reads {"part", "python", "env"} from stdin and prints the lines.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional

import gpq_agent
from gpq_agent import wire
from gpq_agent.node.devices import gpu_locks
from gpq_agent.node.doctor import errand_process, gpu_beside, gpu_facts, gpu_lines, gpu_looks
from gpq_agent.node.host import procs
from gpq_agent.node.host.errors import SpoolError

FACTS_LIMIT = 20.0  # seconds
TORCH_LIMIT = 25.0
MARGIN = 4.0  # seconds that a part ends before its limit, so that its lines still arrive
# share of a GPU's memory that may be in use without a visible process, because drivers keep some
IN_USE = 0.05
NO_TORCH = "No module named 'torch'"

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


class Free(NamedTuple):
    """GPUs that nobody uses, with their locks held. If there are none, `why`."""

    uuids: List[str]
    locks: List[int]
    why: str = ""


def lines(part: str, python: str, env: Dict[str, str]) -> List[wire.GpuLine]:
    """One line for each check of the part, in order. `python`: interpreter of scripts. `env`:
    variables of the jobs."""
    answers = _driver(python, env) if part == "driver" else _on_free_gpus(part, python, env)
    by_name = {line.name: line for line in answers}
    silence = wire.GpuLine("", "FAIL", "the check gave no result")
    return [by_name.get(name, silence._replace(name=name)) for name in wire.GPU_PARTS[part].names]


def all_alike(part: str, verdict: str, figure: str) -> List[wire.GpuLine]:
    """The same verdict for every check of a part."""
    return [wire.GpuLine(name, verdict, figure) for name in wire.GPU_PARTS[part].names]


def _driver(python: str, env: Dict[str, str]) -> List[wire.GpuLine]:
    facts = errand_process.run(
        [sys.executable, "-m", gpu_facts.__name__], gpu_looks.environment(), FACTS_LIMIT
    )
    torch = errand_process.run(
        [python, "-c", LOOK_AT_TORCH], {**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, TORCH_LIMIT
    )
    return [*gpu_lines.of_facts(facts, torch, mps_servers()), *gpu_looks.both()]


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


def free_gpus(look: gpu_looks.GpuReading) -> Free:
    """Lock the GPUs that nobody uses, so that no gpq starts a job there in the meantime."""
    if look.error and not look.devices:
        return Free([], [], look.error)
    obstacles: List[str] = []
    free = Free([], [])
    guard = gpu_locks.Locks()
    for gpu in look.devices:
        if gpu.problem:
            obstacles.append("{}: {}".format(gpu.uuid, gpu.problem))
        elif gpu.processes:
            obstacles.append("{}: pid {} uses it".format(gpu.uuid, gpu.processes[0][0]))
        elif gpu.used_mib > IN_USE * gpu.memory_mib:
            obstacles.append("{}: {} MiB are in use".format(gpu.uuid, gpu.used_mib))
        else:
            try:
                free.locks.extend(guard.take([gpu.uuid], 0, 0))
                free.uuids.append(gpu.uuid)
            except SpoolError as error:
                obstacles.append(error.message)
    reason = (
        "no GPU is free ({})".format("; ".join(obstacles)) if obstacles else "no NVIDIA GPU here"
    )
    return free if free.uuids else free._replace(why=reason)


def _on_free_gpus(part: str, python: str, env: Dict[str, str]) -> List[wire.GpuLine]:
    free = free_gpus(gpu_looks.look("any"))
    folder = ""
    try:
        if free.why:
            return all_alike(part, "SKIP", free.why)
        if wire.GPU_PARTS[part].section == "C" and len(free.uuids) < 2:
            return all_alike(part, "SKIP", "needs two free GPUs, found one")
        folder = library()
        env = {
            **env,
            "PYTHONPATH": os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH", "")])),
        }
        env.update({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", wire.ENV_TRIAL: "1"})
        if part != "holder":
            return trained(part, python, env, free.uuids)
        first_gpu_env = {**env, "CUDA_VISIBLE_DEVICES": free.uuids[0]}
        answers = gpu_looks.holder([python, "-c", gpu_looks.HOLDER], first_gpu_env, free.uuids[0])
        return _skipped_without_torch(
            [*answers, gpu_beside.beside([python, "-c", gpu_beside.WORKER], first_gpu_env)]
        )
    finally:
        gpu_locks.close(free.locks)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def library() -> str:
    """A folder with gpq_agent alone, because anything next to it would hide the script's own
    packages."""
    folder = tempfile.mkdtemp(prefix="gpq-doctor-")
    os.symlink(
        os.path.dirname(os.path.abspath(gpq_agent.__file__)), os.path.join(folder, "gpq_agent")
    )
    return folder


def trained(part: str, python: str, env: Dict[str, str], devices: List[str]) -> List[wire.GpuLine]:
    """The lines of `gpq_agent.gpucheck`. Each check that it did not reach gets a FAIL with its last
    words."""
    parent = os.getpid()
    begin = time.monotonic()
    limit = wire.GPU_PARTS[part].limit - MARGIN
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                [python, "-m", "gpq_agent.gpucheck", part, *devices], env=env, cwd="/",
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
                preexec_fn=lambda: procs.die_with_parent(parent),
            )  # fmt: skip
        except OSError as error:
            return all_alike(part, "FAIL", "cannot run {}: {}".format(python, error.strerror))
        try:
            _, errors = process.communicate(timeout=limit)
            words = (errors.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
            ending = "exit {}: {}".format(process.returncode, words)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            ending = "not finished within {:.0f} s of this part".format(time.monotonic() - begin)
        output.seek(0)
        answers = parsed(output.read().decode("utf-8", "replace").splitlines())
    names = {line.name for line in answers}
    unanswered = [line for line in all_alike(part, "FAIL", ending) if line.name not in names]
    return _skipped_without_torch([*answers, *unanswered])


def parsed(text: Iterable[str]) -> List[wire.GpuLine]:
    """Lines that begin with "gpq:"."""
    return [
        wire.GpuLine(**json.loads(line[len("gpq:") :])) for line in text if line.startswith("gpq:")
    ]


def _skipped_without_torch(answers: List[wire.GpuLine]) -> List[wire.GpuLine]:
    """A missing torch in an interpreter is not the GPU's fault."""
    return [line._replace(verdict="SKIP") if NO_TORCH in line.figure else line for line in answers]


def errand(place: errand_process.Place, fields: Dict[str, Any], pipe: int) -> None:
    """The errand `gpu`, like those in checks.py: {"part", "python", "env"} -> {"lines"}."""
    env = {**place.base, **fields.get("env", {})}
    answers = lines(str(fields["part"]), str(fields["python"]), env)
    errand_process.tell(pipe, {"lines": [line._asdict() for line in answers]})


def main(text: Optional[str] = None) -> None:
    order = json.loads(sys.stdin.read() if text is None else text)
    for line in lines(order["part"], order["python"], order["env"]):
        sys.stdout.write("gpq:" + json.dumps(line._asdict()) + "\n")


if __name__ == "__main__":
    main()
