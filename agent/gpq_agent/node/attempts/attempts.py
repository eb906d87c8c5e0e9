"""The attempts of a spool as one agent sees them: starting, looking, stopping, forgetting.

Every answer is read from the spool and from /proc anew; nothing here needs to outlive the agent.
"""

import contextlib
import fcntl
import os
import signal
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from gpq_agent import records, wire
from gpq_agent.node.attempts import environment_setup
from gpq_agent.node.devices import gpu_names
from gpq_agent.node.devices.gpu_locks import Locks, close
from gpq_agent.node.host import procs, with_timeout
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import guard, launch, shim, start_order
from gpq_agent.node.shim.leases import boottime
from gpq_agent.node.shim.process_tree import Tree
from gpq_agent.node.spool import spool
from gpq_agent.node.spool.shapes import NOTE, SHAPES, STOP_RANK, beyond

SCAN_PERIOD = 1.0  # seconds for which one look over all of /proc serves
LIVE = ("starting", "running", "orphan")


class Attempts:
    """All attempts of `place` that were not forgotten, by key."""

    def __init__(self, place: spool.Spool, locks: Optional[Locks] = None) -> None:
        self.spool = place
        self.locks = locks or Locks(spool=place.id)
        self.boot = procs.boot_id()
        self._forgotten: Set[str] = set()
        self._keys: List[str] = []
        self._listed_at = -1
        self._listed_early = True
        self._is_listed = False
        self._final: Dict[str, wire.AttemptInfo] = {}
        self._orders: Dict[str, wire.StartOrder] = {}
        self._orphans: Dict[str, Tuple[float, bool]] = {}
        self._seen: Dict[str, wire.AttemptInfo] = {}  # as they were told last
        self._damage: Dict[str, List[str]] = {}  # what of them was set aside, in words
        self._processes: Dict[int, procs.Process] = {}
        self._scanned_at = -SCAN_PERIOD

    # -- looking

    def keys(self) -> List[str]:
        """Attempts not forgotten. The folder is listed only when it has changed: it may hold years
        of attempts."""
        change_time = os.stat(self.spool.attempts).st_mtime_ns
        if change_time != self._listed_at or self._listed_early:
            self._listed_at = change_time
            # A change within the clock's grain after this listing would leave the same time stamp.
            self._listed_early = time.time_ns() - change_time < 50_000_000
            keys = [key for key in self.spool.attempt_keys() if key not in self._forgotten]
            earlier_keys = self._keys if self._is_listed else self._marked()
            self._is_listed = True
            self._keys = keys + [
                key for key in earlier_keys if key not in keys and self._is_restored(key)
            ]
        for key in self._keys:
            if os.path.exists(os.path.join(self.spool.folder(key), spool.FORGOTTEN)):
                self._let_go(key)
        self._keys = [key for key in self._keys if key not in self._forgotten]
        return self._keys

    def _marked(self) -> List[str]:
        """Attempts of this spool of which a process lives."""
        marks = {procs.mark_of(pid, wire.ENV_MARK) for pid in self._scan()}
        return sorted(filter(None, map(self.spool.key_of_mark, marks)))

    def _is_restored(self, key: str) -> bool:
        """Its folder was removed, by the job itself perhaps. Does it live? Then it has a folder
        again, to be stopped by."""
        if key in self._forgotten or not self._has_survivors(key):
            return False
        with contextlib.suppress(OSError):
            os.mkdir(self.spool.folder(key), 0o700)
        if self._orders.get(key) is None:
            self._orders[key] = self._bare_order(key)
        else:
            wire.write_json(
                os.path.join(self.spool.folder(key), wire.ORDER), self._orders[key]._asdict()
            )
        self._damage.setdefault(key, []).append(
            "its folder {} was removed".format(self.spool.folder(key))
        )
        return True

    def order(self, key: str) -> Optional[wire.StartOrder]:
        """The order of an attempt, None when there is no such attempt."""
        if key not in self._orders:
            content = self._read(key, wire.ORDER)
            if content is None:
                return None
            try:
                self._orders[key] = start_order.parse_order(content)
            except SpoolError as error:
                self._put_away(
                    key,
                    records.Damaged(
                        os.path.join(self.spool.folder(key), wire.ORDER), error.message
                    ),
                )
                self._orders[key] = self._bare_order(key)
        return self._orders[key]

    def _bare_order(self, key: str) -> wire.StartOrder:
        """In place of one that cannot be read: the attempt must not be taken for one that never
        was. What devices it has, their locks tell, and the daemon knows."""
        job, attempt = wire.parse_attempt_key(key)
        order = wire.StartOrder(job, attempt, ["?"], "/", {}, ["?"], "black-box")
        with contextlib.suppress(OSError):  # else this is found out once more
            wire.write_json(os.path.join(self.spool.folder(key), wire.ORDER), order._asdict())
        return order

    def all(self) -> List[wire.AttemptInfo]:
        """The attempts not forgotten, as they are now."""
        return [info for info in map(self._survey, self.keys()) if info is not None]

    def _survey(self, key: str) -> Optional[wire.AttemptInfo]:
        """As `look`. Whatever goes wrong with one attempt costs the others nothing: it is told
        as it was last seen, or as one that lives on unseen, so that nothing is started in its
        place."""
        try:
            info = self.look(key)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in procs.SCARCE:
                raise
            self._tell(key, error)
            job, attempt = wire.parse_attempt_key(key)
            unseen = wire.AttemptInfo(
                job, attempt, "orphan", damage=list(self._damage.get(key, []))
            )
            latest: wire.AttemptInfo = self._seen.get(key, unseen)
            return latest
        if info is not None:
            self._seen[key] = info
        return info

    def _tell(self, key: str, error: Exception) -> None:
        words = "gpq cannot look at it: {!r}, which is a bug in gpq".format(error)
        lines = self._damage.setdefault(key, [])
        if words not in lines:
            lines.append(words)
            traceback.print_exc(file=sys.stderr)

    def look(self, key: str) -> Optional[wire.AttemptInfo]:
        """One attempt as it is now, None when there is none. `processes` is left at 0, see
        `count`."""
        info = self._look(key)
        return info if info is None else info._replace(damage=list(self._damage.get(key, [])))

    def _look(self, key: str) -> Optional[wire.AttemptInfo]:
        if key in self._final:
            return self._final[key]
        order = self.order(key)
        if order is None:
            return None
        shim_record = self._read(key, wire.SHIM)
        is_alive = procs.lives(shim_record, self.boot)
        start_record = self._read(key, wire.STARTED)
        # read after the shim was looked at: it may have ended in between
        exit_record = self._read(key, wire.EXIT)
        info = wire.AttemptInfo(
            job=order.job,
            attempt=order.attempt,
            state="running" if start_record else "starting",
            pid=int(start_record["pid"]) if start_record else None,
            started_at=float(start_record["started_at"]) if start_record else None,
            devices=list(order.devices),
            lease=order.lease,
            shortfall=order.shortfall,
            began=self._began(start_record),
        )
        if exit_record is not None:
            self._final[key] = info._replace(
                state="exited", exit=exit_record, ended=self._ended(exit_record)
            )
            return self._final[key]
        if is_alive:
            note = self._read(key, NOTE)
            if note is not None:
                info = info._replace(exit=self._unknown_exit(key, info, str(note["note"])))
            is_adopted = shim_record is not None and bool(shim_record.get("adopted"))
            return info._replace(state="orphan") if is_adopted else info
        if spool.is_locked(os.path.join(self.spool.folder(key), spool.LOCK)):
            # a shim is coming up, or adopting
            return info._replace(state="orphan") if start_record else info
        # In the midst of exec the first process shows no mark yet, so it is also looked for by its
        # identity.
        if procs.lives(start_record, self.boot) or (
            self._same_boot(shim_record) and self._has_survivors(key)
        ):
            return info._replace(state="orphan")
        if self._read(key, wire.EXIT) is not None:
            return self._look(key)
        reason = "; ".join(
            ["its shim was killed, and nothing of it is left", *self._damage.get(key, [])]
        )
        if not self._same_boot(shim_record):
            reason = "rebooted"
        elif start_record is None:
            reason = "it was never started: its shim did not come up{}".format(
                self._last_words(key)
            )
        # the boot ended what it had left
        latest_end = None if self._same_boot(shim_record) else 0.0
        self._final[key] = info._replace(
            state="lost", exit=self._unknown_exit(key, info, reason), ended=latest_end
        )
        return self._final[key]

    def count(self, infos: List[wire.AttemptInfo]) -> List[wire.AttemptInfo]:
        """With the number of living processes of each tree."""
        counted_infos = []
        for info in infos:
            key = wire.attempt_key(info.job, info.attempt)
            number = 0
            if info.state in ("starting", "running"):
                record = self._read(key, wire.SHIM)
                descendants = (
                    procs.descendants([int(record["pid"])], self._scan()) if record else set()
                )
                number = sum(1 for pid in descendants if self._processes[pid].alive)
            elif info.state == "orphan":
                number = len(Tree(self.spool.mark(key), None).members())
            counted_infos.append(info._replace(processes=number))
        return counted_infos

    def owner_of(self, pid: int) -> str:
        """The attempt that a process belongs to, by its mark or by the shim above it; "" for a
        stranger."""
        key = self.spool.key_of_mark(procs.mark_of(pid, wire.ENV_MARK))
        if key:
            return key
        shims = {}
        for name in self.keys():
            if name not in self._final:
                record = self._read(name, wire.SHIM)
                if procs.lives(record, self.boot) and record is not None:
                    shims[int(record["pid"])] = name
        visited_pids = set()
        while pid > 1 and pid not in visited_pids:
            if pid in shims:
                return shims[pid]
            visited_pids.add(pid)
            process = procs.read(pid)
            pid = process.parent if process else 0
        return ""

    def _began(self, record: Optional[Dict[str, Any]]) -> Optional[float]:
        """CLOCK_BOOTTIME of a start; by the wall clock where the node was booted since."""
        if record is None:
            return None
        if self._same_boot(record):
            return float(record["start_time"]) / os.sysconf("SC_CLK_TCK")
        return _before_boot(float(record["started_at"]))

    def _ended(self, record: Dict[str, Any]) -> Optional[float]:
        """As `_began`, of an end; None where an older shim did not write it down."""
        if not record.get("stamp"):
            return None
        return (
            float(record["stamp"])
            if self._same_boot(record)
            else _before_boot(float(record["ended_at"]))
        )

    def _same_boot(self, record: Optional[Dict[str, Any]]) -> bool:
        return record is None or record["boot_id"] == self.boot

    def _scan(self) -> Dict[int, procs.Process]:
        if time.monotonic() - self._scanned_at >= SCAN_PERIOD:
            self._processes = procs.snapshot()
            self._scanned_at = time.monotonic()
        return self._processes

    def _has_survivors(self, key: str) -> bool:
        """Are there processes with the attempt's mark? Looked up at most once a `SCAN_PERIOD` while
        there are."""
        scan_time, has_members = self._orphans.get(key, (-SCAN_PERIOD, False))
        if not has_members or time.monotonic() - scan_time >= SCAN_PERIOD:
            has_members = bool(Tree(self.spool.mark(key), None).members())
            self._orphans[key] = (time.monotonic(), has_members)
        return has_members

    def _last_words(self, key: str) -> str:
        """What a shim left that failed, to be appended."""
        try:
            words = records.read_bytes(os.path.join(self.spool.folder(key), shim.CRASH)) or b""
            return " ({})".format(words.decode("utf-8", "replace").strip().splitlines()[-1])
        except (OSError, ValueError, IndexError):
            return ""

    def _unknown_exit(self, key: str, info: wire.AttemptInfo, note: str) -> Dict[str, Any]:
        """An exit record for an end that nobody saw: neither code nor signal is known."""
        folder = self.spool.folder(key)
        stop = self._read(key, wire.STOP)
        latest_change = 0.0
        for name in (wire.LOG, wire.REPORT, wire.ORDER):
            try:
                latest_change = max(latest_change, os.stat(os.path.join(folder, name)).st_mtime)
            except OSError:
                continue
        record = wire.ExitRecord(
            job=info.job,
            attempt=info.attempt,
            code=None,
            signal=None,
            stopped=os.path.exists(os.path.join(folder, wire.STOPPED)),
            asked=str(stop["mode"]) if stop else None,
            started_at=info.started_at or 0.0,
            ended_at=latest_change,
            note=note,
        )
        return record._asdict()

    def _read(self, key: str, name: str) -> Optional[Dict[str, Any]]:
        """A file of the attempt, None where there is none, or none that can be taken for it: that
        one is set aside."""
        path = os.path.join(self.spool.folder(key), name)
        try:
            shape = SHAPES.get(name)
            return records.read_object(path) if shape is None else records.read_shape(shape, path)
        except records.Damaged as damage:
            self._put_away(key, damage)
        return self._bare_order(key)._asdict() if name == wire.ORDER else None

    def _put_away(self, key: str, damage: records.Damaged) -> None:
        words = records.put_away(damage)
        lines = self._damage.setdefault(key, [])
        if words not in lines:
            lines.append(words)

    # -- changing

    def start(
        self,
        order: wire.StartOrder,
        devices: List[wire.DeviceInfo],
        base: Dict[str, str],
        admit: Callable[[], None] = lambda: None,
        visible: str = gpu_names.UUIDS,
    ) -> Tuple[str, wire.AttemptInfo]:
        """("started" or "already", attempt). Raises SpoolError, with nothing left behind, when it
        may not start: `admit` is asked under the spool's lock. `visible`: as in gpu_names."""
        key = wire.attempt_key(order.job, order.attempt)
        with self.spool.lock():
            folder = self.spool.folder(key)
            if os.path.exists(os.path.join(folder, wire.ORDER)):
                return "already", self._must(key)
            admit()
            env = launch.environment(self.spool, order, base, devices, visible)
            order, env = environment_setup.prepared(self.spool, order, env)
            start_order.check_startable(order, env)
            self._check_devices(key, order)
            cores = sorted({core for device in devices for core in device.cores})
            locks = self.locks.take(
                [device.id for device in devices if device.kind == "cuda"], order.job, order.attempt
            )
            try:
                locks.append(self._prepare(folder, order))
                if order.lease > 0:
                    guard.spawn(self.spool, order)
                shim.spawn(self.spool, order, env, cores, locks[-1], locks[:-1])
            except OSError as error:  # of the very first fork: nothing came of it
                remove_unborn(folder)
                raise with_timeout.no_process(error) from error
            finally:
                close(locks)
        self._listed_at = -1
        return "started", self._must(key)

    def _check_devices(self, key: str, order: wire.StartOrder) -> None:
        """A device that a living attempt has is not given again, whatever the daemon believes."""
        for info in self.all():
            rival_key = wire.attempt_key(info.job, info.attempt)
            rival = self.order(rival_key)
            if info.state not in LIVE or rival is None or rival_key == key:
                continue
            both = sorted(set(rival.devices) & set(order.devices))
            if both:
                raise SpoolError(
                    "{} is still held by attempt {}".format(", ".join(both), rival_key),
                    "wait for its end, or stop it",
                    "busy",
                )

    def _prepare(self, folder: str, order: wire.StartOrder) -> int:
        """The attempt's directory with everything a shim needs; its lock, held. order.json comes
        last: it makes it real."""
        lock = -1
        try:
            with contextlib.suppress(FileExistsError):
                # left by an agent that ended before it wrote the order
                os.mkdir(folder, 0o700)
            spool.reserve(os.path.join(folder, wire.EXIT))
            spool.reserve(os.path.join(folder, wire.STOP), count=2)
            spool.reserve(os.path.join(folder, wire.CONTROL))
            if order.control is not None:
                wire.write_json(os.path.join(folder, wire.CONTROL), order.control)
            lock = os.open(os.path.join(folder, spool.LOCK), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            wire.write_json(os.path.join(folder, wire.ORDER), order._asdict())
            return lock
        except OSError as error:
            if lock >= 0:
                os.close(lock)
            remove_unborn(folder)
            raise start_order.unwritable(error) from error

    def stop(self, key: str, mode: str, grace: float) -> wire.AttemptInfo:
        """Ask for the end of an attempt. Softer than what was asked before changes nothing."""
        if mode not in STOP_RANK:
            raise SpoolError(
                "no stop mode {!r}".format(mode), "it is one of {}".format(", ".join(STOP_RANK))
            )
        info = self._must(key)
        if info.state not in LIVE:
            return info
        path = os.path.join(self.spool.folder(key), wire.STOP)
        with self.spool.lock():
            is_known = os.path.lexists(path)
            previous = self._read(key, wire.STOP)
            if previous is None or self._is_harder(previous, mode, grace):
                first = beyond() if is_known else 1
                seq = int(previous["seq"]) + 1 if previous else first
                spool.write_reserved(path, {"mode": mode, "grace": grace, "seq": seq})
            record = self._read(key, wire.SHIM)
            if record is not None and procs.lives(record, self.boot):
                process = procs.read(int(record["pid"]))
                if process is not None and process.start_time == record["start_time"]:
                    procs.send(process, shim.WAKE_SIGNAL)
                    procs.send(process, signal.SIGCONT)  # one that was stopped hears nothing
            elif record is not None or info.state == "orphan":
                self._adopt(key)
        return self._must(key)

    @staticmethod
    def _is_harder(previous: Dict[str, Any], mode: str, grace: float) -> bool:
        rank, previous_rank = STOP_RANK[mode], STOP_RANK.get(str(previous["mode"]), 0)
        return rank > previous_rank or (rank == previous_rank and grace <= float(previous["grace"]))

    def tend(self, infos: List[wire.AttemptInfo]) -> None:
        """Where the shim was killed, another takes its place: for a stop that it did not live to
        hear, for a lease."""
        for info in infos:
            key = wire.attempt_key(info.job, info.attempt)
            if info.state != "orphan" or (info.lease <= 0 and self._read(key, wire.STOP) is None):
                continue
            if not procs.lives(self._read(key, wire.SHIM), self.boot):
                with contextlib.suppress(OSError, SpoolError), self.spool.lock():
                    self._adopt(key)  # or at the next look

    def _adopt(self, key: str) -> None:
        """The shim was killed: another takes its place to do what stop.json says. Under the
        spool's lock. Not while the lock is held: a first process that has yet to exec has it
        from its shim."""
        order, started = self.order(key), self._read(key, wire.STARTED)
        # asked before we hold the lock, which looks like a shim
        is_orphan = self._must(key).state == "orphan"
        lock = os.open(
            os.path.join(self.spool.folder(key), spool.LOCK), os.O_RDWR | os.O_CREAT, 0o600
        )
        try:
            if spool.try_lock(lock) and order is not None and is_orphan:
                first = started or self._oldest(key)
                if first is not None:
                    shim.adopt(self.spool, order, first, lock)
        finally:
            os.close(lock)

    def _oldest(self, key: str) -> Optional[Dict[str, Any]]:
        """Identity of the oldest process of an attempt whose first one is not known."""
        members = Tree(self.spool.mark(key), None).members()
        if not members:
            return None
        oldest = min(members, key=lambda process: (process.start_time, process.pid))
        return {
            "pid": oldest.pid,
            "start_time": oldest.start_time,
            "boot_id": self.boot,
            "started_at": time.time(),
        }

    def control(self, key: str, control: Dict[str, Any]) -> None:
        """Replace control.json by a newer order. Once a checkpoint was ordered, no later order
        takes that back."""
        info = self._must(key)
        if not isinstance(control, dict) or not isinstance(control.get("seq"), int):
            raise SpoolError("a control needs a number `seq`")
        if control.get("attempt") != info.attempt:
            raise SpoolError(
                "this control is for attempt {}, not {}".format(
                    control.get("attempt"), info.attempt
                )
            )
        path = os.path.join(self.spool.folder(key), wire.CONTROL)
        with self.spool.lock():
            previous = self._read(key, wire.CONTROL)
            if previous is not None and previous.get("stop"):
                control = dict(
                    control, stop=True, seq=max(control["seq"], int(previous["seq"]) + 1)
                )
            if previous is None or control["seq"] > int(previous["seq"]):
                wire.write_json(path, control)

    def forget(self, key: str) -> None:
        """The daemon has the exit record: do not report the attempt any more. Its log stays."""
        info = self.look(key)
        if info is None:
            return
        if info.state in LIVE:
            raise SpoolError("attempt {} is {}".format(key, info.state), "stop it first")
        path = os.path.join(self.spool.folder(key), spool.FORGOTTEN)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600))
        self._let_go(key)

    def is_forgotten(self, key: str) -> bool:
        """Has the daemon had its exit record?"""
        return os.path.exists(os.path.join(self.spool.folder(key), spool.FORGOTTEN))

    def purge(self, job: int) -> None:
        """Remove logs and checkpoints of a job none of whose attempts is alive."""
        with self.spool.lock():
            keys = [
                key for key in self.spool.attempt_keys() if wire.parse_attempt_key(key)[0] == job
            ]
            for key in keys:
                info = self.look(key)
                if info is not None and info.state in LIVE:
                    raise SpoolError("attempt {} is {}".format(key, info.state), "stop it first")
            self.spool.purge(job)
        for key in keys:
            self._let_go(key)

    def _let_go(self, key: str) -> None:
        """Not looked at any more, and nothing kept of it but its name."""
        self._forgotten.add(key)
        self._final.pop(key, None)
        self._orders.pop(key, None)
        self._orphans.pop(key, None)
        self._damage.pop(key, None)
        self._seen.pop(key, None)

    def _must(self, key: str) -> wire.AttemptInfo:
        info = self.look(key)
        if info is None:
            raise SpoolError("no attempt {} on this node".format(key))
        return info


def _before_boot(wall_time: float) -> float:
    return min(boottime() - (time.time() - wall_time), 0.0)


def remove_unborn(folder: str) -> None:
    """Undo `_prepare`, for an attempt that has no order yet."""
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass  # without an order the directory means nothing
