"""Several GPUs: the gradient of a step over two replicas. On CPUs by gloo, on GPUs by NCCL."""

import os
import socket
from typing import Any, Dict, List

import torch.distributed as dist

from .processes import CPU, CheckFailed, CheckSkipped, Child, device_environ
from .steps import GRADIENTS, Recorded, difference
from .trainings import Pass, Plan, Training, enter

OPEN = 50.0  # seconds


def _replica(_: Any, environ: Dict[str, str], most: int) -> Dict[str, Any]:
    enter(CPU)
    os.environ.update(environ)
    training = Training(Plan(batch=50, most=most))
    kept = Recorded(training.optimizer)
    steps: List[List[Pass]] = []
    training.run(12, steps.append)
    indices = [[index for one in step for index in one.indices] for step in steps]
    everybody: List[Any] = [None, None]
    dist.all_gather_object(everybody, indices)
    if training.job.rank:
        return {}
    worst = max(
        difference(training, first + second, row) for first, second, row in zip(everybody[0], everybody[1], kept.rows)
    )
    return {"worst": worst, "backend": dist.get_backend(), "pieces": max(len(step) for step in steps)}


def gradients(tell: Any, devices: List[str]) -> str:
    """Averaged over two replicas, in one piece and accumulated, against plain PyTorch's over all their examples."""
    if len(devices) < 2:
        raise CheckSkipped("needs two free GPUs, {} is here".format(len(devices)))
    figures = []
    for name, most in (("whole", 25), ("accumulated", 9)):
        port = str(_port())
        common = dict(device_environ(*devices[:2]), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
        children = [
            Child(_replica, dict(common, MASTER_PORT=port, RANK=rank, LOCAL_RANK=rank), most) for rank in ("0", "1")
        ]
        answer, _ = [child.next(OPEN) for child in children]
        figures.append("{} {:.0e}".format(name, answer["worst"]))
        if not answer["worst"] < GRADIENTS:
            raise CheckFailed("off by {}".format("; ".join(figures)))
    return "largest relative difference, by {}: {}".format(answer["backend"], ", ".join(figures))


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
