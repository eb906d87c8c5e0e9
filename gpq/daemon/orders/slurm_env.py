"""What scripts written for Slurm read about where they run, for jobs whose submission found
`#SBATCH` lines."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from gpq.core.model.actions import Launch
from gpq.core.model.nodes import Node
from gpq.core.model.units import NodeId
from gpq.rpc.protocol import LIKE_SLURM

IN_ARRAY = {"GPQ_ARRAY_ID": "JOB_ID", "GPQ_ARRAY_INDEX": "TASK_ID", "GPQ_ARRAY_SIZE": "TASK_COUNT"}


def variables(launch: Launch, node: NodeId, nodes: Mapping[NodeId, Node]) -> dict[str, str]:
    """Empty for other jobs. What the submission knew is already in the job's own environment."""
    env = dict(launch.spec.env)
    if env.get(LIKE_SLURM) != "1":
        return {}
    parts = launch.placement.parts
    names = [str(name) for name, _ in parts]
    gpus = _gpus(launch, node, nodes)
    tasks = max(_number(env, "SLURM_NTASKS", 1) // len(parts), 1)
    settings = {
        "SLURM_JOB_ID": str(launch.job),
        "SLURM_JOBID": str(launch.job),
        "SLURM_JOB_USER": launch.spec.user,
        "SLURM_JOB_UID": str(launch.spec.uid),
        "SLURM_JOB_NUM_NODES": str(len(parts)),
        "SLURM_NNODES": str(len(parts)),
        "SLURM_JOB_NODELIST": ",".join(names),
        "SLURM_NODELIST": ",".join(names),
        "SLURMD_NODENAME": str(node),
        "SLURM_NODEID": str(names.index(str(node))),
        "SLURM_TOPOLOGY_ADDR": str(node),
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": "0",
        "SLURM_TASKS_PER_NODE": _for_each([tasks] * len(parts)),
        "SLURM_CPUS_ON_NODE": str(_cpus(env, len(gpus), tasks)),
        "SLURM_JOB_CPUS_PER_NODE": _for_each(
            [_cpus(env, len(devices), tasks) for _, devices in parts]
        ),
        "SLURM_GPUS_ON_NODE": str(len(gpus)),
        "SLURM_JOB_GPUS": ",".join(map(str, gpus)),
    }
    if launch.attempt > 1:  # Slurm sets it only for a restarted job
        settings["SLURM_RESTART_COUNT"] = str(launch.attempt - 1)
    return settings | {
        f"SLURM_ARRAY_{slurm_name}": env[gpq_name]
        for gpq_name, slurm_name in IN_ARRAY.items()
        if gpq_name in env
    }


def _gpus(launch: Launch, node: NodeId, nodes: Mapping[NodeId, Node]) -> list[int]:
    """Indices of its devices on this server, or their positions if the server is not known."""
    ids = next((devices for name, devices in launch.placement.parts if name == node), ())
    indices = {}
    if node in nodes:
        indices = {device.id: device.index for device in nodes[node].devices}
    return [indices.get(device_id, place) for place, device_id in enumerate(ids)]


def _cpus(env: Mapping[str, str], gpus: int, tasks: int) -> int:
    """As many as the job asked sbatch for, otherwise 1 per task."""
    by_gpu = _number(env, "SLURM_CPUS_PER_GPU", 0) * gpus
    return by_gpu or _number(env, "SLURM_CPUS_PER_TASK", 1) * tasks


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    """`default` for what is not a number, because anybody may set it."""
    text = env.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


def _for_each(counts: list[int]) -> str:
    """`8(x2),4` of [8, 8, 4]."""
    runs = [(count, len(list(group))) for count, group in groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
