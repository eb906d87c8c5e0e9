"""The process of a standby until it has an attempt: its parent on the side of the agent."""

import contextlib
import os
import select
import signal
import socket
from typing import Dict, List, NamedTuple, NoReturn, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.host import attributes, passing
from gpq_agent.node.shim import shim
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.standby.recipe import Recipe

INTERPRETER = os.path.join(os.path.dirname(wire.__file__), "standby", "interpreter.py")
PROBE_SECONDS = 2.0  # in which the child must answer before it gets an attempt


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
