"""What an attempt must have in common with a standby, and the process of a standby until it has an
attempt: its parent on the side of the agent."""

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import socket
from typing import Any, Dict, Iterator, List, NamedTuple, NoReturn, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.host import attributes
from gpq_agent.node.shim import shim
from gpq_agent.node.shim.launch import OF_TORCHRUN
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.standby import passing

THREADS = "OMP_NUM_THREADS"
# variables of wire.READ_AT_START that differ between attempts, and that no import reads
OF_ATTEMPTS = (
    "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip

INTERPRETER = os.path.join(os.path.dirname(__file__), "interpreter.py")
PROBE_SECONDS = 2.0  # in which the child must answer before it gets an attempt


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


class Handover(NamedTuple):
    """An attempt for a standby. `locks`: that of the attempt, then those of its GPUs."""

    order: wire.StartOrder
    env: Dict[str, str]
    cores: List[int]
    locks: List[int]


def wait(place: Spool, recipe: Recipe, agent: socket.socket) -> None:
    """The body of the process. `agent`: the socket to the agent. Without an agent it ends."""
    child, channel = _start(recipe)
    try:
        handover = _await(agent, channel)
        if handover is None:
            return
        _begin(place, handover, child, channel)
    finally:
        _end(child)


def _start(recipe: Recipe) -> Tuple[int, socket.socket]:
    """(pid, socket) of an interpreter that imports."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        _become_interpreter(recipe, theirs)
    finally:
        os._exit(1)


def _become_interpreter(recipe: Recipe, channel: socket.socket) -> NoReturn:
    os.setsid()
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if recipe.attributes is not None:
        attributes.apply(attributes.of(recipe.attributes))
    channel.set_inheritable(True)
    env = {**recipe.env, wire.ENV_MARK: wire.STANDBY_MARK}
    os.execve(recipe.python, [recipe.python, INTERPRETER, str(channel.fileno())], env)


def _await(agent: socket.socket, channel: socket.socket) -> Optional[Handover]:
    """The attempt to start. None if the agent or the child has ended."""
    while True:
        readable, _, _ = select.select([agent, channel], [], [])
        if channel in readable:
            message, _ = passing.receive(channel)
            if message is None:
                return None
            passing.send(agent, message)
        if agent in readable:
            message, locks = passing.receive(agent)
            if message is None:
                return None
            # The agent may have given up by now and started the attempt without this standby.
            passing.send(agent, {"taken": True})
            confirmation, _ = passing.receive(agent)
            if confirmation is None:
                return None
            agent.close()
            order = wire.StartOrder(**message["order"])
            return Handover(order, message["env"], message["cores"], locks)


def _begin(place: Spool, handover: Handover, child: int, channel: socket.socket) -> None:
    """Become the shim of the attempt. Without a fit child, start it as any other."""
    order, env, cores, (_, *gpus) = handover
    if not _is_fit(channel):
        _end(child)
        shim.start(place, order, env, cores, gpus)
        return
    request = {"order": order._asdict(), "env": env, "cores": cores}
    shim.supervise(
        place, order, env, gpus, child,
        go=lambda: passing.send(channel, request, gpus),
        call_off=channel.close,
        warm=True,
    )  # fmt: skip


def _is_fit(channel: socket.socket) -> bool:
    channel.settimeout(PROBE_SECONDS)
    try:
        passing.send(channel, {"probe": True})
        answer, _ = passing.receive(channel)
        channel.settimeout(None)
    except (OSError, ValueError):
        return False
    return answer is not None and bool(answer.get("fit"))


def _end(child: int) -> None:
    """End the child if it still lives, and collect it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
