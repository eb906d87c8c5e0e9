"""What scripts written for Slurm read of where they run, for jobs whose submission found `#SBATCH` lines."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.actions import Launch
from gpq.core.nodes import Node
from gpq.core.units import NodeId
from gpq.rpc.messages import LIKE_SLURM


def variables(launch: Launch, node: NodeId, nodes: Mapping[NodeId, Node]) -> dict[str, str]:
    """Empty for a job that came otherwise. What its submission knew is in its own environment already."""
    env = dict(launch.spec.env)
    if env.get(LIKE_SLURM) != "1":
        return {}
    ids = next((devices for name, devices in launch.placement.parts if name == node), ())
    known = {device.id: device.index for device in nodes[node].devices} if node in nodes else {}
    made = {
        "SLURM_JOB_ID": str(launch.job),
        "SLURM_JOBID": str(launch.job),
        "SLURM_JOB_USER": launch.spec.user,
        "SLURM_JOB_NUM_NODES": str(len(launch.placement.parts)),
        "SLURM_NNODES": str(len(launch.placement.parts)),
        "SLURM_JOB_NODELIST": ",".join(str(name) for name, _ in launch.placement.parts),
        "SLURM_NODELIST": ",".join(str(name) for name, _ in launch.placement.parts),
        "SLURMD_NODENAME": str(node),
        "SLURM_NODEID": str([name for name, _ in launch.placement.parts].index(node)),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GPUS_ON_NODE": str(len(ids)),
        "SLURM_JOB_GPUS": ",".join(str(known.get(each, place)) for place, each in enumerate(ids)),
        "SLURM_RESTART_COUNT": str(launch.attempt - 1),
    }
    for ours, theirs in (("ID", "JOB_ID"), ("INDEX", "TASK_ID"), ("SIZE", "TASK_COUNT")):
        if f"GPQ_ARRAY_{ours}" in env:
            made[f"SLURM_ARRAY_{theirs}"] = env[f"GPQ_ARRAY_{ours}"]
    return made
