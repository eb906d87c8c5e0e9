"""The processes of attempts. One scan of /proc serves for a while."""

import time
from typing import Any, Dict, Iterable, List, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.attempts.files import AttemptFiles
from gpq_agent.node.host import procs
from gpq_agent.node.shim.process_tree import Tree

SCAN_PERIOD = 1.0  # seconds for which one scan of /proc serves


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

    def owner_by_mark(self, pid: int) -> str:
        """The attempt whose mark a process has, "" for none."""
        return self.files.spool.key_of_mark(procs.mark_of(pid, wire.ENV_MARK))

    def owner_by_shim(self, pid: int, keys: Iterable[str]) -> str:
        """The attempt among `keys` whose shim is above a process, "" for none."""
        shims = self._shims(keys)
        visited_pids = set()
        while pid > 1 and pid not in visited_pids:
            if pid in shims:
                return shims[pid]
            visited_pids.add(pid)
            process = procs.read(pid)
            pid = process.parent if process else 0
        return ""

    def _shims(self, keys: Iterable[str]) -> Dict[int, str]:
        """Attempts by the pid of their living shim."""
        shims = {}
        for key in keys:
            record = self.files.read(key, wire.SHIM)
            if procs.lives(record, self.boot) and record is not None:
                shims[int(record["pid"])] = key
        return shims

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
