"""What the core decided -> the order that a server receives: complete command lines and
environments, with what scripts written for Slurm read about where they run. It says how. The core
said what."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any

from gpq_agent import wire

from gpq.attributes import OF_MACHINES, RESOURCES, UNLIMITED
from gpq.core.feasibility.environments import early
from gpq.core.feasibility.leases import margin
from gpq.core.model.actions import Forget, Launch, Prepare, Retune, Stop
from gpq.core.model.jobs import TORCHRUN, Attributes, JobSpec, Level
from gpq.core.model.nodes import Node
from gpq.core.model.units import NodeId, Seconds
from gpq.rpc.protocol import LIKE_SLURM

LOOPBACK = "127.0.0.1"
NONE: Mapping[str, str] = MappingProxyType({})
# For every Python that a job starts, directly or below a shell. A buffered log is 8 KiB behind its
# job, and a kill loses that much.
DEFAULTS = MappingProxyType({"PYTHONHASHSEED": wire.HASH_SEED, "PYTHONUNBUFFERED": "1"})
_WIRE_LEVEL = {Level.BLACK_BOX: "black-box", Level.SIGNAL: "signal", Level.SCRIPT: "adaptive"}
IN_ARRAY = {"GPQ_ARRAY_ID": "JOB_ID", "GPQ_ARRAY_INDEX": "TASK_ID", "GPQ_ARRAY_SIZE": "TASK_COUNT"}


def can_meet(launch: Launch, nodes: Mapping[NodeId, Node]) -> bool:
    """Is it known where all of them are? After its start the daemon must hear of them first."""
    parts = launch.placement.parts
    return len(parts) == 1 or all(name in nodes and nodes[name].boot_id for name, _ in parts)


def masters(launch: Launch, nodes: Mapping[NodeId, Node]) -> tuple[str, ...]:
    """Addresses under which the others may reach rank 0's server, the most likely first. If all are
    on one machine, they need no network."""
    servers = [nodes[name] for name, _ in launch.placement.parts]
    addresses = servers[0].addresses or (servers[0].address,)
    if len({node.boot_id for node in servers}) == 1:
        addresses = (LOOPBACK, *addresses)
    return tuple(dict.fromkeys(addresses))


def start_order(
    launch: Launch,
    node: NodeId,
    *,
    nodes: Mapping[NodeId, Node],
    library: str,
    python: str = "",
    variables: Mapping[str, str] = NONE,
    local: Attributes | None = None,
) -> wire.StartOrder:
    """The order for one server of `launch.placement`. Raises KeyError for another. `library` is the
    folder on that server that holds only gpq_agent, because a folder with more would hide packages
    of the script's own environment. `python` is that server's `script_python`, and `variables` are
    those of all jobs there. `local` has the attributes of jobs that noted none, if it is this
    machine."""
    parts = launch.placement.parts
    rank = [name for name, _ in parts].index(node)
    spec = launch.spec
    resumes = launch.attempt > 1 and not launch.fresh
    command = [*spec.argv, *(spec.resume_argv if resumes else ())]
    env = {
        **DEFAULTS, **variables, **slurm_variables(launch, node, nodes), **dict(spec.env),
    }  # fmt: skip
    may_stand_by = spec.level is Level.SCRIPT and not (spec.rigid or spec.launcher or spec.stdin)
    port = 0
    ranks: list[int] = []
    ways: tuple[str, ...] = ()
    if spec.level is Level.SCRIPT:
        port = launch.port
        ways = masters(launch, nodes) if len(parts) > 1 else ()
        address = next(iter(ways), LOOPBACK)
        env |= _script_env(env, spec, library)
        launcher: list[str] = []
        if launch.placement.replicas > 1 and spec.launcher == TORCHRUN:
            launcher = _torchrun(launch, rank, address)
        else:
            env |= _world(launch, rank, address)
            if launch.placement.replicas > 1:  # the rank of a single one is in its environment
                first = sum(len(devices) for _, devices in parts[:rank])
                ranks = list(range(first, first + len(parts[rank][1])))
        command = [interpreter(spec, python), *launcher, *command]
    return wire.StartOrder(
        job=launch.job,
        attempt=launch.attempt,
        argv=command,
        # a folder of the frozen code, otherwise one of the server
        cwd=(spec.code_cwd or ".") if spec.code else spec.cwd,
        code=spec.code,
        stdin=spec.stdin,
        env=env,
        paths=list(spec.paths),
        devices=list(parts[rank][1]),
        level=_WIRE_LEVEL[spec.level],
        signal=spec.signal,
        time_limit=spec.time_limit,
        port=port,
        node_rank=rank,
        ranks=ranks,
        standby_after=0.0 if may_stand_by else None,
        control=_control(launch),
        node_count=len(parts),
        servers=[str(name) for name, _ in parts],
        masters=list(ways),
        interface=nodes[node].interface if ways else "",
        environment=spec.environment,
        setup=bool(spec.setup),
        any_python=_gives_way(spec, python),
        done_file=spec.done_file,
        attributes=_attributes(spec, local),
        lease=spec.requeue_on_lost,
        lease_margin=margin(spec.requeue_on_lost),
        fresh=launch.fresh,
        console=spec.console,
    )


def as_expected(launch: Launch) -> Launch:
    """What a server may know of a launch that it expects, which may happen elsewhere."""
    env = tuple(early(launch.spec.env, wire.READ_AT_START))
    return replace(
        launch, spec=launch.spec.having(argv=launch.spec.argv[:1], resume_argv=(), env=env)
    )


def message(action: Stop | Retune | Forget) -> tuple[str, dict[str, Any]]:
    """The operation of an order that is not a start, and its fields."""
    key = wire.attempt_key(action.job, action.attempt)
    match action:
        case Stop():
            return "stop", {"attempt": key, "mode": action.mode, "grace": action.grace}
        case Retune():
            return "control", {"attempt": key, "control": _control(action)}
        case Forget():
            return "forget", {"attempt": key}


def _control(action: Launch | Retune) -> dict[str, Any]:
    """A wire.Control."""
    order = action.order
    return wire.Control(
        attempt=action.attempt,
        seq=order.seq,
        atomic_batch=order.atomic_batch,
        accum_steps=order.accum_steps,
    )._asdict()


def prepare_order(
    prepare: Prepare,
    python: str,
    limit: Seconds,
    variables: Mapping[str, str] = NONE,
    local: Attributes | None = None,
) -> wire.PrepareOrder:
    """What a server must check for. `python` is its `script_python`, and `limit` is the time for a
    setup. The others as above."""
    spec = prepare.spec
    return wire.PrepareOrder(
        environment=prepare.environment,
        # frozen code is sent when there is a start to send it for
        cwd="~" if spec.code else spec.cwd,
        python=interpreter(spec, python) if spec.level is Level.SCRIPT else "",
        any_python=_gives_way(spec, python),
        setup=spec.setup,
        modules=list(spec.modules),
        env={**variables, **dict(early(spec.env) if spec.setup or spec.modules else ())},
        limit=limit,
        attributes=_attributes(spec, local),
    )


def _attributes(spec: JobSpec, local: Attributes | None) -> dict[str, object] | None:
    """wire.Attributes. None: those of a login there. Limits that depend on a machine's memory or
    network stay those of the other machine."""
    source = spec.attributes or local
    if source is None:
        return None
    limits = {name: [UNLIMITED, UNLIMITED] for name in RESOURCES}
    limits |= {name: [soft, hard] for name, soft, hard in source.limits}
    if local is None:
        for name in OF_MACHINES:
            limits.pop(name, None)
    return wire.Attributes(source.umask, source.nice, limits)._asdict()


def interpreter(spec: JobSpec, of_node: str) -> str:
    """For a script: the one its user named, otherwise the server's own, otherwise the one that was
    active at its submission."""
    if not spec.python_asked and of_node:
        return of_node
    return spec.python or "python3"


def _gives_way(spec: JobSpec, of_node: str) -> bool:
    """May the setup bring another interpreter?"""
    return bool(spec.setup) and spec.level is Level.SCRIPT and not spec.python_asked and not of_node


def _script_env(env: Mapping[str, str], spec: JobSpec, library: str) -> dict[str, str]:
    """Variables of a script that override `env`."""
    folders = env.get("PYTHONPATH", "").split(":")
    variables = {wire.ENV_LEAST_GPUS: str(spec.min_gpus)}
    if folders[0] != library:  # as in what such a script submits
        variables["PYTHONPATH"] = ":".join(filter(None, [library, *folders]))
    if spec.accept:
        variables[wire.ENV_ACCEPTED] = ",".join(spec.accept)
    if spec.proof is not None:
        proof = wire.Proof(
            spec.proof.program, list(spec.proof.same), list(spec.proof.lost), spec.proof.message
        )
        variables[wire.ENV_PROOF] = json.dumps(proof._asdict())
    return variables


def _torchrun(launch: Launch, rank: int, address: str) -> list[str]:
    """torchrun with exact sizes: with an elastic range every start would wait half a minute for
    more servers."""
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


def _world(launch: Launch, node_rank: int, address: str) -> dict[str, str]:
    """What torchrun would set for all replicas of one server, and for a single replica all that it
    would set."""
    parts = launch.placement.parts
    replicas, local_replicas = launch.placement.replicas, len(parts[node_rank][1])
    ranks = {"RANK": 0, "LOCAL_RANK": 0, "ROLE_RANK": 0} if replicas == 1 else {}
    numbers = {
        "WORLD_SIZE": replicas,
        "ROLE_WORLD_SIZE": replicas,
        "LOCAL_WORLD_SIZE": local_replicas,
        "GROUP_WORLD_SIZE": len(parts),
        "GROUP_RANK": node_rank,
        **ranks,
        "MASTER_PORT": launch.port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return {
        **{name: str(number) for name, number in numbers.items()},
        "MASTER_ADDR": address,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": wire.attempt_key(launch.job, launch.attempt),
    }


def slurm_variables(launch: Launch, node: NodeId, nodes: Mapping[NodeId, Node]) -> dict[str, str]:
    """Empty for other jobs. What the submission knew is already in the job's own environment."""
    env = dict(launch.spec.env)
    if env.get(LIKE_SLURM) != "1":
        return {}
    parts = launch.placement.parts
    names = [str(name) for name, _ in parts]
    # indices of its devices here, or their positions if the server is not known
    known_devices = nodes[node].devices if node in nodes else ()
    indices = {device.id: device.index for device in known_devices}
    gpus = [indices.get(device_id, place) for place, device_id in enumerate(dict(parts)[node])]
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


def _cpus(env: Mapping[str, str], gpus: int, tasks: int) -> int:
    """As many as the job asked sbatch for, otherwise 1 per task."""
    by_gpu = _number(env, "SLURM_CPUS_PER_GPU", 0) * gpus
    return by_gpu or _number(env, "SLURM_CPUS_PER_TASK", 1) * tasks


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    """`default` for what is not a number, because anybody may set it."""
    text = env.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else default


def _for_each(counts: list[int]) -> str:
    """`8(x2),4` of [8, 8, 4]."""
    runs = [(count, len(list(group))) for count, group in groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
