"""What gpq does to a step: waits for the device, gradients, noise scale."""

import collections
import contextlib
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from .processes import CPU, CheckFailed, CheckSkipped, Child
from .trainings import Pass, Plan, Training, enter, loss_of

WARM_UP, STEPS = 30, 50
SYNCHRONISING = "synchronizing CUDA operation"  # torch's words
# Functions of gpq_agent.train in which gpq waits by design, and what they do.
BY_DESIGN = {
    "publish": "reports",
    "save": "checkpoints",
    "close_epoch": "ends of epochs",
    "is_refused": "first split step of an epoch",
    "_compare_notes": "checks for forgotten state",
}
GRADIENTS = 1e-4  # of single precision, over a few dozen examples
NOISE = 0.02
NOISE_STEPS = 100


@contextlib.contextmanager
def recorded(device: torch.device) -> Iterator[list[list[str]]]:
    """For each operation that made the host wait for the device: gpq's functions on the stack, the
    outermost first, and last the innermost function of all.

    Uses warnings, not errors, so that a step continues and every wait is seen.
    """
    stacks: list[list[str]] = []

    def show(message: Any, *_: Any, **__: Any) -> None:
        if SYNCHRONISING in str(message):
            frames = [frame for frame in traceback.extract_stack()[:-1] if not frame.filename.endswith("/warnings.py")]
            own_frames = [frame.name for frame in frames if "gpq_agent/train/" in frame.filename]
            stacks.append([*own_frames, frames[-1].name])

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        _debug(device, "warn")
        try:
            yield stacks
        finally:
            _debug(device, "default")


def _debug(device: torch.device, mode: str) -> None:
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode(mode)


def sorted_out(stacks: list[list[str]]) -> "tuple[Counter[str], Counter[str]]":
    """(counts of waits by design, counts of other waits by function)."""
    designed_syncs: Counter[str] = collections.Counter()
    hidden_syncs: Counter[str] = collections.Counter()
    for stack in stacks:
        reason = next((BY_DESIGN[name] for name in stack if name in BY_DESIGN), "")
        if reason:
            designed_syncs[reason] += 1
        else:
            hidden_syncs[" > ".join(stack[-3:])] += 1
    return designed_syncs, hidden_syncs


def _listed(counts: "Counter[str]") -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.most_common(4)) or "none"


def syncs(tell: Any, devices: list[str], plan: Plan) -> str:
    """Run fifty steps. The host may wait for the device only where gpq measures by design."""
    enter(devices[0])
    training = Training(plan)
    if training.device.type == "cuda":
        _see_one(training.device)
    stack_counts: list[int] = []  # how many stacks there were after each step
    sampled: list[bool] = []
    with recorded(training.device) as stacks:

        def count(step: list[Pass]) -> None:
            stack_counts.append(len(stacks))
            sampled.append(step[0].sampled)

        training.run(WARM_UP + STEPS, count)
    designed_syncs, hidden_syncs = sorted_out(stacks[stack_counts[WARM_UP - 1] :])
    figure = (
        f"{STEPS} steps ({sum(sampled[WARM_UP:])} sampled), waits by design: {_listed(designed_syncs)},"
        f" in the first {WARM_UP} steps: {stack_counts[WARM_UP - 1]}"
    )
    if hidden_syncs:
        raise CheckFailed(f"the host waits in {_listed(hidden_syncs)} ({figure})")
    if training.device.type == CPU:
        raise CheckSkipped(f"needs CUDA (on the CPU: {figure})")
    return figure


def _see_one(device: torch.device) -> None:
    """Raise CheckFailed if torch does not report a planted wait, because then it would report
    none."""
    with recorded(device) as stacks:
        torch.ones(1, device=device).item()
    if not stacks:
        raise CheckFailed("torch does not report a wait that was planted, so it may miss others")


def sgd_syncs(tell: Any, devices: list[str]) -> str:
    return syncs(tell, devices, Plan())


def adamw_syncs(tell: Any, devices: list[str]) -> str:
    return syncs(tell, devices, Plan(optimizer="adamw", clip=True))


def scaler_syncs(tell: Any, devices: list[str]) -> str:
    return syncs(tell, devices, Plan(optimizer="adamw", amp=True))


class Recorded:
    """Records gradients and weights as the optimizer's own step sees them."""

    def __init__(self, optimizer: Any) -> None:
        self.rows: list[
            tuple[Any, Any]
        ] = []  # flat, because gpq takes a list of tensors like the weights for a copy of the model
        self._parameters = [item for group in optimizer.param_groups for item in group["params"]]
        optimizer.register_step_pre_hook(self._keep)

    def _keep(self, *_: Any) -> None:
        gradients = torch.cat([item.grad.detach().flatten() for item in self._parameters])
        weights = torch.cat([item.detach().flatten() for item in self._parameters])
        self.rows.append((gradients.cpu().double(), weights.cpu().double()))


def difference(training: Training, indices: list[int], row: tuple[Any, Any]) -> float:
    """Relative difference, in double precision, between the recorded gradient and that of plain
    PyTorch for these examples and weights."""
    gradients, weights = row
    model = torch.nn.Sequential(*(type(part)(*_sizes(part)) for part in training.layers)).double()
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    data = training.data
    x, y, weight = [part[indices].double() for part in (data.x, data.y, data.weight)]
    loss_of(model, x, y, weight, training.plan.weighed).backward()
    exact = torch.cat([item.grad.flatten() for item in model.parameters() if item.grad is not None])
    return float((gradients - exact).norm() / exact.norm())


def _sizes(part: torch.nn.Module) -> tuple[int, ...]:
    return (part.in_features, part.out_features) if isinstance(part, torch.nn.Linear) else ()


def _gradients(_: Any, device: str, weighed: bool, most: int) -> dict[str, Any]:
    enter(device)
    training = Training(Plan(batch=50, most=most, weighed=weighed))
    recorded_gradients = Recorded(training.optimizer)
    steps: list[list[Pass]] = []
    training.run(15, steps.append)
    pieces = max(len(step) for step in steps)
    worst = max(
        difference(training, [index for part in step for index in part.indices], row)
        for step, row in zip(steps, recorded_gradients.rows, strict=False)
    )
    return {"worst": worst, "pieces": pieces, "split": sum(step[0].sampled for step in steps)}


def gradients(tell: Any, devices: list[str]) -> str:
    """Compare steps with plain PyTorch: split for sampling, in uneven micro-batches, and weighted
    by job.weigh."""
    figures = []
    for name, weighed, most in (
        ("split", False, 50),
        ("accumulated", False, 16),
        ("weighed", True, 16),
    ):
        result = Child(_gradients, devices[0], weighed, most).next(60.0)
        if result["pieces"] < 2:
            raise CheckFailed(f"{name}: no step was split, so nothing was checked")
        figures.append("{} {:.0e}".format(name, result["worst"]))
        if not result["worst"] < GRADIENTS:
            raise CheckFailed("errors too large: {}".format("; ".join(figures)))
    return "largest relative difference: {}".format(", ".join(figures))


def _noise(_: Any, device: str) -> float:
    enter(device)
    training = Training(Plan(batch=64, most=64, rate=1e-4))
    statistics = training.job._engine.statistics
    # The same on both devices. Otherwise the duration of steps decides which are sampled and when
    # samples are averaged.
    training.loader.sampler.sample_every = 1
    statistics.sample_every = lambda step_seconds: 1  # type: ignore[method-assign]
    statistics.publish = lambda: None  # type: ignore[method-assign]
    training.run(NOISE_STEPS)
    type(statistics).publish(statistics)
    return training.job.noise_scale


def noise(tell: Any, devices: list[str]) -> str:
    """Compare the noise scale on the device with that on the CPU, for the same data and weights."""
    children = [Child(_noise, device) for device in (devices[0], CPU)]
    first_answer, second_answer = [child.next(60.0) for child in children]
    figure = f"{first_answer:.1f} examples, {second_answer:.1f} on the CPU, {NOISE_STEPS} steps"
    if not second_answer > 0.0 or abs(first_answer / second_answer - 1.0) > NOISE:
        raise CheckFailed(figure)
    return figure + f" ({first_answer / second_answer - 1.0:+.2%})"
