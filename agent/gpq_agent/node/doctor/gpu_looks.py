"""Ten looks at the GPUs as the agent looks, by NVML and by nvidia-smi, and a process that holds
memory, which they must name.

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
SLOW = 3.0  # seconds, of which the slowest look of ten may not take more
ENOUGH = 20.0  # seconds, after which no further look is begun
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


class Look(NamedTuple):
    """One: `error` where it came to nothing, and all else is empty then."""

    seconds: float
    devices: List[RawGpu] = []
    error: str = ""


def look(way: str) -> Look:
    """In a process of its own. `way`: nvml, smi, or any, as the agent would choose."""
    parent = os.getpid()
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gpq_agent.node.doctor.gpu_looks", way],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=LOOK_LIMIT, check=False, env=environment(),
            preexec_fn=lambda: procs.die_with_parent(parent),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Look(LOOK_LIMIT, error="no answer within {:g} s".format(LOOK_LIMIT))
    seconds = time.monotonic() - begin
    try:
        answer = json.loads(done.stdout.decode("utf-8"))
    except ValueError:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        return Look(seconds, error="exit {}: {}".format(done.returncode, lines[-1]))
    seen = [RawGpu(**one) for one in answer["gpus"]]
    error = answer["error"] or ("a GPU is lost" if answer["lost"] else "")
    sick = [one.problem for one in seen if one.problem]
    return Look(seconds, seen, error or "; ".join(sick))


def environment() -> Dict[str, str]:
    """So that a process of this interpreter finds what this one has found."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry or ".") for entry in sys.path),
    }


def ten(name: str, way: str) -> Tuple[GpuLine, Look]:
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
    """Looks by either way, and whether they see the same. What cannot be asked is skipped."""
    lines: List[GpuLine] = []
    last: List[Look] = []
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
        line, seen = ten(name, way)
        if not seen.devices and not seen.error:
            line = GpuLine(name, "SKIP", "no NVIDIA GPU, or no driver", line.seconds)
        lines.append(line)
        last.append(seen)
    return [*lines, same(last)]


def same(looks: List[Look]) -> GpuLine:
    """Of one way each."""
    if len(looks) < 2 or not all(one.devices for one in looks):
        return GpuLine("same answers", "SKIP", "there are not two ways to ask here")
    first, second = ({gpu.uuid: gpu for gpu in one.devices} for one in looks)
    differences = [
        "{} is seen by {} alone".format(uuid, "NVML" if uuid in first else "nvidia-smi")
        for uuid in sorted(first.keys() ^ second.keys())
    ]
    for uuid in sorted(first.keys() & second.keys()):
        one, other = first[uuid], second[uuid]
        for what, mine, its in (
            ("number", one.number, other.number),
            ("name", one.name, other.name),
            ("processes", sorted(dict(one.processes)), sorted(dict(other.processes))),
        ):
            if mine != its:
                differences.append(
                    "{} of {}: {} by NVML, {} by nvidia-smi".format(what, uuid, mine, its)
                )
        if abs(one.memory_mib - other.memory_mib) > 1:
            differences.append(
                "memory of {}: {} and {} MiB".format(uuid, one.memory_mib, other.memory_mib)
            )
    used = ", ".join(
        "{} and {} MiB".format(first[uuid].used_mib, second[uuid].used_mib)
        for uuid in first
        if uuid in second
    )
    if differences:
        return GpuLine("same answers", "FAIL", "; ".join(differences))
    return GpuLine("same answers", "PASS", "names, memory, processes; in use: {}".format(used))


def holder(
    command: List[str], env: Dict[str, str], uuid: str, seen_by: Callable[[str], Look] = look
) -> List[GpuLine]:
    """Two lines: a process that holds 2 GiB is named by the second look, and gone within ten
    seconds of its kill."""
    parent = os.getpid()
    begin = time.monotonic()
    process = subprocess.Popen(
        command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=lambda: procs.die_with_parent(parent),
    )  # fmt: skip
    try:
        ready = _first_line(process)
        if not ready:
            raise RuntimeError("it did not get its memory: {}".format(last_words(process)))
        seen = _seen(process.pid, uuid, seen_by)
    except RuntimeError as error:
        process.kill()
        process.communicate()
        return [
            GpuLine("process seen", "FAIL", str(error)),
            GpuLine("process gone", "SKIP", "it was never seen"),
        ]
    seen = seen._replace(seconds=round(time.monotonic() - begin, 1))
    process.kill()
    process.communicate()
    return [seen, _gone(process.pid, uuid, seen_by)]


def _first_line(process: "subprocess.Popen[bytes]") -> bytes:
    """b"" where there is none within HOLDER_LIMIT."""
    assert process.stdout is not None
    return (
        process.stdout.readline()
        if select.select([process.stdout], [], [], HOLDER_LIMIT)[0]
        else b""
    )


def last_words(process: "subprocess.Popen[bytes]") -> str:
    process.kill()
    _, errors = process.communicate()
    return (errors.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]


def _memory(pid: int, uuid: str, seen: Look) -> int:
    """MiB that this look gives the process on this GPU, -1 where it does not name it."""
    return max(
        (dict(gpu.processes).get(pid, -1) for gpu in seen.devices if gpu.uuid == uuid), default=-1
    )


def _seen(pid: int, uuid: str, seen_by: Callable[[str], Look]) -> GpuLine:
    others: List[Any] = []
    for number in range(1, SEEN_WITHIN + 1):
        seen = seen_by("any")
        memory = _memory(pid, uuid, seen)
        if memory >= HELD_MIB:
            return GpuLine(
                "process seen", "PASS", "pid {} with {} MiB in look {}".format(pid, memory, number)
            )
        others = [gpu.processes for gpu in seen.devices if gpu.uuid == uuid]
    figure = "pid {} holds {} MiB, and after {} looks its GPU has (pid, MiB): {}".format(
        pid, HELD_MIB, SEEN_WITHIN, others
    )
    return GpuLine("process seen", "FAIL", figure)


def _gone(pid: int, uuid: str, seen_by: Callable[[str], Look]) -> GpuLine:
    begin = time.monotonic()
    while True:
        seen = seen_by("any")
        taken = time.monotonic() - begin
        if not seen.error and _memory(pid, uuid, seen) < 0:
            return GpuLine(
                "process gone", "PASS", "{:.1f} s after its kill".format(taken), round(taken, 1)
            )
        if taken > GONE_WITHIN:
            figure = "{:.0f} s after its kill pid {} is there still".format(taken, pid)
            return GpuLine("process gone", "FAIL", figure, round(taken, 1))
        time.sleep(0.2)


def main() -> None:
    begin = time.monotonic()
    seen = smi.look() if sys.argv[1] == "smi" else gpus.probe(gpus.binding())
    seconds = round(time.monotonic() - begin, 1)
    told = dict(
        seen._asdict(), notice=seen.described(seconds), gpus=[gpu._asdict() for gpu in seen.gpus]
    )
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
