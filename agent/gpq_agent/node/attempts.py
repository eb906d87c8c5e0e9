"""The attempts of a spool as one agent sees them: start, look, stop, forget.

Every answer comes from the spool and /proc. Nothing here has to outlive the agent.
"""

import contextlib
import functools
import os
import signal
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from gpq_agent import records, wire
from gpq_agent.node import attempt_files, environment_setup
from gpq_agent.node.attempt_files import AttemptFiles, pulses
from gpq_agent.node.devices.gpu_locks import Locks, close
from gpq_agent.node.host import procs, with_timeout
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import launch, shim, start_order
from gpq_agent.node.spool import spool
from gpq_agent.node.spool.shapes import STOP_RANK, beyond
from gpq_agent.node.standby.standbys import Standbys
from gpq_agent.node.states import LIVE, AttemptProcesses, AttemptStates, fitting

MOST_MOVES = 200  # of forgotten attempts in one look, so that no daemon waits for it


class Attempts:
    """All attempts of `place` that are not forgotten, by key."""

    def __init__(self, place: spool.Spool, locks: Optional[Locks] = None) -> None:
        self.spool = place
        self.locks = locks or Locks(spool=place.id)
        self.boot = procs.boot_id()
        self.files = AttemptFiles(place)
        self.processes = AttemptProcesses(self.files, self.boot)
        self.states = AttemptStates(self.files, self.processes, self.boot)
        self.standbys = Standbys(place)
        self._forgotten: Set[str] = set()
        self._unmoved: List[str] = []  # forgotten, perhaps by an earlier agent
        self._keys: List[str] = []
        self._listed_at = -1
        self._listed_early = True
        self._is_listed = False

    # -- looking

    def keys(self) -> List[str]:
        """Attempts that are not forgotten. Lists the folder only if it has changed, because it may
        hold years of attempts of an earlier version. Moves some of them away."""
        change_time = os.stat(self.spool.attempts).st_mtime_ns
        if change_time != self._listed_at or self._listed_early:
            self._listed_at = change_time
            # A change shortly after this listing, within the clock's resolution, would have the
            # same time stamp.
            self._listed_early = time.time_ns() - change_time < 50_000_000
            keys = self.spool.attempt_keys(ignored=self._forgotten)
            earlier_keys = self._keys if self._is_listed else self.processes.marked_keys()
            self._is_listed = True
            for key in earlier_keys:
                if key in self._forgotten or os.path.lexists(self.files.path(key, wire.ORDER)):
                    continue
                # Somebody removed its folder or its order, perhaps the job itself. If the attempt
                # lives, make them again so that gpq can stop it.
                if self.processes.has_survivors(key):
                    self.files.restore(key)
                    keys.append(key)
            self._keys = list(dict.fromkeys(keys))
        for key in self._keys:
            if self.is_forgotten(key):
                self._let_go(key)
        self._keys = [key for key in self._keys if key not in self._forgotten]
        for key in self._unmoved[:MOST_MOVES]:
            self.spool.retire(key)
        del self._unmoved[:MOST_MOVES]
        return self._keys

    def all(self) -> List[wire.AttemptInfo]:
        """The attempts that are not forgotten, as they are now."""
        return list(filter(None, map(self.states.survey, self.keys())))

    def look(self, key: str) -> Optional[wire.AttemptInfo]:
        """One attempt as it is now, None if there is none. Leaves `processes` at 0, see `count`."""
        return self.states.look(key)

    def count(self, infos: List[wire.AttemptInfo]) -> List[wire.AttemptInfo]:
        """Add the number of living processes of each tree, and leave out what does not fit into an
        answer."""
        return fitting([info._replace(processes=self.processes.count(info)) for info in infos])

    def owner_of(self, pid: int) -> str:
        """The attempt that a process belongs to, by its mark or by the shim above it. "" for a
        foreign process."""
        mark = procs.mark_of(pid, wire.ENV_MARK)
        return self.spool.key_of_mark(mark) or self.processes.owner_by_shim(
            pid, [key for key in self.keys() if not self.states.is_final(key)]
        )

    # -- changing

    def start(
        self,
        order: wire.StartOrder,
        devices: List[wire.DeviceInfo],
        base: Dict[str, str],
        admit: Callable[[], None] = lambda: None,
        visible: str = launch.UUIDS,
    ) -> Tuple[str, wire.AttemptInfo]:
        """("started" or "already", attempt). Raises SpoolError if the attempt may not start, and
        leaves nothing behind. Asks `admit` under the spool's lock. `visible`: see
        `launch.list_names`."""
        key = wire.attempt_key(order.job, order.attempt)
        with self.spool.lock():
            folder = self.spool.folder(key)
            if os.path.exists(os.path.join(folder, wire.ORDER)):
                return "already", self._must(key)
            admit()
            env = launch.environment(self.spool, order, base, devices, visible)
            order, env = environment_setup.prepare(self.spool, order, env)
            start_order.check_startable(order, env)
            self._check_devices(key, order)
            if order.fresh:
                move = functools.partial(self.spool.set_aside, order.job, order.attempt)
                with_timeout.check(self.spool.checkpoints, move)
            cores = sorted({core for device in devices for core in device.cores})
            locks = self.locks.take(
                filter(self.locks.covers, [device.id for device in devices]),
                order.job,
                order.attempt,
            )
            try:
                locks.append(attempt_files.create(folder, order))
                if order.lease > 0:
                    shim.spawn_guard(self.spool, order)
                if not self.standbys.take(order, env, cores, [locks[-1], *locks[:-1]]):
                    shim.spawn(self.spool, order, env, cores, locks[-1], locks[:-1])
            except OSError as error:  # the very first fork failed, so nothing has started
                attempt_files.remove_unborn(folder)
                raise with_timeout.no_process(error) from error
            finally:
                close(locks)
        self._listed_at = -1
        return "started", self._must(key)

    def _check_devices(self, key: str, order: wire.StartOrder) -> None:
        """Never assign a device of a living attempt again, whatever the daemon believes."""
        for info in self.all():
            rival_key = wire.attempt_key(info.job, info.attempt)
            rival = self.files.order(rival_key)
            if info.state not in LIVE or rival is None or rival_key == key:
                continue
            both = sorted(set(rival.devices) & set(order.devices))
            if both:
                problem = "attempt {} still uses {}".format(rival_key, ", ".join(both))
                raise SpoolError(problem, "wait until it ends, or stop it", "busy")

    def stop(self, key: str, mode: str, grace: float) -> wire.AttemptInfo:
        """Stop an attempt. A request that is softer than an earlier one changes nothing."""
        if mode not in STOP_RANK:
            problem = "unknown stop mode {!r}".format(mode)
            raise SpoolError(problem, "use one of {}".format(", ".join(STOP_RANK)))
        info = self._must(key)
        if info.state not in LIVE:
            return info
        path = self.files.path(key, wire.STOP)
        with self.spool.lock():
            seq = beyond() if os.path.lexists(path) else 1
            previous = self.files.read(key, wire.STOP)
            is_softer = False
            if previous is not None:
                seq = int(previous["seq"]) % records.MOST + 1
                # the harder mode counts, then the shorter time
                rank = STOP_RANK.get(str(previous["mode"]), 0)
                is_softer = (STOP_RANK[mode], -grace) < (rank, -float(previous["grace"]))
            if not is_softer:
                spool.write_reserved(path, {"mode": mode, "grace": grace, "seq": seq})
            record = self.files.read(key, wire.SHIM)
            process = procs.living(record, self.boot)
            if process is not None:
                procs.send(process, shim.WAKE_SIGNAL)
                procs.send(process, signal.SIGCONT)  # a stopped process hears nothing
            elif record is not None or info.state == "orphan":
                self._adopt(key)
        return self._must(key)

    def tend(self, infos: List[wire.AttemptInfo]) -> None:
        """Replace killed shims, for a stop that one did not see or for a lease. Keep standbys."""
        live = {wire.attempt_key(info.job, info.attempt) for info in infos if info.state in LIVE}
        self.standbys.tend(live, self._may_move)
        for info in infos:
            key = wire.attempt_key(info.job, info.attempt)
            if info.state != "orphan" or (
                info.lease <= 0 and self.files.read(key, wire.STOP) is None
            ):
                continue
            if not procs.lives(self.files.read(key, wire.SHIM), self.boot):
                with contextlib.suppress(OSError, SpoolError), self.spool.lock():
                    self._adopt(key)  # otherwise at the next look

    def _may_move(self, key: str) -> bool:
        """Has it trained for as long as gpq leaves it alone?"""
        order, started = self.files.order(key), self.files.read(key, wire.STARTED)
        if order is None or order.standby_after is None or started is None:
            return False
        age = time.time() - started["started_at"]
        return age >= order.standby_after and any(
            pulse.step > 0 for pulse in pulses(self.spool.folder(key))
        )

    def _adopt(self, key: str) -> None:
        """The shim was killed. Start another one, which does what stop.json says. Under the spool's
        lock. Does nothing while somebody holds the attempt's lock: a first process that has not
        reached exec yet inherits it from its shim."""
        order, started = self.files.order(key), self.files.read(key, wire.STARTED)
        # find out before taking the lock, which looks like a living shim
        is_orphan = self._must(key).state == "orphan"
        path = self.files.path(key, spool.LOCK)
        if os.path.lexists(path) and not os.path.isfile(path):
            records.set_aside(path)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if spool.try_lock(lock) and order is not None and is_orphan:
                first = started or self.processes.oldest(key)
                if first is not None:
                    shim.adopt(self.spool, order, first, lock)
        finally:
            os.close(lock)

    def control(self, key: str, control: Dict[str, Any]) -> None:
        """Replace control.json by a newer order. No later order takes back an order to
        checkpoint."""
        info = self._must(key)
        if not isinstance(control, dict) or not isinstance(control.get("seq"), int):
            raise SpoolError("a control needs an integer `seq`")
        if control.get("attempt") != info.attempt:
            words = "this control is for attempt {}, not {}"
            raise SpoolError(words.format(control.get("attempt"), info.attempt))
        path = self.files.path(key, wire.CONTROL)
        with self.spool.lock():
            previous = self.files.read(key, wire.CONTROL)
            if previous is not None and previous.get("stop"):
                seq = max(control["seq"], int(previous["seq"]) + 1)
                control = dict(control, stop=True, seq=seq)
            if previous is None or control["seq"] > int(previous["seq"]):
                wire.write_json(path, control)

    def forget(self, key: str) -> None:
        """The daemon has the exit record, so do not report the attempt any more. Its log stays,
        and the blocks set aside for its end go."""
        info = self.look(key)
        if info is None:
            return
        if info.state in LIVE:
            raise SpoolError("attempt {} is {}".format(key, info.state), "stop it first")
        path = self.files.path(key, spool.FORGOTTEN)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600))
        names = (wire.EXIT, wire.STOP, wire.CONTROL)
        spool.free_reserves(self.files.path(key, name) for name in names)
        self._let_go(key)

    def is_forgotten(self, key: str) -> bool:
        """Does the daemon have its exit record?"""
        marker = self.files.path(key, spool.FORGOTTEN)
        if key in self._forgotten or not os.path.lexists(marker):
            return os.path.lexists(marker)
        is_held = spool.is_locked(self.files.path(key, spool.LOCK))
        if is_held or not os.path.lexists(self.files.path(key, wire.EXIT)):
            info = self.look(key)
            if info is not None and info.state in LIVE:  # its own job wrote the file
                self.files.note(key, records.put_away(records.Damaged(marker, "it still lives")))
                return False
        return True

    def _let_go(self, key: str) -> None:
        """Stop looking at it and keep only its name."""
        self._forgotten.add(key)
        self._unmoved.append(key)
        self.states.forget(key)
        self.files.forget(key)
        self.processes.forget(key)

    def _must(self, key: str) -> wire.AttemptInfo:
        info = self.look(key)
        if info is None:
            raise SpoolError("no attempt {} on this server".format(key))
        return info
