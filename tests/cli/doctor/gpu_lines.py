"""What `gpq nodes add` and `gpq doctor` say about a server's GPUs in each condition.

`python -m tests.cli.doctor.gpu_lines` prints the transcript. With `--write` it also updates docs/gpus.md.

The GPUs come from a stub of NVML. A test compares docs/gpus.md with the transcript.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpq.cli.doctor import checks
from gpq.servers import first_contact
from tests.agent.node.harness import NodeAgent

STUB = Path(__file__).resolve().parents[2] / "fakes" / "libnvml" / "nvml.c"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "gpus.md"
NAME = "NVIDIA A100-SXM4-80GB"
CONDITIONS: dict[str, dict[str, object]] = {
    "eight GPUs": {"X_COUNT": 8},
    "no driver": {"LD_LIBRARY_PATH": ""},
    "persistence mode off": {"X_COUNT": 8, "X_SLEEP": 3500},
    "partitioned (MIG)": {"X_MIG": 1, "X_SLICES": 2},
    "somebody is on one": {"X_PIDS": "train"},
    "shared by MPS": {"X_PIDS": "nvidia-cuda-mps-server"},
    "a desktop": {"X_DRAWS": "Xorg"},
    "one is lost": {"X_HANDLE": 15},
    "one is not permitted": {"X_HANDLE": 4},
}
PROCESSES = ("X_PIDS", "X_DRAWS")  # their value is the name of a process


def printed() -> str:
    """The transcript for all conditions."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["cc", "-shared", "-fPIC", "-o", f"{folder}/libnvidia-ml.so.1", str(STUB)]
        subprocess.run(command, check=True)
        blocks = [block(Path(folder), name, condition) for name, condition in CONDITIONS.items()]
    return "\n".join(blocks) + "\n"


def block(folder: Path, name: str, condition: Mapping[str, object]) -> str:
    """The transcript for one condition."""
    with process(folder, condition) as listed:
        planted = {key: str(value) for key, value in condition.items()}
        environment = {"LD_LIBRARY_PATH": str(folder), "X_NAME": NAME, **planted, **listed}
        lines = [f"  nodes add  {line}" for line in added(folder, environment)]
        return everywhere("\n".join([name, *lines, f"  doctor     {checked(environment)}"]))


def everywhere(text: str) -> str:
    """The text without anything that depends on the machine or the time."""
    for found, other in (
        (r"\bpid \d+", "pid 4711"),
        (r"used by \w+", "used by carl"),
        (r"since [\d:]+", "since 14:02"),
    ):
        text = re.sub(found, other, text)
    return text


@contextmanager
def process(folder: Path, condition: Mapping[str, object]) -> Iterator[dict[str, str]]:
    """Runs a process with the name from the condition. The stub reads its pid from a file."""
    for key in PROCESSES:
        if key in condition:
            program = folder / str(condition[key])
            program.write_bytes(Path("/bin/sleep").read_bytes())
            program.chmod(0o755)
            with subprocess.Popen([str(program), "600"]) as running:
                (folder / key).write_text(f"{running.pid} 900\n")
                try:
                    yield {key: str(folder / key)}
                finally:
                    running.kill()
            return
    yield {}


def added(folder: Path, environment: Mapping[str, str]) -> list[str]:
    """What `gpq nodes add` prints about the GPUs."""
    options = ("--locks", str(folder), "--slots", "2" if not environment["LD_LIBRARY_PATH"] else "0")
    agent = NodeAgent(folder / "spool", *options, env=dict(environment))
    try:
        told = first_contact.lines("gpu1", first_contact.findings(agent.greeting, agent.ask("probe")))
    finally:
        agent.close()
    return told[1:]


def checked(environment: Mapping[str, str]) -> str:
    """What `gpq doctor` prints about the GPUs."""
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    try:
        check = checks.gpus()
    finally:
        for key, value in before.items():
            os.environ.pop(key)
            os.environ.update({key: value} if value is not None else {})
    return f"{check.verdict:<10}{check.message}" + (f" ({check.fix})" if check.fix else "")


def write() -> None:
    """Update the transcript in the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"```text\n{next(iter(CONDITIONS))}\n")
    _, _, after = rest.partition("\n```\n")
    PAGE.write_text(f"{before}```text\n{printed()}```\n{after}", encoding="utf-8")


if __name__ == "__main__":
    write() if "--write" in sys.argv else sys.stdout.write(printed())
