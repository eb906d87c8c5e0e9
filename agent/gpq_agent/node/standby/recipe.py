"""What an attempt must have in common with a standby: its program, its interpreter, its variables,
its attributes."""

import hashlib
import json
import os
import shutil
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from gpq_agent import wire
from gpq_agent.node.shim.launch import OF_TORCHRUN

THREADS = "OMP_NUM_THREADS"
# variables of wire.READ_AT_START that differ between attempts, and that no import reads
OF_ATTEMPTS = (
    "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip


class Recipe(NamedTuple):
    """How to make a standby. `program`: the script, which has used the library before. `env`: what
    an import may read, without the secrets of the job."""

    program: str
    python: str
    env: Dict[str, str]
    attributes: Optional[Dict[str, Any]]

    @property
    def key(self) -> str:
        """Equal for attempts that one standby fits."""
        return hashlib.sha256(json.dumps(self, sort_keys=True).encode()).hexdigest()


def is_of_attempt(name: str) -> bool:
    """May this variable differ between attempts that one standby fits?"""
    return name in OF_ATTEMPTS or not name.startswith(wire.READ_AT_START)


def recipes(order: wire.StartOrder, env: Dict[str, str]) -> List[Recipe]:
    """That of the order, then those that its job may need after a resize. Empty if the order is not
    for a standby. `env`: its whole environment."""
    if order.standby_after is None or len(order.argv) < 2 or order.argv[1].startswith("-"):
        return []
    path = env.get("PATH", os.defpath)
    python = shutil.which(order.argv[0], path=path)
    program = os.path.realpath(os.path.join(order.cwd, order.argv[1]))
    if python is None or not os.path.isfile(program):
        return []
    common = {name: value for name, value in env.items() if not is_of_attempt(name)}
    variants = [common, *_of_other_sizes(common, env)]
    return [Recipe(program, python, variant, order.attributes) for variant in variants]


def _of_other_sizes(common: Dict[str, str], env: Dict[str, str]) -> Iterator[Dict[str, str]]:
    """On GPUs torchrun's default for the threads holds for several replicas only."""
    if not env.get("CUDA_VISIBLE_DEVICES"):
        return
    if THREADS not in common:
        yield {**common, THREADS: OF_TORCHRUN[THREADS]}
    elif THREADS in json.loads(env.get(wire.ENV_DEFAULTS, "{}")):
        yield {name: value for name, value in common.items() if name != THREADS}
