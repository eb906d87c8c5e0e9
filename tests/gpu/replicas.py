"""Several GPUs: gradients and resizes over two replicas, and a replica that fails. Uses gloo on
CPUs and NCCL on GPUs."""

import atexit
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from typing import Any, NoReturn

import torch.distributed as dist
from gpq_agent import wire
from gpq_agent.train.process.agreement import broadcast_value
from gpq_agent.train.process.process_group import LOOPBACK

from .processes import CPU, CheckFailed, CheckSkipped, Child, device_environ
from .steps import GRADIENTS, Recorded, difference
from .trainings import EXAMPLES, Pass, Plan, Training, enter

OPEN = 50.0  # seconds
BATCH = 50
STEPS = 12  # of each attempt, at least
PACE = 0.1  # seconds that a step takes at least while a check waits for a stop
FAIL_AT = 4  # steps
GONE = 15.0  # seconds in which every process of an attempt must be gone after one replica failed
TERMINATED = 128 + signal.SIGTERM


def _raise(words: str) -> None:
    raise RuntimeError(words)


FAULTS: dict[str, Callable[[], Any]] = {
    "raises": lambda: _raise("planted"),
    "exits": lambda: sys.exit(3),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "runs out of memory": lambda: _raise("CUDA out of memory, planted"),
}


def _replica(tell: Any, environ: dict[str, str], most: int, folder: str) -> None:
    """Train this many steps, or with a folder until a stop that comes after them, and report the
    steps."""
    enter(CPU)
    os.environ.update(environ)
    training = Training(Plan(batch=BATCH, most=most, largest=BATCH), folder or None)
    recorded_gradients = Recorded(training.optimizer)
    steps: list[list[Pass]] = []

    def note(passes: list[Pass]) -> None:
        steps.append(passes)
        if folder:
            time.sleep(PACE)  # so that few steps happen before every replica has seen the stop
            if len(steps) == STEPS:
                tell("ready")

    try:
        training.run(0 if folder else STEPS, note)
    finally:  # also after a stop
        _compare(tell, training, steps, recorded_gradients)


def _compare(tell: Any, training: Training, steps: list[list[Pass]], recorded_gradients: Recorded) -> None:
    own_indices = [[index for part in step for index in part.indices] for step in steps]
    indices_by_replica: list[Any] = [own_indices]
    backend = ""
    if training.job.replicas > 1:
        indices_by_replica = [
            broadcast_value(own_indices, dist.group.WORLD, rank) for rank in range(training.job.replicas)
        ]
        backend = dist.get_backend()
    indices_by_step = [list(chain.from_iterable(parts)) for parts in zip(*indices_by_replica, strict=False)]
    worst = 0.0
    if training.job.rank == 0:
        worst = max(
            difference(training, indices, row)
            for indices, row in zip(indices_by_step, recorded_gradients.rows, strict=False)
        )
    tell({"worst": worst, "backend": backend, "seen": list(chain.from_iterable(indices_by_step))})


def _attempt(devices: list[str], most: int, folder: str = "") -> dict[str, Any]:
    """Run an attempt with one replica per device. Return what rank 0 reports. Raises
    CheckFailed."""
    with tempfile.TemporaryDirectory() as meeting:
        children = [Child(_replica, environ, most, folder) for environ in _environs(devices, meeting)]
        if folder:
            for child in children:
                child.next(OPEN)
            for child in children:
                os.kill(child.pid, signal.SIGTERM)
        answer, *_ = [child.next(OPEN) for child in children]
        codes = [child.wait(OPEN) for child in children]
    if folder and set(codes) != {TERMINATED}:
        raise CheckFailed(f"after SIGTERM the exit codes are {codes}, not {TERMINATED}")
    return dict(answer)


def gradients(tell: Any, devices: list[str]) -> str:
    """Compare gradients averaged over two replicas, whole and accumulated, with plain PyTorch over
    all their examples."""
    _need_two(devices)
    figures = []
    for name, most in (("whole", 25), ("accumulated", 9)):
        answer = _attempt(devices[:2], most)
        figures.append("{} {:.0e}".format(name, answer["worst"]))
        if not answer["worst"] < GRADIENTS:
            raise CheckFailed("errors too large: {}".format("; ".join(figures)))
    return "largest relative difference with {}: {}".format(answer["backend"], ", ".join(figures))


def resize(tell: Any, devices: list[str]) -> str:
    """Run one replica, then two that accumulate, then one. The gradients must equal those of plain
    PyTorch, and no example may occur twice in an epoch."""
    _need_two(devices)
    indices: list[int] = []
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for replicas, most in ((1, 50), (2, 9), (1, 50)):
            answer = _attempt(devices[:replicas], most, folder)
            indices += answer["seen"]
            worst = max(worst, answer["worst"])
    figure = f"{len(indices) // BATCH} steps of {BATCH}, largest relative difference {worst:.0e}"
    if len(set(indices)) != min(len(indices), EXAMPLES):
        raise CheckFailed(f"{len(indices)} examples were used, {len(set(indices))} of them different: {figure}")
    if not worst < GRADIENTS:
        raise CheckFailed(figure)
    return figure


def failures(tell: Any, devices: list[str]) -> str:
    """Let one of two replicas fail while the other waits for it. Measure how long until both are
    gone, for each kind of failure."""
    _need_two(devices)
    figures, late = [], False
    for name in FAULTS:
        seconds = _until_gone(devices[:2], name)
        late = late or seconds > GONE
        figures.append(f"{name}: {seconds:.1f} s")
    figure = "time until both are gone when one {}".format(", ".join(figures))
    if late:
        raise CheckFailed(figure)
    return figure


def _until_gone(devices: list[str], fault: str) -> float:
    """Seconds from the failure of the second replica until both are gone. The first one gets a
    TERM, as launchers send it."""
    with tempfile.TemporaryDirectory() as meeting:
        first, second = (Child(_failing, environ, fault) for environ in _environs(devices, meeting))
        second.next(OPEN)
        begin = time.monotonic()
        second.wait(GONE)
        with contextlib.suppress(ProcessLookupError):
            os.kill(first.pid, signal.SIGTERM)
        first.wait(max(begin + GONE + 1.0 - time.monotonic(), 0.0))
    return time.monotonic() - begin


def _failing(tell: Any, environ: dict[str, str], fault: str) -> None:
    enter(CPU)
    os.environ.update(environ)
    training = Training(Plan(batch=BATCH, most=BATCH // 2))
    steps: list[int] = []

    def note(passes: list[Pass]) -> None:
        steps.append(len(passes))
        if len(steps) == FAIL_AT and training.job.rank == 1:
            time.sleep(1.0)  # by now the other replica waits in its backward pass
            tell("failing")
            FAULTS[fault]()

    as_a_script(lambda: training.run(2 * FAIL_AT, note))


def as_a_script(work: Callable[[], None]) -> NoReturn:
    """Run `work` and end this process as the interpreter does at the end of a script."""
    code: Any = 0
    try:
        work()
    except SystemExit as ending:
        code = ending.code
    except Exception as error:
        code = 1
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
    atexit._run_exitfuncs()
    os._exit(code if isinstance(code, int) else 1)


def _need_two(devices: list[str]) -> None:
    if len(devices) < 2:
        raise CheckSkipped(f"needs two free GPUs, found {len(devices)}")


def _environs(devices: list[str], meeting: str) -> list[dict[str, str]]:
    """The variables of one replica per device, by rank. They meet in a file of the folder."""
    replicas = str(len(devices))
    common = dict(
        device_environ(*devices), WORLD_SIZE=replicas, LOCAL_WORLD_SIZE=replicas,
        MASTER_ADDR=LOOPBACK, MASTER_PORT="1", **{wire.ENV_MEETING: os.path.join(meeting, "file")},
    )  # fmt: skip
    return [dict(common, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(len(devices))]
