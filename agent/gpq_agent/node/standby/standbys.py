"""The standbys of an agent: made while an attempt that may be resized trains, given to the next
attempt that fits, and dropped when nobody needs them."""

import contextlib
import os
import socket
import time
from typing import Callable, Dict, List, Optional, Set, Tuple

from gpq_agent import wire
from gpq_agent.node.shim import shim
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.standby import passing, waiting_shim
from gpq_agent.node.standby.waiting_shim import Recipe, recipes

MOST = 4  # on one server
MOST_MIB = 256  # of memory, each
LEAST_FREE_MIB = 4096  # that the server must have left
KEPT_SECONDS = 600.0  # without an attempt that it would fit
EXPECTED_SECONDS = 150.0  # after the daemon's word, which it repeats every minute
PERIOD = 1.0  # seconds between two looks
ANSWER_SECONDS = 1.0  # in which a standby must take an attempt


class Standby:
    """One standby. `pid`: of its interpreter, once that is ready."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pid: Optional[int] = None
        self.needed_at = time.monotonic()

    def close(self) -> None:
        """End it. Its shim notices that."""
        self.channel.close()


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
        self,
        order: wire.StartOrder,
        env: Dict[str, str],
        cores: List[int],
        locks: List[int],
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
            standby.close()

    def expect(self, order: wire.StartOrder, env: Dict[str, str]) -> None:
        """Keep a standby for this job, which runs elsewhere."""
        self._expected[order.job] = time.monotonic() + EXPECTED_SECONDS, recipes(order, env)

    def tend(self, live: Set[str], may_move: Callable[[str], bool]) -> None:
        """Make what is missing, and drop what nobody needs. `live`: attempts that have not ended.
        `may_move`: may gpq move this attempt by now?"""
        if not (self._recipes or self._expected or self._standbys):
            return
        if time.monotonic() - self._tended_at < PERIOD:
            return
        self._tended_at = time.monotonic()
        self._recipes = {key: value for key, value in self._recipes.items() if key in live}
        needed = self._needed_elsewhere()
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

    def _needed_elsewhere(self) -> Dict[str, Recipe]:
        now = time.monotonic()
        self._expected = {job: entry for job, entry in self._expected.items() if entry[0] > now}
        return {recipe.key: recipe for _, made_of in self._expected.values() for recipe in made_of}

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
        shim.detach(
            self._spool.path,
            {theirs.fileno()},
            lambda: waiting_shim.wait(self._spool, made_of, theirs),
        )
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
        self._standbys.pop(key).close()


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
