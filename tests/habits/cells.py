"""Runs one habit in one shape with real processes, and judges it. The table knows a cell only by its verdict."""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import threading
import time
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpq_agent import wire

from tests.support.ports import free_port
from tests.support.promises import demand_no_crash

from .catalogue import Habit
from .proven import HINTED, PROVEN
from .replica import run_replica
from .shapes import SHAPES, Shape

DEADLINE = 120.0  # seconds for an attempt, because a busy machine may need most of it
SMALL = 1e-3  # the smallest norm to divide by, for example for a learning rate at the end of its schedule
PARTING = 20.0  # seconds that the other replicas get after the first one failed
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    ["torch", "torch._dynamo", "gpq_agent.train", "tests.habits.preload", "tests.support.frozen"]
)
# While one thread waits for a process, no other thread may ask for its exit code. Starting a process does that.
PROCESSES = threading.Lock()
WORDS = {
    "accumulate": r"\b(accumulat\w*|micro-batch\w*|one piece)\b",
    "split": r"\b(split\w*|micro-batch\w*|one piece)\b",
    "resize": r"\b(resiz\w*|(another|other) (number of )?replicas)\b",
    "retune": r"\b(retun\w*|another batch)\b",
}

RIGHT, RIGHT_TOLD, TOLD, SILENT = "right", "right, told", "told", "SILENT"
CHECKED, HINT = "gpq check", "hint"
TRACEBACK, HANG, UNSTOPPED, LATE = "TRACEBACK", "HANG", "NOT STOPPED", "LATE"
GOOD = (RIGHT, RIGHT_TOLD, TOLD, CHECKED, HINT)


class Cell(NamedTuple):
    """`difference`: the largest over all tensors, relative to the tensor's norm (inf if there is none)."""

    habit: str
    shape: str
    verdict: str
    difference: float
    tensor: str
    said: tuple[str, ...]  # lines for the user, and what went wrong
    seconds: float
    folder: Path

    @property
    def good(self) -> bool:
        return self.verdict in GOOD

    def shown(self) -> str:
        if self.verdict == TOLD and not math.isfinite(self.difference):
            return "told, not finite" if math.isnan(self.difference) else "refused"
        if self.verdict in (TOLD, CHECKED, HINT, SILENT, LATE) and math.isfinite(self.difference):
            percent = 100 * self.difference
            return f"{self.verdict} " + (f"{percent:.2g}%" if percent < 99.5 else "over 100%")
        return self.verdict


class Run(NamedTuple):
    """One attempt: exit codes by rank (None: it hung), and its folder."""

    codes: list[int | None]
    folder: Path
    stopped: bool


def reference(habit: Habit, folder: Path) -> dict[str, torch.Tensor]:
    """What the habit trains in plain PyTorch. Raises AssertionError if it fails there."""
    run = attempt(habit, {}, folder, 0, 1, None, folder)
    assert run.codes == [0], f"{habit.name} fails in plain PyTorch:\n" + _read(folder / "attempt-0" / "stderr.0")
    found: dict[str, torch.Tensor] = torch.load(run.folder / "weights.0.pt")
    assert all(bool(value.isfinite().all()) for value in found.values()), f"{habit.name} diverges in plain PyTorch"
    return found


def alone(habit: Habit, folder: Path) -> dict[str, torch.Tensor]:
    """What the habit trains under gpq on one undisturbed replica. Returns nothing if it fails there."""
    run = attempt(habit, SHAPES["one"].options, folder, 1, 1, None, folder)
    path = run.folder / "weights.0.pt"
    return torch.load(path) if path.exists() else {}


def run_cell(habit: Habit, shape: Shape, wanted: dict[str, torch.Tensor], folder: Path) -> Cell:
    """Run all attempts of the shape in `folder`, and compare the result with `wanted`."""
    begin = time.monotonic()
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True)
    runs: list[Run] = []
    done = 0
    stops: list[int | None] = [None]
    if len(shape.replicas) > 1:
        stops = [habit.stops[0], habit.stops[1] - habit.stops[0] - 1, None]
    for number, (replicas, stop) in enumerate(zip(shape.replicas, stops, strict=True), start=1):
        runs.append(attempt(habit, shape.options, folder, number, replicas, stop, checkpoints))
        done += runs[-1].stopped
        if not runs[-1].stopped:
            break
    verdict, difference, tensor, said = judge(habit, shape, wanted, runs)
    if verdict == RIGHT and done < len(shape.replicas) - 1:
        verdict = UNSTOPPED
    # On two replicas, a trial shows a loop that is not checked a few batches that are pieces of a step.
    proven = {"two" if name == "two-acc" else name for name in PROVEN.get(habit.name, ())}
    if verdict in (SILENT, LATE) and shape.name in proven | set(PROVEN.get(habit.name, ())):
        verdict = CHECKED
    if verdict in (SILENT, LATE) and habit.name in HINTED:
        verdict = HINT
    return Cell(habit.name, shape.name, verdict, difference, tensor, said, time.monotonic() - begin, folder)


def attempt(
    habit: Habit, options: dict[str, Any], folder: Path, number: int, replicas: int, stop: int | None, checkpoints: Path
) -> Run:
    """Run `replicas` processes until they end. Number 0 is plain PyTorch."""
    run_dir = folder / f"attempt-{number}"
    run_dir.mkdir(parents=True)
    port = str(free_port())
    processes = []
    for rank in range(replicas):
        environment = {}
        if number:
            environment = {
                wire.ENV_RUN_DIR: str(run_dir),
                wire.ENV_CHECKPOINT_DIR: str(checkpoints),
                wire.ENV_ATTEMPT: str(number),
                "GPQ_REPORT_SECONDS": "0.5",
            }
        if replicas > 1:
            environment.update(
                RANK=str(rank),
                WORLD_SIZE=str(replicas),
                LOCAL_RANK=str(rank),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            )
        arguments = (environment, habit.name, options, str(run_dir), stop)
        processes.append(FORKSERVER.Process(target=run_replica, args=arguments, daemon=True))
    with PROCESSES:
        for process in processes:
            process.start()
    codes = _wait(processes)
    demand_no_crash(codes)
    return Run(codes, run_dir, (run_dir / wire.STOPPED).exists() and codes == [0] * replicas)


def _wait(processes: list[Any]) -> list[int | None]:
    codes: dict[int, int | None] = {}
    end = time.monotonic() + DEADLINE
    while len(codes) < len(processes):
        left = {process.sentinel: rank for rank, process in enumerate(processes) if rank not in codes}
        ready = connection.wait(list(left), max(end - time.monotonic(), 0.0))
        with PROCESSES:
            if not ready:
                for rank in left.values():
                    processes[rank].kill()
                    processes[rank].join()
                    codes[rank] = None
            for sentinel in ready:
                rank = left[sentinel]
                processes[rank].join()
                codes[rank] = processes[rank].exitcode
                if codes[rank]:
                    end = min(end, time.monotonic() + PARTING)
    return [codes[rank] for rank in range(len(processes))]


def judge(
    habit: Habit, shape: Shape, wanted: dict[str, torch.Tensor], runs: list[Run]
) -> tuple[str, float, str, tuple[str, ...]]:
    """Verdict, difference, tensor, and what was printed.

    If a shape has several attempts, a report after the last change of replicas comes too late.
    """
    said, freedoms = heard(runs)
    _, early = heard(runs[: len(shape.replicas) - 1] if len(shape.replicas) > 1 else runs)
    told = bool(early & set(shape.needs)) if shape.needs else bool(early)
    failed = [run for run in runs if any(run.codes)]
    if failed:
        failures = [json.loads(path.read_text()) for path in sorted(failed[0].folder.glob("failure.*"))]
        refused = [failure for failure in failures if failure["error"] == "GpqTrainError" and failure["hint"]]
        excused = (failed[0].folder / wire.EXCUSED).exists()  # gpq says why, and starts it again without that
        lines = [f"{failure['error']}: {failure['message']}" for failure in refused or failures]
        first = failed[0] is runs[0]
        verdict = TRACEBACK
        if refused or excused:
            verdict = TOLD if first or excused else LATE
        if not first and heard(runs[: runs.index(failed[0])])[1] & set(shape.needs):
            verdict = TOLD  # gpq would not have started that attempt
        if first and freedoms & set(shape.needs):
            verdict = TOLD  # gpq will not start it like that again
        return verdict, math.inf, "", (*said, *lines)
    if any(None in run.codes for run in runs):
        return HANG, math.inf, "", said
    worst, tensor = compare(wanted, sorted(runs[-1].folder.glob("weights.*.pt")))
    if worst <= habit.tolerance:
        return RIGHT_TOLD if told and shape.needs else RIGHT, worst, tensor, said
    if not told and shape.needs and freedoms & set(shape.needs):
        return LATE, worst, tensor, said
    return TOLD if told else SILENT, worst, tensor, said


def compare(wanted: dict[str, torch.Tensor], paths: list[Path]) -> tuple[float, str]:
    """The largest difference over all replicas and tensors, and its tensor."""
    worst, tensor = 0.0, ""
    for path in paths:
        found = torch.load(path)
        if found.keys() != wanted.keys():
            return math.inf, "other tensors: " + ", ".join(sorted(found.keys() ^ wanted.keys()))
        for name, value in wanted.items():
            difference = float((found[name] - value).norm() / max(float(value.norm()), SMALL))
            if not difference <= worst:
                worst, tensor = difference, name
    return worst, tensor


def heard(runs: list[Run]) -> tuple[tuple[str, ...], set[str]]:
    """The lines for the user that begin "gpq: ", of all replicas, and the freedoms that are taken away.

    A habit report counts only if a line on stderr contains its message or its code, because both the allocator and the
    user must know. If there is no report, the words of the lines count.
    """
    said: dict[str, None] = {}
    reported = False
    freedoms: set[str] = set()
    for run in runs:
        files = [_read(path).splitlines() for path in sorted(run.folder.glob("stderr.*"))]
        lines = [line for file in files for line in file if line.startswith("gpq: ")]
        said.update(dict.fromkeys(lines))
        for report in (json.loads(line) for line in _read(run.folder / wire.REPORT).splitlines()):
            if report["kind"] != "habit":
                continue
            reported = True
            seen = any(report["message"] in line or report["code"] in line for line in lines)
            freedoms.update(report["freedoms"] if seen else [])
            said.setdefault(
                f"habit {report['code']} takes {', '.join(report['freedoms'])}"
                + ("" if seen else ", and no line on stderr says so")
            )
    if not reported:
        freedoms.update(name for name, words in WORDS.items() if any(re.search(words, line) for line in said))
    return tuple(said), freedoms


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
