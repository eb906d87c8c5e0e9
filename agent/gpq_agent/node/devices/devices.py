"""The devices of this server and verdicts on them: whose processes a GPU runs, whether a job may
get it, and when it is free again."""

import time
from typing import Any, Callable, Dict, List, Optional

from gpq_agent import wire
from gpq_agent.node.devices import gpu_probe, health
from gpq_agent.node.devices.gpu_probe import Probe, RawGpu
from gpq_agent.node.devices.health import DeviceHealth, HealthState
from gpq_agent.node.devices.looking import Looking
from gpq_agent.node.host import procs, user_names

PERIOD = 5.0  # seconds between looks while somebody watches
# pause before the next look, in multiples of the last look's duration, if nobody hurries
REST = 2.0
MPS_SERVER = "nvidia-cuda-mps"  # prefix of the process name
# seconds between looks while an ended attempt may still show on its GPU: the first, and the last
HURRY_FROM, HURRY_TO = 0.1, 1.0
IDLE_PERIOD = 60.0  # if the last look found no GPU
PROBE_LIMIT = 10.0
UNSHOWN = (health.SHARING, health.TRIAL)  # roles of processes that are not reported
LONGEST_DRIVER = 300.0  # seconds between two looks at a driver that fails


class Devices:
    """CPU slots as given, and GPUs as last seen. Call `tick` often. Nothing here blocks."""

    def __init__(
        self,
        slots: List[wire.DeviceInfo],
        with_gpus: bool,
        owner_of: Callable[[int], str],
        holder_of: Callable[[str], str],
        lock_of: Callable[[str], str] = lambda _: "",
        probe_limit: float = PROBE_LIMIT,
        probe_period: float = PERIOD,
        slots_if_none: bool = False,
    ) -> None:
        self.slots = slots
        self.slots_if_none = slots_if_none
        self.with_gpus = with_gpus
        self.owner_of = owner_of
        self.holder_of = holder_of
        # a phrase that says who holds the lock of a device that none of our attempts has
        self.lock_of = lock_of
        # why devices are still taken by attempts that cannot be ended
        self.stuck: Dict[str, str] = {}
        self.looking = Looking(probe_limit, with_gpus)
        self.period = probe_period
        self.haste = 0.0  # a shorter period, if somebody waits to be noticed. 0: none
        self.driver = ""
        self.error = ""  # why no GPU can be used for anything new
        # there is something to report, even if only that the driver is slow
        self.known = not with_gpus
        self.is_seen = not with_gpus  # a look has finished
        self.probed_from = float("-inf")  # when the last finished look started
        self._last = Probe([])
        self._parents: Dict[str, str] = {}  # the GPU of each MIG device
        self._gpus: List[wire.DeviceInfo] = []
        self._first_wait = health.FIRST_WAIT * probe_period / PERIOD
        self._watched = {slot.id: DeviceHealth(self._first_wait) for slot in slots}
        self._driver = HealthState(probe_period, LONGEST_DRIVER)  # a problem of all GPUs at once

    def current(self) -> List[wire.DeviceInfo]:
        """All devices. A server that falls back to slots has them once it is known that there is no
        GPU."""
        has_no_gpu = self.known and not (self._gpus or self.error or self._last.lost)
        slots = self.slots if has_no_gpu or not self.slots_if_none else []
        return [self._info(device) for device in slots + self._gpus]

    def notice(self) -> str:
        """Probe.describe of the last look that was answered."""
        return self._last.describe(self.looking.lasted)

    # -- looking

    def tick(self, is_watched: bool, since: Optional[float] = None) -> None:
        """Collect what is ready, and start a look when it is time. `since`: when an attempt ended
        whose GPUs must become free. Then look at once, unless a look has started since, and again
        soon."""
        if not self.with_gpus:
            return
        if self.looking.is_under_way:
            self._take(self.looking.advance())
        if not self.looking.may_begin():
            return
        period = self.period if self._gpus or self.error else max(self.period, IDLE_PERIOD)
        if self._driver.now is not None:
            period = max(period, self._driver.now.wait)
        elif self._gpus and self.haste:
            period = min(period, self.haste)
        period = max(period, REST * self.looking.lasted)
        now, begin = time.monotonic(), self.looking.begun
        if since is not None:
            # The pauses grow with the time that it takes: most GPUs are free within a moment.
            period = min(period, max(now - since, HURRY_FROM), HURRY_TO)
        elif any(watched.is_in_doubt for watched in self._watched.values()):
            period = min(period, HURRY_TO)
        is_due = now - begin >= period
        if (
            not self.known
            or (is_watched and is_due)
            or (since is not None and (is_due or begin < since))
        ):
            # Leave GPUs alone that are out of use and not due, because a faulty one may answer late
            # or never.
            illnesses = [(name, watched.course.now) for name, watched in self._watched.items()]
            skip = [name for name, illness in illnesses if illness and now < illness.due]
            self._take(self.looking.begin(skip))

    def waiting_on(self) -> Optional[int]:
        """The descriptor that becomes readable when the running look answers."""
        return self.looking.pipe if self.looking.is_under_way else None

    # -- judging

    def _take(self, probe: Optional[Probe]) -> None:
        if probe is None:
            return
        now = time.monotonic()
        self.known = True
        self.error = probe.error
        self.driver = probe.driver or self.driver
        if not self.looking.is_under_way:
            self.is_seen = True
            self.probed_from = self.looking.begun
        if probe.error:
            self._driver.ill("degraded", probe.error, now)
            self._gpus = [gpu._replace(utilisation=None) for gpu in self._gpus]
            return
        self._last = probe
        self._driver.well(now, at_once=True)
        gpus_by_id = {gpu.id: gpu for gpu in self._gpus}
        gpus = [self._read(raw, gpus_by_id.get(raw.uuid), now) for raw in probe.gpus]
        # A lost one was there, is not there now, and its GPU was not partitioned again.
        whole_uuids = {raw.uuid for raw in probe.gpus} | set(probe.partitioned)
        lost_gpus = [
            gpu
            for gpu in self._gpus
            if whole_uuids.isdisjoint((gpu.id, self._parents.get(gpu.id, "")))
        ]
        for gpu in lost_gpus:
            self._watched[gpu.id].look(now, loss=gpu_probe.LOST)
        gpus += [gpu._replace(utilisation=None, used_mib=0, processes=[]) for gpu in lost_gpus]
        self._parents = {raw.uuid: raw.parent for raw in probe.gpus if raw.parent}
        self._gpus = sorted(gpus, key=lambda gpu: (gpu.index, gpu.id))

    def _read(
        self, raw: RawGpu, previous: Optional[wire.DeviceInfo], now: float
    ) -> wire.DeviceInfo:
        """Take one look at one GPU. The state follows from this and all earlier looks when it is
        reported."""
        watched = self._watched.setdefault(raw.uuid, DeviceHealth(self._first_wait))
        if raw.problem == gpu_probe.SKIPPED and previous is not None:
            return previous._replace(index=raw.number)
        processes = [self._describe(pid, memory, raw.uuid) for pid, memory in raw.processes]
        processes += [
            dict(self._describe(pid, memory, ""), role=health.DESKTOP)
            for pid, memory in raw.drawing
        ]
        foreign_use, ghost = health.strangers(processes, raw.used_mib, self.holder_of(raw.uuid))
        loss = gpu_probe.LOST if raw.problem == "lost" else ""
        watched.look(now, "" if loss else raw.problem, loss, foreign_use, ghost, raw.ecc)
        return wire.DeviceInfo(
            id=raw.uuid,
            index=raw.number,
            kind="cuda",
            type=raw.name or (previous.type if previous else ""),
            memory_mib=raw.memory_mib or (previous.memory_mib if previous else 0),
            state="ok",
            used_mib=raw.used_mib,
            utilisation=raw.utilisation,
            processes=[process for process in processes if process["role"] not in UNSHOWN],
        )

    def _info(self, device: wire.DeviceInfo) -> wire.DeviceInfo:
        """The device as it is now, from the last look, its holder and the holder of its lock."""
        now = time.monotonic()
        stuck = self.stuck.get(device.id, "")
        watched, holder = self._watched[device.id], self.holder_of(device.id)
        locked = "" if holder else self.lock_of(device.id)
        state, reason = watched.verdict(now, holder, locked, stuck, self._driver.now)
        if state == "ok":
            return device._replace(state=state, reason=reason)
        illness = self._driver.now or watched.course.now
        wait = max(0.0, illness.due - now) if illness is not None else 0.0
        return device._replace(state=state, reason=reason, age=watched.age(now), next_probe=wait)

    def unsettled_user(self, name: str) -> str:
        """Who used a GPU at the last look, if its state does not show it yet."""
        watched = self._watched.get(name)
        return watched.seen if watched is not None and not self.holder_of(name) else ""

    def quarantine(self, name: str, reason: str) -> None:
        """Take a GPU out of use for a while, for a reason that no look at it shows."""
        if name in self._watched:
            self._watched[name].course.ill("quarantined", reason, time.monotonic())

    def left_by(self, key: str, names: List[str]) -> None:
        """The agent reports an ended attempt although memory of these GPUs is still in use."""
        for name in self._watched.keys() & set(names):
            self._watched[name].left = key

    def _describe(self, pid: int, memory_mib: int, device: str) -> Dict[str, Any]:
        """A process as seen from here. In a container NVML may show pids of another namespace. Such
        a process counts for the attempt that has the device, so that our own job does not look
        foreign."""
        process = procs.read(pid)
        # a kernel thread has no command line, so the pid belongs to another namespace
        command = procs.command_of(pid)
        if process is None or not process.alive or not command:
            owner = self.holder_of(device)
            unknown = dict.fromkeys(("user", "name", "command", "role"), "")
            return {**unknown, "pid": pid, "since": 0.0, "memory_mib": memory_mib, "attempt": owner}
        return {
            "pid": pid,
            "user": user_names.user_of(pid),
            "name": process.name,
            "command": command,
            "since": procs.started_at(process),
            "memory_mib": memory_mib,
            "attempt": self.owner_of(pid),
            "role": _role(process),
        }

    def still_used_by(self, key: str, devices: List[str]) -> str:
        """What the last look shows of an ended attempt on its GPUs, "" for nothing."""
        for gpu in self._gpus:
            if gpu.id not in devices:
                continue
            pids = [str(process["pid"]) for process in gpu.processes if process["attempt"] == key]
            if pids:
                return "{} still shows pid {}".format(gpu.id, ", ".join(pids))
            if not gpu.processes and gpu.used_mib > health.UNSEEN_MIB:
                return "{} still has {:,} MiB in use".format(gpu.id, gpu.used_mib)
        return ""


def _role(process: procs.Process) -> str:
    """A role as in health.py, "" for most processes."""
    if process.name.startswith(MPS_SERVER):
        return health.SHARING
    return health.TRIAL if procs.mark_of(process.pid, wire.ENV_TRIAL) else ""
