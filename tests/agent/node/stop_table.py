"""The stop table: what happens to a program that saves on a signal, behind launchers, with workers. One
cell per case.

    python -m tests.agent.node.stop_table [--torch]    prints it

The program saves only if none of its workers has gone, because a DataLoader cannot continue without one.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.agent.node.harness import NodeAgent, sweep, wait_until

GRACE = 60.0
SIGNALS = ("TERM", "USR1", "INT")
WORKERS = ("none", "fork", "spawn")

PROGRAM = """
import multiprocessing, os, signal, sys, time

def work(ready):
    ready.set()
    time.sleep(600)

def stop(number, frame):
    global asked
    asked = True

if __name__ == "__main__":
    name, method, code = sys.argv[1], sys.argv[2], int(sys.argv[3])
    asked = False
    signal.signal(getattr(signal, "SIG" + name), stop)
    workers = []
    if method != "none":
        context = multiprocessing.get_context(method)
        for _ in range(2):
            ready = context.Event()
            workers.append(context.Process(target=work, args=(ready,), daemon=True))
            workers[-1].start()
            ready.wait()
    out = os.environ["OUT"] + os.environ.get("RANK", "")
    open(out + ".ready", "w").close()
    while not asked:
        time.sleep(0.01)
    time.sleep(1.0)  # the save takes a while
    if all(worker.is_alive() for worker in workers):
        open(out + ".saved", "w").close()
    for worker in workers:
        worker.kill()
    sys.exit(code)
"""
RUN_SH = """#!/bin/bash
trap 'true' EXIT
cd "$(dirname "$0")"
python=$1
shift
"$python" program.py "$@"
code=$?
echo over
exit $code
"""
# Like conda run, and accelerate with one process: a Python that waits for another.
LAUNCHER = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[2:]]))"


class Cell(NamedTuple):
    launcher: str
    signal: str
    workers: str


def argv(cell: Cell, folder: Path) -> list[str]:
    """The command of a cell's job."""
    program = [str(folder / "program.py"), cell.signal, cell.workers, "75"]
    python = sys.executable
    typed = " ".join([python, *program])
    return {
        "plain": [python, *program],
        "run.sh": [str(folder / "run.sh"), python, *program[1:]],
        "pipe": ["bash", "-c", f"set -o pipefail; {typed} | tee log"],
        "time": ["sh", "-c", f"cd /; {typed}; exit $?"],
        "conda run": [python, str(folder / "conda"), "run", *program],
        "timeout": ["timeout", "600", python, *program],
        "make": ["make", "-s", "-f", str(folder / "Makefile"), f"ARGUMENTS={' '.join(program[1:])}"],
        "uv run": ["uv", "run", "--no-project", "--python", python, *program],
        "torchrun": [python, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *program],
    }[cell.launcher]


LAUNCHERS = ("plain", "run.sh", "pipe", "time", "conda run", "timeout", "make")


def prepare(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM)
    (folder / "conda").write_text(LAUNCHER)
    (folder / "run.sh").write_text(RUN_SH)
    (folder / "run.sh").chmod(0o755)
    (folder / "Makefile").write_text(f"all:\n\t{sys.executable} {folder}/program.py $(ARGUMENTS)\n")


def outcomes(node: NodeAgent, folder: Path, cells: Iterable[Cell]) -> dict[Cell, str]:
    """`saved`, or what happened instead. The cells run side by side."""
    prepare(folder)
    keys = {}
    for number, cell in enumerate(cells, 1):
        out = folder / f"out-{number}"
        fields = {"level": "signal", "signal": cell.signal, "env": {"OUT": str(out)}, "cwd": str(folder)}
        fields["devices"] = [f"slot-{number - 1}"]
        keys[cell] = (node.start(number, argv(cell, folder), **fields), out)
    found = {}
    for cell, (_, out) in keys.items():
        ranks = ["0", "1"] if cell.launcher == "torchrun" else [""]
        wait_until(lambda: all(Path(f"{out}{rank}.ready").exists() for rank in ranks), f"{cell} to be ready", GRACE)  # noqa: B023
    for key, _ in keys.values():
        node.ask("stop", attempt=key, mode="signal", grace=GRACE)
    for cell, (key, out) in keys.items():
        record = node.ended(key, GRACE)
        ranks = ["0", "1"] if cell.launcher == "torchrun" else [""]
        saved = all(Path(f"{out}{rank}.saved").exists() for rank in ranks)
        found[cell] = "saved" if saved else f"lost: {record['code']}, {record['signal']}, {record['note']}"
    return found


def main() -> int:
    launchers = [name for name in LAUNCHERS if name != "uv run" or shutil.which("uv")]
    launchers += ["uv run"] if shutil.which("uv") else []
    launchers += ["torchrun"] if "--torch" in sys.argv else []
    folder = Path(tempfile.mkdtemp(prefix="gpq-stops-"))
    node = NodeAgent(folder / "spool", "--slots", "100", "--locks", str(folder))
    try:
        cells = [Cell(*each) for each in itertools.product(launchers, SIGNALS, WORKERS)]
        found = outcomes(node, folder, cells)
    finally:
        node.close()
        sweep(folder / "spool")
    for launcher in launchers:
        for name in SIGNALS:
            row = [found[Cell(launcher, name, workers)] for workers in WORKERS]
            sys.stdout.write(f"{launcher:<10} {name:<5} {' | '.join(row)}\n")
    shutil.rmtree(folder, ignore_errors=True)
    return int(any(outcome != "saved" for outcome in found.values()))


if __name__ == "__main__":
    sys.exit(main())
