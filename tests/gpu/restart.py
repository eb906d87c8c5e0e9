"""A training that is stopped, killed and resumed, and how long each phase of a restart takes."""

import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

import torch

from .processes import CheckFailed, Child, wait_for_word
from .trainings import EXAMPLES, Pass, Plan, Training, enter

# 120 steps: replicas agree to stop up to 50 steps after the request
EPOCHS = 3
STOP_AT, KILL_AT = 30, 20  # steps of their attempts
BATCH = 100
SAME = 1e-5  # relative difference of the weights: only the order of additions may differ
PATIENCE = 60.0  # seconds, for each attempt

PHASES = """
import json, sys, time
begin = time.monotonic()
rows = {}
def phase(name):
    global begin
    rows[name] = round(time.monotonic() - begin, 3)
    begin = time.monotonic()
import torch
phase("import torch")
from tests.gpu.trainings import Plan, Training, enter
phase("import gpq")
enter(sys.argv[1])
if torch.cuda.is_available():
    torch.ones(1, device="cuda").item()
phase("CUDA context")
training = Training(Plan(batch=64, most=64))
phase("model and data")
names = iter(("first step", "second step"))
def done(passes):
    float(passes[-1].loss)
    phase(next(names))
training.run(2, done)
sys.stdout.write("gpq:" + json.dumps(rows) + "\\n")
"""


def _attempt(tell: Any, device: str, folder: str, pause_at: int) -> dict[str, Any]:
    """Train to the end. After `pause_at` steps of this attempt report the position and wait for a
    word."""
    enter(device)
    training = Training(Plan(batch=BATCH, most=BATCH, largest=BATCH), folder or None)
    indices: list[int] = []

    def note(passes: list[Pass]) -> None:
        indices.extend(index for part in passes for index in part.indices)
        if len(indices) == pause_at * BATCH:
            tell(len(indices))
            wait_for_word()

    training.run(after=note, epochs=EPOCHS)
    weights = torch.cat([item.detach().cpu().flatten() for item in training.model.parameters()])
    return {"seen": len(indices), "weights": weights.double().tolist()}


def resume(tell: Any, devices: list[str]) -> str:
    """Stop by SIGTERM, resume, kill, and resume from the same checkpoint. The result must equal
    that of an undisturbed run."""
    with tempfile.TemporaryDirectory() as folder:
        undisturbed_run = Child(_attempt, devices[0], "", -1).next(PATIENCE)
        stopped_run = Child(_attempt, devices[0], folder, STOP_AT)
        pause = stopped_run.next(PATIENCE)
        os.kill(stopped_run.pid, signal.SIGTERM)
        stopped_run.ask()
        code = stopped_run.wait(PATIENCE)
        if code != 143:
            raise CheckFailed(f"after SIGTERM at step {STOP_AT} the exit code is {code}, not 143")
        killed_run = Child(_attempt, devices[0], folder, KILL_AT)
        killed_run.next(PATIENCE)
        killed_run.end(signal.SIGKILL)
        resumed_run = Child(_attempt, devices[0], folder, -1)
        end = resumed_run.next(PATIENCE)
    if undisturbed_run["seen"] != EPOCHS * EXAMPLES or not 0 < end["seen"] < undisturbed_run["seen"]:
        raise CheckFailed(
            "the attempt after the kill saw {} of {} examples".format(end["seen"], undisturbed_run["seen"])
        )
    weights, reference = (torch.tensor(result["weights"], dtype=torch.float64) for result in (end, undisturbed_run))
    deviation = float((weights - reference).norm() / reference.norm())
    figure = "stopped after {} examples, killed, {} of {} to the end, weights differ by {:.0e}".format(
        pause, end["seen"], undisturbed_run["seen"], deviation
    )
    if not deviation < SAME:
        raise CheckFailed(figure)
    return figure


def phases(tell: Any, devices: list[str]) -> str:
    """Measure the phases of a fresh interpreter, in seconds."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", PHASES, devices[0]], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"no first step within {PATIENCE:g} s") from None
    line = process.stdout.decode("utf-8", "replace").rpartition("gpq:")[2].strip()
    if process.returncode != 0 or not line:
        message = (process.stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
        raise CheckFailed(f"exit {process.returncode}: {message}")
    return line.strip("{}").replace('"', "").replace(",", " s,") + " s"
