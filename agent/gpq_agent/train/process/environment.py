"""Where this replica runs.

Reads torchrun's and gpq's environment, and binds cores or a GPU. With an empty environment it
describes one unmanaged replica. It refuses GPUs that the job was given and cannot use, because
training on the CPU would silently hold them for nothing.
"""

import os
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch

from gpq_agent import wire
from gpq_agent.train.errors import GpqTrainError, UnusableGpu


class Environment(NamedTuple):
    """Facts that stay the same while the process lives. `attempt` is 0 and the folders are None
    without gpq."""

    rank: int = 0
    replicas: int = 1
    local_rank: int = 0
    local_replicas: int = 1  # on this server
    nodes: int = 1
    launched: bool = False  # started by torchrun, so a process group can be opened
    attempt: int = 0
    least_gpus: int = 0  # that the job asked for. 0: the launcher did not say
    run_dir: Optional[str] = None
    checkpoint_dir: Optional[str] = None
    resumed: bool = False
    cores: Optional[List[int]] = None
    gpus: Tuple[str, ...] = ()  # the GPUs that gpq gave this job on this server


def read_environment(environ: Mapping[str, str]) -> Environment:
    """The Environment that these variables describe. Absent variables mean "not managed"."""
    launched = environ.keys() >= {"RANK", "WORLD_SIZE", "MASTER_ADDR"}
    launch = environ if launched else {}
    local_rank = int(launch.get("LOCAL_RANK", "0"))
    cores = None
    groups = list(filter(None, environ.get(wire.ENV_CORES, "").split(";")))
    if local_rank < len(groups):
        cores = list(map(int, filter(None, groups[local_rank].split(","))))
    devices = () if wire.ENV_CORES in environ else environ.get(wire.ENV_DEVICES, "").split(",")
    return Environment(
        rank=int(launch.get("RANK", "0")),
        replicas=int(launch.get("WORLD_SIZE", "1")),
        local_rank=local_rank,
        local_replicas=int(launch.get("LOCAL_WORLD_SIZE", local_rank + 1)),
        nodes=max(int(launch.get("GROUP_WORLD_SIZE", "1")), 1),
        launched=launched,
        attempt=int(environ.get(wire.ENV_ATTEMPT, "0")),
        least_gpus=int(environ.get(wire.ENV_LEAST_GPUS, "0")),
        run_dir=environ.get(wire.ENV_RUN_DIR) or None,
        checkpoint_dir=environ.get(wire.ENV_CHECKPOINT_DIR) or None,
        resumed=environ.get(wire.ENV_RESUME) == "1",
        cores=cores,
        gpus=tuple(filter(None, devices)),
    )


def bind_cores(cores: Optional[List[int]]) -> str:
    """Keep this process on its slot's cores, with one torch thread each. Returns a notice if that
    is refused, else ""."""
    if not cores:
        return ""
    torch.set_num_threads(len(cores))
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        return "cannot keep this replica on cores {}: {}".format(cores, error)
    return ""


def open_device(environment: Environment) -> torch.device:
    """The GPU of this local rank, opened and made current, or the CPU. A slot with cores of its own
    is a CPU slot. Raises GpqTrainError if the job's GPUs cannot be used, or are fewer than the
    replicas on this server."""
    if environment.cores is not None:
        return torch.device("cpu")
    if not environment.gpus and not torch.cuda.is_available():
        return torch.device("cpu")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        visible_gpus = torch.cuda.device_count()
        if environment.gpus and visible_gpus < environment.local_replicas:
            words = "{} replicas run on this server, but torch sees only {} of its GPUs"
            raise GpqTrainError(
                words.format(environment.local_replicas, visible_gpus),
                "each replica needs its own GPU. Start fewer, or run gpq doctor --gpu to see which "
                "GPU CUDA leaves out",
            )
        # Other launchers may show each replica only its own GPU.
        device = torch.device("cuda", environment.local_rank % visible_gpus)
        torch.cuda.set_device(device)
        # Run a kernel: only that shows whether torch was built for this GPU.
        (torch.ones(1, device=device) + 1).item()
    except GpqTrainError:
        raise
    except Exception as error:
        # The first line in torch's own words. The rest is for debugging CUDA.
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        gpus = ", ".join(environment.gpus) or "number {}".format(environment.local_rank)
        raise UnusableGpu(
            "this replica cannot use its GPU ({}): {}".format(gpus, words),
            "gpq does not train on the CPU instead. gpq doctor --gpu tests the driver and torch on "
            "that server",
        ) from error
    return device


def seconds_since_launch() -> float:
    """Seconds since gpq started this attempt, 0.0 without gpq."""
    began = _launch_record().get("started_at")  # this process may have waited for the attempt
    return max(time.time() - began, 0.0) if isinstance(began, float) else 0.0


def began_warm() -> bool:
    """Did this process wait for the attempt, with torch imported?"""
    folder = os.environ.get(wire.ENV_RUN_DIR, "")
    is_executed = os.path.exists(os.path.join(folder, wire.COLD))
    return bool(_launch_record().get("warm")) and not is_executed


def _launch_record() -> Dict[str, Any]:
    """What the shim wrote about the start of this attempt. Empty without gpq."""
    try:
        return wire.read_json(os.path.join(os.environ[wire.ENV_RUN_DIR], wire.STARTED)) or {}
    except (OSError, ValueError, KeyError):
        return {}
