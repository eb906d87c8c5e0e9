"""One replica of a cell, in its own process: runs the loop, and leaves what it trained or how it failed."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gpq_agent.train as gpq
import torch
from gpq_agent import wire
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import plain
from .catalogue import load
from .material import PACER
from .shapes import BATCH


def run_replica(
    environment: Mapping[str, str], name: str, options: dict[str, Any], folder: str, stop_after: int | None
) -> None:
    """Run one replica. `folder` gets stderr.RANK and weights.RANK.pt or failure.RANK. No environment: plain PyTorch."""
    rank = environment.get("RANK", "0")
    stream = os.open(os.path.join(folder, f"stderr.{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(stream, target)
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    habit = load()[name]
    torch.set_default_dtype(getattr(torch, habit.dtype))
    if stop_after is not None:
        _stop_after(stop_after, int(environment.get("WORLD_SIZE", "1")), environment)
    try:
        kept = habit.loop(gpq if environment else plain, dict(options))
        torch.save(dict(numbers(kept)), os.path.join(folder, f"weights.{rank}.pt"))
    except Exception as error:
        sys.excepthook(*sys.exc_info())
        failure = {
            "error": type(error).__name__,
            "message": str(error).splitlines()[0] if str(error) else "",
            "hint": error.hint if isinstance(error, gpq.GpqTrainError) else "",
        }
        Path(folder, f"failure.{rank}").write_text(json.dumps(failure))
        sys.stderr.flush()
        os._exit(1)


def _stop_after(steps: int, replicas: int, environment: Mapping[str, str]) -> None:
    PACER.stop_after, PACER.per_step = steps, BATCH // replicas
    if environment.get("RANK", "0") == "0":
        control = wire.Control(attempt=int(environment[wire.ENV_ATTEMPT]), seq=1, stop=True)
        path = os.path.join(environment[wire.ENV_RUN_DIR], wire.CONTROL)
        PACER.order = lambda: wire.write_json(path, control._asdict())


def numbers(kept: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All numbers in the result of a loop, by name: parameters and buffers of modules, items of lists and dicts."""
    if isinstance(kept, (DistributedDataParallel, torch._dynamo.OptimizedModule)):
        inner = kept.module if isinstance(kept, DistributedDataParallel) else kept._orig_mod
        yield from numbers(inner, name)
    elif isinstance(kept, nn.Module):
        for key, value in [*kept.named_parameters(), *kept.named_buffers()]:
            yield from numbers(value, f"{name}.{key}" if name else key)
    elif isinstance(kept, dict):
        for key, value in kept.items():
            yield from numbers(value, f"{name}.{key}" if name else str(key))
    elif isinstance(kept, (list, tuple)):
        for index, value in enumerate(kept):
            yield from numbers(value, f"{name}.{index}" if name else str(index))
    elif isinstance(kept, torch.Tensor):
        if kept.is_floating_point() or kept.is_complex():
            yield name, kept.detach().clone()
    else:
        yield name, torch.tensor(float(kept))
