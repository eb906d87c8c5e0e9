"""Does CUDA work at all? Opens each GPU by its name, tries names of missing GPUs, and checks the
times between events."""

import os
import time
from typing import Any

import gpq_agent.train as gpq
import torch
from gpq_agent.train.process.timing import StepClock

from .processes import CPU, CheckFailed, Child, device_environ
from .trainings import enter

NO_GPU = "GPU-00000000-0000-0000-0000-000000000000"
SIZE = 1024  # of the matrices
TOLERANCE = 1e-4  # for a product in single precision
CLOCKS = 0.05  # allowed difference between events and the wall clock
OPEN = 40.0  # seconds


def product(_: Any, device: str) -> str:
    """Compute one matrix product on this device and compare it with double precision on the CPU."""
    enter(device)
    job = gpq.init()
    name = "CPU"
    if device != CPU:
        properties = torch.cuda.get_device_properties(job.device)
        name = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
        uuid = str(getattr(properties, "uuid", ""))
        if len(uuid) == len(NO_GPU) - len("GPU-") and device.startswith("GPU-") and uuid not in device:
            raise CheckFailed(f"CUDA opened {uuid} instead")
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    begin = time.monotonic()
    answer = torch.mm(first.to(job.device), second.to(job.device)).cpu().double()
    seconds = time.monotonic() - begin
    exact = first.double() @ second.double()
    error = float((answer - exact).norm() / exact.norm())
    if not error < TOLERANCE:
        raise CheckFailed(f"{name}: a matrix product has an error of {error:.1e}")
    return f"{name}: error {error:.0e}, first product {seconds:.2f} s"


def products(tell: Any, devices: list[str]) -> str:
    """Use one process per device, as jobs do."""
    children = {device: Child(product, device) for device in devices}
    answers = [_answer(device, child) for device, child in children.items()]
    figure = "; ".join(text for _, text in answers)
    if not all(passed for passed, _ in answers):
        raise CheckFailed(figure)
    return figure


def _answer(device: str, child: Child) -> tuple[bool, str]:
    """Whether it passed, and the device with its figure."""
    try:
        return True, f"{short(device)} {child.next(OPEN)}"
    except CheckFailed as error:
        return False, f"{short(device)} {error}"


def _refused(_: Any, names: str, replicas: int) -> str:
    enter(CPU)
    os.environ.update(device_environ(*names.split(",")))
    if replicas > 1:
        os.environ.update(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(replicas), LOCAL_WORLD_SIZE=str(replicas),
            MASTER_ADDR="127.0.0.1", MASTER_PORT="1",
        )  # fmt: skip
    try:
        job = gpq.init()
    except gpq.GpqTrainError as refusal:
        return refusal.message
    raise CheckFailed(f"expected a refusal, but the job runs on {job.device}")


def wrong_names(tell: Any, devices: list[str]) -> str:
    """Try the name of a GPU that does not exist, alone and after the name of one that does. CUDA
    leaves out such names silently."""
    wrong_child = Child(_refused, NO_GPU, 1)
    mixed_child = Child(_refused, f"{devices[0]},{NO_GPU}", 2) if devices[0] != CPU else None
    words = [wrong_child.next(OPEN)]
    if mixed_child is not None:
        words.append(mixed_child.next(OPEN))
    return "refused: {}".format("; ".join(words))


def events(tell: Any, devices: list[str]) -> str:
    """Compare gpq's clock of steps with the wall clock, over matrix products that take a third of a
    second or more."""
    enter(devices[0])
    job = gpq.init()
    clock = StepClock(job.device)
    size = 4096 if job.device.type == "cuda" else 256
    matrix = torch.randn(size, size, device=job.device)

    def timed(times: int) -> list[float]:
        _wait(job.device)
        begin, first = time.perf_counter(), clock.mark()
        for _ in range(times):
            torch.mm(matrix, matrix)
        last = clock.mark()
        _wait(job.device)
        return [time.perf_counter() - begin, clock.seconds(first, last)]

    timed(3)
    times = 10
    while timed(times)[0] < 0.3 and times < 100000:
        times *= 2
    rows = [timed(times) for _ in range(3)]
    wall_seconds, marks = min(rows, key=lambda row: abs(row[1] / row[0] - 1.0))
    figure = f"{1e3 * marks:.1f} ms by events, {1e3 * wall_seconds:.1f} ms by the wall clock ({marks / wall_seconds - 1.0:+.1%})"
    if abs(marks / wall_seconds - 1.0) > CLOCKS:
        raise CheckFailed(figure)
    return figure


def short(device: str) -> str:
    return device if device == CPU else device[:12]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
