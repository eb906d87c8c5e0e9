"""Attempts as they are now, from their files and their processes. Once an attempt has ended, its
state never changes."""

import contextlib
import os
import sys
import time
import traceback
from typing import Any, Dict, Iterable, List, Optional, Tuple

from gpq_agent import records, wire
from gpq_agent.node.attempt_files import AttemptFiles
from gpq_agent.node.host import procs
from gpq_agent.node.shim import shim
from gpq_agent.node.shim.leases import boottime
from gpq_agent.node.shim.process_tree import Tree
from gpq_agent.node.spool import spool
from gpq_agent.node.spool.shapes import NOTE

SCAN_PERIOD = 1.0  # seconds for which one scan of /proc serves
MOST_WORDS = 1 << 20  # bytes of the ends and the damage of all attempts in an answer, as JSON
SHORT = 20  # characters of each text of an end behind that

LIVE = ("starting", "running", "orphan")
Record = Optional[Dict[str, Any]]  # content of a file, None if there is none


def fitting(infos: List[wire.AttemptInfo]) -> List[wire.AttemptInfo]:
    """The attempts with as much of what their jobs wrote about their ends and their files as fits
    into one answer. Behind that, only the first characters."""
    fitted, room = [], MOST_WORDS
    for info in infos:
        if info.exit or info.damage:
            room -= len(wire.encode({"exit": info.exit, "damage": info.damage}))
        if room < 0:
            end = {
                name: value[:SHORT] if isinstance(value, str) else value
                for name, value in (info.exit or {}).items()
            }
            info = info._replace(exit=end or None, damage=[])
        fitted.append(info)
    return fitted


class AttemptProcesses:
    """The processes of all attempts with files in `files`. `boot`: the id of this boot."""

    def __init__(self, files: AttemptFiles, boot: str) -> None:
        self.files = files
        self.boot = boot
        self._survivors: Dict[str, Tuple[float, bool]] = {}
        self._processes: Dict[int, procs.Process] = {}
        self._scanned_at = -SCAN_PERIOD

    def _scan(self) -> Dict[int, procs.Process]:
        if time.monotonic() - self._scanned_at >= SCAN_PERIOD:
            self._processes = procs.snapshot()
            self._scanned_at = time.monotonic()
        return self._processes

    def _members(self, key: str) -> List[procs.Process]:
        """Processes with the attempt's mark."""
        return Tree(self.files.spool.mark(key), None).members()

    def marked_keys(self) -> List[str]:
        """Attempts of this spool that have a living process."""
        marks = {procs.mark_of(pid, wire.ENV_MARK) for pid in self._scan()}
        return sorted(filter(None, map(self.files.spool.key_of_mark, marks)))

    def has_survivors(self, key: str) -> bool:
        """Do processes with the attempt's mark live? While they do, scans at most once per
        `SCAN_PERIOD`."""
        scan_time, has_members = self._survivors.get(key, (-SCAN_PERIOD, False))
        if not has_members or time.monotonic() - scan_time >= SCAN_PERIOD:
            has_members = bool(self._members(key))
            self._survivors[key] = (time.monotonic(), has_members)
        return has_members

    def count(self, info: wire.AttemptInfo) -> int:
        """The number of living processes in the attempt's tree."""
        key = wire.attempt_key(info.job, info.attempt)
        if info.state == "orphan":
            return len(self._members(key))
        if info.state not in ("starting", "running"):
            return 0
        record = self.files.read(key, wire.SHIM)
        if not record:
            return 0
        descendants = procs.descendants([int(record["pid"])], self._scan())
        return sum(1 for pid in descendants if self._processes[pid].alive)

    def owner_by_shim(self, pid: int, keys: Iterable[str]) -> str:
        """The attempt among `keys` whose shim is above a process, "" for none."""
        shims = {}
        for key in keys:
            process = procs.living(self.files.read(key, wire.SHIM), self.boot)
            if process is not None:
                shims[process.pid] = key
        visited_pids = set()
        while pid > 1 and pid not in visited_pids:
            if pid in shims:
                return shims[pid]
            visited_pids.add(pid)
            process = procs.read(pid)
            pid = process.parent if process else 0
        return ""

    def oldest(self, key: str) -> Optional[Dict[str, Any]]:
        """The identity of the oldest process of an attempt whose first process is unknown."""
        members = self._members(key)
        if not members:
            return None
        oldest = min(members, key=lambda process: (process.start_time, process.pid))
        return {
            "pid": oldest.pid,
            "start_time": oldest.start_time,
            "boot_id": self.boot,
            "started_at": time.time(),
        }

    def forget(self, key: str) -> None:
        """Forget everything about the attempt."""
        self._survivors.pop(key, None)


class AttemptStates:
    """The states of all attempts with files in `files`. `boot`: the id of this boot."""

    def __init__(self, files: AttemptFiles, processes: AttemptProcesses, boot: str) -> None:
        self.files = files
        self.processes = processes
        self.boot = boot
        self._final: Dict[str, wire.AttemptInfo] = {}
        self._latest: Dict[str, wire.AttemptInfo] = {}  # as last reported

    def survey(self, key: str) -> Optional[wire.AttemptInfo]:
        """Like `look`, but a problem with one attempt never affects the others. The agent then
        reports the attempt as it last saw it, or as one that still lives, so that nothing starts
        instead."""
        try:
            info = self.look(key)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in procs.SCARCE:
                raise
            if self.files.note(
                key, "gpq cannot check it, which is a bug in gpq: {!r}".format(error)
            ):
                traceback.print_exc(file=sys.stderr)
            job, attempt = wire.parse_attempt_key(key)
            unseen = wire.AttemptInfo(job, attempt, "orphan", damage=self.files.damage(key))
            latest: wire.AttemptInfo = self._latest.get(key, unseen)
            return latest
        if info is not None:
            self._latest[key] = info
        return info

    def look(self, key: str) -> Optional[wire.AttemptInfo]:
        """One attempt as it is now, None if there is none. Leaves `processes` at 0."""
        info = self._look(key)
        return info if info is None else info._replace(damage=self.files.damage(key))

    def is_final(self, key: str) -> bool:
        """Has the agent seen its end?"""
        return key in self._final

    def forget(self, key: str) -> None:
        """Forget everything about the attempt."""
        self._final.pop(key, None)
        self._latest.pop(key, None)

    def _look(self, key: str) -> Optional[wire.AttemptInfo]:
        if key in self._final:
            return self._final[key]
        self.files.mend(key)
        order = self.files.order(key)
        if order is None:
            return None
        shim_record = self.files.read(key, wire.SHIM)
        is_alive = procs.lives(shim_record, self.boot)
        start_record = self.files.read(key, wire.STARTED)
        info = self._of_order(order, start_record)
        if is_alive:  # the record of the end is its last work. An earlier one is by somebody else
            note = self.files.read(key, NOTE)
            if note is not None:
                info = info._replace(exit=self._unknown_exit(key, info, str(note["note"])))
            is_adopted = shim_record is not None and bool(shim_record.get("adopted"))
            return info._replace(state="orphan") if is_adopted else info
        # read after the check of the shim, because the shim may have ended in between
        exit_record = self.files.read(key, wire.EXIT)
        if exit_record is not None:
            ended = None  # an older shim did not record it
            if exit_record.get("stamp"):
                ended = self._moment(exit_record, exit_record["stamp"], exit_record["ended_at"])
            self._final[key] = info._replace(state="exited", exit=exit_record, ended=ended)
            return self._final[key]
        if spool.is_locked(self.files.path(key, spool.LOCK)):
            # a shim is starting, or adopting the attempt
            return info._replace(state="orphan") if start_record else info
        # During exec the first process shows no mark, so also look for it by its identity.
        if procs.lives(start_record, self.boot) or (
            self._same_boot(shim_record) and self.processes.has_survivors(key)
        ):
            return info._replace(state="orphan")
        if self.files.read(key, wire.EXIT) is not None:
            return self._look(key)
        self._final[key] = self._lost_attempt(key, info, shim_record)
        return self._final[key]

    def _of_order(self, order: wire.StartOrder, start_record: Record) -> wire.AttemptInfo:
        """What the order and the record of its start say: it is starting or running."""
        info = wire.AttemptInfo(
            job=order.job,
            attempt=order.attempt,
            state="starting",
            devices=list(order.devices),
            lease=order.lease,
            shortfall=order.shortfall,
        )
        if not start_record:
            return info
        seconds = start_record["start_time"] / os.sysconf("SC_CLK_TCK")
        return info._replace(
            state="running",
            pid=int(start_record["pid"]),
            started_at=float(start_record["started_at"]),
            began=self._moment(start_record, seconds, start_record["started_at"]),
        )

    def _lost_attempt(
        self, key: str, info: wire.AttemptInfo, shim_record: Record
    ) -> wire.AttemptInfo:
        """An attempt that left neither processes nor an exit record."""
        latest_end = None
        if not self._same_boot(shim_record):
            reason = "rebooted"
            latest_end = 0.0  # the boot ended its processes
        elif info.state == "starting":
            reason = "it never started: its shim did not come up"
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = records.read_bytes(self.files.path(key, shim.CRASH)) or b""
                last_line = words.decode("utf-8", "replace").strip().splitlines()[-1]
                reason += " ({})".format(last_line)
        else:
            reason = "; ".join(
                ["its shim was killed, and none of its processes is left", *self.files.damage(key)]
            )
        return info._replace(
            state="lost", exit=self._unknown_exit(key, info, reason), ended=latest_end
        )

    def _moment(self, record: Record, seconds: float, wall_time: float) -> float:
        """CLOCK_BOOTTIME of a start or an end, which is `seconds` in the boot of the record. If the
        server has booted since, by the wall clock."""
        if self._same_boot(record):
            return float(seconds)
        return min(boottime() - (time.time() - wall_time), 0.0)

    def _same_boot(self, record: Record) -> bool:
        return record is None or record.get("boot_id") == self.boot

    def _unknown_exit(self, key: str, info: wire.AttemptInfo, note: str) -> Dict[str, Any]:
        """An exit record for an end that nobody saw, without code and signal."""
        stop = self.files.read(key, wire.STOP)
        latest_change = 0.0
        for name in (wire.LOG, wire.REPORT, wire.ORDER):
            with contextlib.suppress(OSError):
                latest_change = max(latest_change, os.stat(self.files.path(key, name)).st_mtime)
        record = wire.ExitRecord(
            job=info.job,
            attempt=info.attempt,
            code=None,
            signal=None,
            stopped=os.path.exists(self.files.path(key, wire.STOPPED)),
            asked=str(stop["mode"]) if stop else None,
            started_at=info.started_at or 0.0,
            ended_at=latest_change,
            note=note,
        )
        return record._asdict()
