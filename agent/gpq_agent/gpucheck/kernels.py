"""Does CUDA work at all? Opens each GPU by its name, tries names of missing GPUs, and checks the
times between events."""

import os
import time
from typing import Any, List

import torch

import gpq_agent.train as gpq
from gpq_agent.train.telemetry.timing import StepClock

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
        name = "{}, compute capability {}.{}".format(
            properties.name, properties.major, properties.minor
        )
        uuid = str(getattr(properties, "uuid", ""))
        if (
            len(uuid) == len(NO_GPU) - len("GPU-")
            and device.startswith("GPU-")
            and uuid not in device
        ):
            raise CheckFailed("CUDA opened {} instead".format(uuid))
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    begin = time.monotonic()
    answer = torch.mm(first.to(job.device), second.to(job.device)).cpu().double()
    seconds = time.monotonic() - begin
    exact = first.double() @ second.double()
    error = float((answer - exact).norm() / exact.norm())
    if not error < TOLERANCE:
        raise CheckFailed("{}: a matrix product has an error of {:.1e}".format(name, error))
    return "{}: error {:.0e}, first product {:.2f} s".format(name, error, seconds)


def products(tell: Any, devices: List[str]) -> str:
    """Use one process per device, as jobs do."""
    children = {device: Child(product, device) for device in devices}
    figures, failed = [], False
    for device, child in children.items():
        try:
            figures.append("{} {}".format(short(device), child.next(OPEN)))
        except CheckFailed as error:
            failed = True
            figures.append("{} {}".format(short(device), error))
    if failed:
        raise CheckFailed("; ".join(figures))
    return "; ".join(figures)


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
    raise CheckFailed("expected a refusal, but the job runs on {}".format(job.device))


def wrong_names(tell: Any, devices: List[str]) -> str:
    """Try the name of a GPU that does not exist, alone and after the name of one that does. CUDA
    leaves out such names silently."""
    wrong_child = Child(_refused, NO_GPU, 1)
    mixed_child = (
        Child(_refused, "{},{}".format(devices[0], NO_GPU), 2) if devices[0] != CPU else None
    )
    words = [wrong_child.next(OPEN)]
    if mixed_child is not None:
        words.append(mixed_child.next(OPEN))
    return "refused: {}".format("; ".join(words))


def events(tell: Any, devices: List[str]) -> str:
    """Compare gpq's clock of steps with the wall clock, over matrix products that take a third of a
    second or more."""
    enter(devices[0])
    job = gpq.init()
    clock = StepClock(job.device)
    size = 4096 if job.device.type == "cuda" else 256
    matrix = torch.randn(size, size, device=job.device)

    def timed(times: int) -> List[float]:
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
    figure = "{:.1f} ms by events, {:.1f} ms by the wall clock ({:+.1%})".format(
        1e3 * marks, 1e3 * wall_seconds, marks / wall_seconds - 1.0
    )
    if abs(marks / wall_seconds - 1.0) > CLOCKS:
        raise CheckFailed(figure)
    return figure


def short(device: str) -> str:
    return device if device == CPU else device[:12]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
