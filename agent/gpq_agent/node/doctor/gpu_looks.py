"""Ten looks at the GPUs like those of the agent, by NVML and by nvidia-smi, and a process that
holds memory, which the looks must show.

`python -m gpq_agent.node.doctor.gpu_looks nvml` (or `smi`) prints one look.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from gpq_agent.node.devices import gpus, nvml, smi
from gpq_agent.node.devices.gpu_probe import RawGpu
from gpq_agent.node.host import procs
from gpq_agent.wire import GpuLine

LOOKS = 10
SLOW = 3.0  # seconds that the slowest of ten looks may take
ENOUGH = 20.0  # seconds after which no further look starts
LOOK_LIMIT = 12.0
HELD_MIB = 2048
SEEN_WITHIN = 2  # looks
GONE_WITHIN = 10.0  # seconds
HOLDER_LIMIT = 40.0  # seconds until it holds its memory

HOLDER = """
import sys, time
import torch
block = torch.ones({} << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
sys.stdout.write("holding\\n")
sys.stdout.flush()
time.sleep(120)
""".format(HELD_MIB)


class GpuReading(NamedTuple):
    """One look. With an `error` everything else is empty."""

    seconds: float
    devices: List[RawGpu] = []
    error: str = ""


def look(way: str) -> GpuReading:
    """Look in a separate process. `way`: nvml, smi, or any, which chooses like the agent."""
    parent = os.getpid()
    begin = time.monotonic()
    try:
        process = subprocess.run(
            [sys.executable, "-m", "gpq_agent.node.doctor.gpu_looks", way],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=LOOK_LIMIT, check=False, env=environment(),
            preexec_fn=lambda: procs.die_with_parent(parent),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return GpuReading(LOOK_LIMIT, error="no answer within {:g} s".format(LOOK_LIMIT))
    seconds = time.monotonic() - begin
    try:
        answer = json.loads(process.stdout.decode("utf-8"))
    except ValueError:
        lines = process.stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"]
        return GpuReading(seconds, error="exit {}: {}".format(process.returncode, lines[-1]))
    gpus = [RawGpu(**fields) for fields in answer["gpus"]]
    error = answer["error"] or ("a GPU is lost" if answer["lost"] else "")
    problems = [gpu.problem for gpu in gpus if gpu.problem]
    return GpuReading(seconds, gpus, error or "; ".join(problems))


def environment() -> Dict[str, str]:
    """Variables with which a process of this interpreter finds the same modules as this one."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry or ".") for entry in sys.path),
    }


def ten(name: str, way: str) -> Tuple[GpuLine, GpuReading]:
    """The line, and the last look."""
    begin = time.monotonic()
    rows = [look(way)]
    while (
        len(rows) < LOOKS
        and rows[-1].devices
        and not rows[-1].error
        and time.monotonic() - begin < ENOUGH
    ):
        rows.append(look(way))
    times = sorted(row.seconds for row in rows)
    slowest = times[min(int(0.95 * len(times)), len(times) - 1)]
    figure = "{} looks, median {:.2f} s, p95 {:.2f} s, {} devices".format(
        len(rows), times[len(times) // 2], slowest, len(rows[-1].devices)
    )
    if rows[-1].error:
        return (
            GpuLine(
                name, "FAIL", "look {}: {}".format(len(rows), rows[-1].error), round(sum(times), 1)
            ),
            rows[-1],
        )
    ok = slowest < SLOW
    return (
        GpuLine(name, "PASS" if ok else "FAIL", figure, round(time.monotonic() - begin, 1)),
        rows[-1],
    )


def both() -> List[GpuLine]:
    """Looks in both ways, and whether they agree. A way that is not available is skipped."""
    lines: List[GpuLine] = []
    final_looks: List[GpuReading] = []
    for name, way, missing in (
        (
            "looks by NVML",
            "nvml",
            "" if nvml.load() is not None else "no nvidia-ml-py for {}".format(sys.executable),
        ),
        ("looks by nvidia-smi", "smi", "" if shutil.which("nvidia-smi") else "no nvidia-smi"),
    ):
        if missing:
            lines.append(GpuLine(name, "SKIP", missing))
            continue
        line, final_look = ten(name, way)
        if not final_look.devices and not final_look.error:
            line = GpuLine(name, "SKIP", "no NVIDIA GPU, or no driver", line.seconds)
        lines.append(line)
        final_looks.append(final_look)
    return [*lines, same(final_looks)]


def same(looks: List[GpuReading]) -> GpuLine:
    """Compare one look of each way."""
    if len(looks) < 2 or not all(observation.devices for observation in looks):
        return GpuLine("same answers", "SKIP", "NVML and nvidia-smi do not both answer here")
    nvml_gpus, smi_gpus = ({gpu.uuid: gpu for gpu in observation.devices} for observation in looks)
    differences = [
        "only {} shows {}".format("NVML" if uuid in nvml_gpus else "nvidia-smi", uuid)
        for uuid in sorted(nvml_gpus.keys() ^ smi_gpus.keys())
    ]
    for uuid in sorted(nvml_gpus.keys() & smi_gpus.keys()):
        nvml_gpu, smi_gpu = nvml_gpus[uuid], smi_gpus[uuid]
        for quantity, nvml_value, smi_value in (
            ("number", nvml_gpu.number, smi_gpu.number),
            ("name", nvml_gpu.name, smi_gpu.name),
            ("processes", sorted(dict(nvml_gpu.processes)), sorted(dict(smi_gpu.processes))),
        ):
            if nvml_value != smi_value:
                differences.append(
                    "{} of {}: {} by NVML, {} by nvidia-smi".format(
                        quantity, uuid, nvml_value, smi_value
                    )
                )
        if abs(nvml_gpu.memory_mib - smi_gpu.memory_mib) > 1:
            differences.append(
                "memory of {}: {} MiB by NVML, {} MiB by nvidia-smi".format(
                    uuid, nvml_gpu.memory_mib, smi_gpu.memory_mib
                )
            )
    memory = ", ".join(
        "{} and {} MiB".format(nvml_gpus[uuid].used_mib, smi_gpus[uuid].used_mib)
        for uuid in nvml_gpus
        if uuid in smi_gpus
    )
    if differences:
        return GpuLine("same answers", "FAIL", "; ".join(differences))
    return GpuLine("same answers", "PASS", "names, memory and processes, in use: {}".format(memory))


def holder(
    command: List[str], env: Dict[str, str], uuid: str, look_by: Callable[[str], GpuReading] = look
) -> List[GpuLine]:
    """Two lines: the second look shows a process that holds 2 GiB, and the process is gone within
    ten seconds of its kill."""
    parent = os.getpid()
    begin = time.monotonic()
    process = subprocess.Popen(
        command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=lambda: procs.die_with_parent(parent),
    )  # fmt: skip
    try:
        first_line = _first_line(process)
        if not first_line:
            raise RuntimeError(
                "the test process did not get its memory: {}".format(last_words(process))
            )
        line = _seen(process.pid, uuid, look_by)
    except RuntimeError as error:
        process.kill()
        process.communicate()
        return [
            GpuLine("process seen", "FAIL", str(error)),
            GpuLine("process gone", "SKIP", "the process was never seen"),
        ]
    line = line._replace(seconds=round(time.monotonic() - begin, 1))
    process.kill()
    process.communicate()
    return [line, _gone(process.pid, uuid, look_by)]


def _first_line(process: "subprocess.Popen[bytes]") -> bytes:
    """b"" if there is none within HOLDER_LIMIT."""
    assert process.stdout is not None
    return (
        process.stdout.readline()
        if select.select([process.stdout], [], [], HOLDER_LIMIT)[0]
        else b""
    )


def last_words(process: "subprocess.Popen[bytes]") -> str:
    process.kill()
    _, errors = process.communicate()
    return (errors.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]


def _memory(pid: int, uuid: str, observation: GpuReading) -> int:
    """MiB of the process on this GPU in this look, -1 if the look does not show it."""
    return max(
        (dict(gpu.processes).get(pid, -1) for gpu in observation.devices if gpu.uuid == uuid),
        default=-1,
    )


def _seen(pid: int, uuid: str, look_by: Callable[[str], GpuReading]) -> GpuLine:
    processes: List[Any] = []
    for number in range(1, SEEN_WITHIN + 1):
        observation = look_by("any")
        memory = _memory(pid, uuid, observation)
        if memory >= HELD_MIB:
            return GpuLine(
                "process seen", "PASS", "pid {} with {} MiB in look {}".format(pid, memory, number)
            )
        processes = [gpu.processes for gpu in observation.devices if gpu.uuid == uuid]
    figure = "pid {} holds {} MiB, but after {} looks its GPU shows (pid, MiB): {}".format(
        pid, HELD_MIB, SEEN_WITHIN, processes
    )
    return GpuLine("process seen", "FAIL", figure)


def _gone(pid: int, uuid: str, look_by: Callable[[str], GpuReading]) -> GpuLine:
    begin = time.monotonic()
    while True:
        observation = look_by("any")
        seconds = time.monotonic() - begin
        if not observation.error and _memory(pid, uuid, observation) < 0:
            return GpuLine(
                "process gone", "PASS", "{:.1f} s after its kill".format(seconds), round(seconds, 1)
            )
        if seconds > GONE_WITHIN:
            figure = "pid {} is still there {:.0f} s after its kill".format(pid, seconds)
            return GpuLine("process gone", "FAIL", figure, round(seconds, 1))
        time.sleep(0.2)


def main() -> None:
    begin = time.monotonic()
    probe = smi.look() if sys.argv[1] == "smi" else gpus.probe(gpus.binding())
    seconds = round(time.monotonic() - begin, 1)
    fields = dict(
        probe._asdict(), notice=probe.describe(seconds), gpus=[gpu._asdict() for gpu in probe.gpus]
    )
    sys.stdout.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    main()
