"""Memory: what a sampled step needs in addition to other steps, and an allocation that fails."""

import contextlib
import io
import itertools
import os
import sys
import tempfile
from typing import Any

import torch
from gpq_agent.train.checkpoints.store import MemoryRecord
from gpq_agent.train.process.shutdown import is_out_of_memory

from .processes import CheckFailed, CheckSkipped, Child
from .trainings import Pass, Plan, Training, enter

MIB = 1 << 20
WIDTH = 4096  # of the model: 17 million weights
COPIES = 2.5  # extra memory allowed for a sampled step, in copies of all gradients
WORKSPACE = 64 * MIB  # of libraries
WARM_UP, STEPS = 10, 40
FAIL_IN = 5  # the step that runs out of memory
FRACTION = 0.05  # share of the GPU's memory that the process may then use


def sampled_steps(tell: Any, devices: list[str]) -> str:
    """Compare the peak memory of sampled steps with that of other steps."""
    enter(devices[0])
    if not torch.cuda.is_available():
        raise CheckSkipped("needs CUDA to measure the memory of a step")
    training = Training(Plan(batch=64, most=64, width=WIDTH, optimizer="adamw"))
    gradients = sum(item.numel() * item.element_size() for item in training.model.parameters())
    peaks: dict[bool, int] = {}
    count = itertools.count()

    def note(step: list[Pass]) -> None:
        if next(count) >= WARM_UP:
            sampled = step[0].sampled
            peaks[sampled] = max(peaks.get(sampled, 0), torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()

    training.run(WARM_UP + STEPS, note)
    return judged(peaks, gradients)


def judged(peaks: dict[bool, int], gradients: int) -> str:
    """`peaks`: bytes in sampled steps and in others. `gradients`: bytes of all gradients. Raises
    CheckFailed."""
    if len(peaks) < 2:
        raise CheckFailed("no step was sampled, or every step was")
    extra = peaks[True] - peaks[False]
    figure = (
        f"{extra / MIB:.0f} MiB more than the {peaks[False] / MIB:.0f} MiB of other steps,"
        f" {gradients / MIB:.0f} MiB of gradients"
    )
    if extra > COPIES * gradients + WORKSPACE:
        raise CheckFailed(figure)
    return figure


def _starved(_: Any, device: str, folder: str) -> str:
    enter(device)
    training = Training(Plan(), folder)
    if training.device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(FRACTION, training.device)
        amount = int(torch.cuda.get_device_properties(training.device).total_memory * 2 * FRACTION)
    else:
        amount = 1 << 50
    count = itertools.count(1)

    def ask(_: list[Pass]) -> None:
        if next(count) == FAIL_IN:
            torch.empty(amount, dtype=torch.uint8, device=training.device)

    try:
        training.run(2 * FAIL_IN, ask)
    except (RuntimeError, MemoryError) as error:
        output = io.StringIO()
        with contextlib.redirect_stderr(output):
            sys.excepthook(type(error), error, error.__traceback__)
        if not is_out_of_memory(error):
            raise CheckFailed(f"gpq does not recognise it: {str(error).splitlines()[0]}") from error
        return output.getvalue()
    raise CheckFailed(f"a process got {amount} bytes, twice its limit")


def out_of_memory(tell: Any, devices: list[str]) -> str:
    """Let a step ask for more memory than there is. gpq must notice it, report it, and remember a
    smaller bound for the next attempt."""
    with tempfile.TemporaryDirectory() as folder:
        output = Child(_starved, devices[0], folder).next(60.0)
        notice = next((line for line in output.splitlines() if line.startswith("gpq: out of memory")), "")
        if not notice:
            raise CheckFailed("gpq recognised it, but printed no notice")
        bound = MemoryRecord(os.path.join(folder)).bound()
    if not bound:
        raise CheckFailed("gpq saved no memory limit for the next attempt")
    return notice[len("gpq: ") :]
