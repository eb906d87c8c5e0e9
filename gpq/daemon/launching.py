"""A Launch -> the start orders of its nodes: complete command lines and environments. Says how; the core said what."""

from __future__ import annotations

from collections.abc import Mapping

from gpq_agent import wire

from gpq.core.actions import Launch, Retune
from gpq.core.leases import margin
from gpq.core.models import JobSpec, Level
from gpq.core.units import NodeId

_WIRE_LEVEL = {Level.BLACK_BOX: "black-box", Level.SIGNAL: "signal", Level.SCRIPT: "adaptive"}


def start_order(launch: Launch, node: NodeId, *, addresses: Mapping[NodeId, str], library: str) -> wire.StartOrder:
    """The order for one node of `launch.placement`; raises KeyError for another. `library`: the folder on that node
    that holds gpq_agent and nothing else (a folder with more would hide packages of the script's own environment)."""
    parts = launch.placement.parts
    rank = [name for name, _ in parts].index(node)
    spec = launch.spec
    command = [*spec.argv, *(spec.resume_argv if launch.attempt > 1 else ())]
    env = dict(spec.env)
    port = 0
    if spec.level is Level.SCRIPT:
        port = launch.port
        address = addresses[parts[0][0]]
        _for_scripts(env, library)
        if launch.placement.replicas == 1:
            env.update(_alone(launch, address))
            command = [_python(spec), *command]
        else:
            command = [_python(spec), *_launcher(launch, rank, address), *command]
    return wire.StartOrder(
        job=launch.job,
        attempt=launch.attempt,
        argv=command,
        cwd=(spec.code_cwd or ".") if spec.code else spec.cwd,
        code=spec.code,
        env=env,
        devices=list(parts[rank][1]),
        level=_WIRE_LEVEL[spec.level],
        signal=spec.signal,
        time_limit=spec.time_limit,
        port=port,
        node_rank=rank,
        control=wire.Control(
            attempt=launch.attempt,
            seq=launch.order.seq,
            atomic_batch=launch.order.atomic_batch,
            accum_steps=launch.order.accum_steps,
        )._asdict(),
        lease=spec.requeue_on_lost,
        lease_margin=margin(spec.requeue_on_lost),
    )


def control(retune: Retune) -> wire.Control:
    return wire.Control(
        attempt=retune.attempt,
        seq=retune.order.seq,
        atomic_batch=retune.order.atomic_batch,
        accum_steps=retune.order.accum_steps,
    )


def _python(spec: JobSpec) -> str:
    return spec.python or "python3"


def _for_scripts(env: dict[str, str], library: str) -> None:
    before = env.get("PYTHONPATH", "")
    env["PYTHONPATH"] = f"{library}:{before}" if before else library
    env.setdefault("PYTHONUNBUFFERED", "1")  # else a log follows its job by 8 KiB


def _launcher(launch: Launch, rank: int, address: str) -> list[str]:
    """torchrun with exact sizes: an elastic range would make every start wait half a minute for more nodes to come."""
    parts = launch.placement.parts
    return [
        "-m",
        "torch.distributed.run",
        f"--nnodes={len(parts)}",
        f"--node-rank={rank}",
        f"--nproc-per-node={len(parts[rank][1])}",
        "--rdzv-backend=static",
        f"--master-addr={address}",
        f"--master-port={launch.port}",
        "--max-restarts=0",
    ]


def _alone(launch: Launch, address: str) -> dict[str, str]:
    """What torchrun would set for a single replica. Without the launcher a start is the seconds shorter that it takes
    to import torch once more."""
    ones = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
    zeros = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")
    return {
        **dict.fromkeys(ones, "1"),
        **dict.fromkeys(zeros, "0"),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(launch.port),
        "TORCHELASTIC_RUN_ID": wire.attempt_key(launch.job, launch.attempt),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
