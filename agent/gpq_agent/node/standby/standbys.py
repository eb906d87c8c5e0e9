"""The standbys of an agent: made while an attempt that may be resized trains, given to the next
attempt that fits, and dropped when nobody needs them.

Until it has an attempt, the process of a standby is the parent of its interpreter.
"""

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from gpq_agent import wire
from gpq_agent.node.host import attributes, procs
from gpq_agent.node.shim import shim
from gpq_agent.node.shim.launch import OF_TORCHRUN
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.standby import passing

Handover = Tuple[wire.StartOrder, Dict[str, str], List[int], List[int]]
THREADS = "OMP_NUM_THREADS"
# variables of wire.READ_AT_START that differ between attempts, and that no import reads
OF_ATTEMPTS = (
    "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip

INTERPRETER = os.path.join(os.path.dirname(wire.__file__), "standby", "interpreter.py")
PROBE_SECONDS = 2.0  # in which the child must answer before it gets an attempt

MOST = 4  # on one server
MOST_MIB = 256  # of memory, each
LEAST_FREE_MIB = 4096  # that the server must have left
KEPT_SECONDS = 600.0  # without an attempt that it would fit
EXPECTED_SECONDS = 150.0  # after the daemon's word, which it repeats every minute
PERIOD = 1.0  # seconds between two looks
ANSWER_SECONDS = 1.0  # in which a standby must take an attempt


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
    variants = [common]
    if env.get("CUDA_VISIBLE_DEVICES"):
        # On GPUs torchrun's default for the threads holds for several replicas only.
        if THREADS not in common:
            variants.append({**common, THREADS: OF_TORCHRUN[THREADS]})
        elif THREADS in json.loads(env.get(wire.ENV_DEFAULTS, "{}")):
            variants.append({name: value for name, value in common.items() if name != THREADS})
    return [Recipe(program, python, variant, order.attributes) for variant in variants]


def wait(place: Spool, recipe: Recipe, agent: socket.socket) -> None:
    """The body of the process: wait for an attempt, and become its shim. `agent`: the socket to the
    agent. Without an agent it ends."""
    child, channel = _start(recipe)
    try:
        handover = _await(agent, channel)
        if handover is None:
            return
        order, env, cores, (_, *gpus) = handover
        if not _is_fit(channel):  # start the attempt as any other
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
        os.setsid()
        procs.reset_signals()
        if recipe.attributes is not None:
            attributes.apply(attributes.of(recipe.attributes))
        theirs.set_inheritable(True)
        env = {**recipe.env, wire.ENV_MARK: wire.STANDBY_MARK}
        os.execve(recipe.python, [recipe.python, INTERPRETER, str(theirs.fileno())], env)
    finally:
        os._exit(1)


def _await(agent: socket.socket, channel: socket.socket) -> Optional[Handover]:
    """The attempt to start, None if the agent or the child has ended: (order, environment, cores,
    the lock of the attempt and those of its GPUs)."""
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
            return order, message["env"], message["cores"], locks


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


class Standby:
    """One standby. `pid`: of its interpreter, once that is ready."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pid: Optional[int] = None
        self.needed_at = time.monotonic()


class Standbys:
    """By key of `Recipe`. `tend` must be called often. Nothing here blocks for long."""

    def __init__(self, place: Spool) -> None:
        self._spool = place
        self._recipes: Dict[str, List[Recipe]] = {}  # by attempt
        # by job, of attempts elsewhere, and until when they are expected
        self._expected: Dict[int, Tuple[float, List[Recipe]]] = {}
        self._standbys: Dict[str, Standby] = {}
        self._tended_at = float("-inf")
        self._unfit: Set[str] = set()  # keys whose standby failed or was too large

    def take(
        self, order: wire.StartOrder, env: Dict[str, str], cores: List[int], locks: List[int]
    ) -> bool:
        """Give the attempt to a standby. False if none fits, and then nothing has started.

        locks: that of the attempt, then those of its GPUs.
        """
        fitting = recipes(order, env)
        if not fitting:
            return False
        self._recipes[wire.attempt_key(order.job, order.attempt)] = fitting
        standby = self._standbys.get(fitting[0].key)
        if standby is None or standby.pid is None:
            return False
        del self._standbys[fitting[0].key]
        try:
            standby.channel.settimeout(ANSWER_SECONDS)
            request = {"order": order._asdict(), "env": env, "cores": cores}
            passing.send(standby.channel, request, locks)
            answer, _ = passing.receive(standby.channel)
            if answer is None:
                return False
            passing.send(standby.channel, {"go": True})
            return True
        except (OSError, ValueError):
            return False
        finally:
            standby.channel.close()

    def expect(self, order: wire.StartOrder, env: Dict[str, str]) -> None:
        """Keep a standby for this job, which runs elsewhere."""
        self._expected[order.job] = time.monotonic() + EXPECTED_SECONDS, recipes(order, env)

    def tend(self, live: Set[str], may_move: Callable[[str], bool]) -> None:
        """Make what is missing, and drop what nobody needs. `live`: attempts that have not ended.
        `may_move`: may gpq move this attempt by now?"""
        if time.monotonic() - self._tended_at < PERIOD:
            return
        self._tended_at = time.monotonic()
        self._recipes = {key: value for key, value in self._recipes.items() if key in live}
        now = self._tended_at
        self._expected = {job: entry for job, entry in self._expected.items() if entry[0] > now}
        needed = {
            recipe.key: recipe for _, fitting in self._expected.values() for recipe in fitting
        }
        for attempt, fitting in sorted(self._recipes.items()):
            if os.path.exists(os.path.join(self._spool.folder(attempt), wire.COLD)):
                self._unfit |= {recipe.key for recipe in fitting}
            elif may_move(attempt):
                needed.update((recipe.key, recipe) for recipe in fitting)
        is_scarce = free_mib() < LEAST_FREE_MIB
        self._inspect(needed, is_scarce)
        for key in needed.keys() - self._standbys.keys() - self._unfit:
            if not is_scarce and len(self._standbys) < MOST:
                self._make(needed[key])

    @property
    def ready(self) -> int:
        """How many can take an attempt now."""
        return sum(standby.pid is not None for standby in self._standbys.values())

    def close(self) -> None:
        for key in list(self._standbys):
            self._drop(key)

    def _inspect(self, needed: Dict[str, Recipe], is_scarce: bool) -> None:
        """Drop those that failed, that memory is too scarce for, or that nobody needs."""
        now = time.monotonic()
        for key, standby in list(self._standbys.items()):
            if key in needed:
                standby.needed_at = now
            is_old = now - standby.needed_at > KEPT_SECONDS
            if not self._is_sound(standby):
                self._unfit.add(key)
            if is_scarce or is_old or key in self._unfit:
                self._drop(key)

    def _make(self, made_of: Recipe) -> None:
        ours, theirs = socket.socketpair()
        shim.detach(self._spool.path, {theirs.fileno()}, lambda: wait(self._spool, made_of, theirs))
        theirs.close()
        ours.setblocking(False)
        self._standbys[made_of.key] = Standby(ours)

    def _is_sound(self, standby: Standby) -> bool:
        """False if it has ended or takes too much memory. Hears whether it is ready."""
        try:
            message, _ = passing.receive(standby.channel)
        except BlockingIOError:
            return True
        except (OSError, ValueError):
            return False
        if message is None:
            return False
        standby.pid = int(message["ready"])
        return memory_mib(standby.pid) <= MOST_MIB

    def _drop(self, key: str) -> None:
        self._standbys.pop(key).channel.close()  # its shim notices that, and ends


def memory_mib(pid: int) -> float:
    """What a process has of its own, so without the libraries, which the kernel can read again."""
    return _field("/proc/{}/smaps_rollup".format(pid), "Anonymous:")


def free_mib() -> float:
    """What the kernel could give to new processes."""
    return _field("/proc/meminfo", "MemAvailable:")


def _field(path: str, name: str) -> float:
    """A line in kB, as MiB. 0 if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(path) as stream:
        for line in stream:
            if line.startswith(name):
                return int(line.split()[1]) / 1024
    return 0.0
