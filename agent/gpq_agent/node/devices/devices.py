"""The devices of this node, judged: whose processes a GPU runs, whether it may be given away, when
it is free again."""

import time
from typing import Any, Callable, Dict, List, Optional

from gpq_agent import wire
from gpq_agent.node.devices import gpu_probe
from gpq_agent.node.devices.gpu_probe import Probe, RawGpu
from gpq_agent.node.devices.health import (
    DESKTOP,
    FIRST_WAIT,
    SHARING,
    TRIAL,
    UNSEEN_MIB,
    Course,
    Watched,
    strangers,
)
from gpq_agent.node.devices.looking import Looking
from gpq_agent.node.host import procs, user_names

PERIOD = 5.0  # seconds between looks while somebody is interested
# times what the last look took, at least so long until the next one, while nobody hurries
REST = 2.0
MPS_SERVER = "nvidia-cuda-mps"  # how the name of its process begins
HURRY_PERIOD = 1.0  # while an ended attempt still shows on its GPU
IDLE_PERIOD = 60.0  # where the last look found no GPU
PROBE_LIMIT = 10.0
LONGEST_DRIVER = 300.0  # between two looks at a driver that fails


class Devices:
    """CPU slots as given, and GPUs as last seen. `tick` often; nothing here blocks."""

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
        # who has the lock of a GPU that none of our attempts has, as a sentence
        self.lock_of = lock_of
        # why devices cannot be had back from attempts that cannot be ended
        self.stuck: Dict[str, str] = {}
        self.looking = Looking(probe_limit, with_gpus)
        self.period = probe_period
        self.haste = 0.0  # a shorter period, where somebody waits to be seen; 0: none
        self.driver = ""
        self.error = ""  # none of the GPUs can be used for something new, and why
        self.known = not with_gpus  # something can be told, if only that the driver is slow
        self.is_seen = not with_gpus  # a look has ended
        self.probed_from = float("-inf")  # when the last finished look had begun
        self._last = Probe([])
        self._parents: Dict[str, str] = {}  # of MIG devices, the GPU
        self._gpus: List[wire.DeviceInfo] = []
        self._watched: Dict[str, Watched] = {}
        self._first_wait = FIRST_WAIT * probe_period / PERIOD
        self._driver = Course(probe_period, LONGEST_DRIVER)  # of all GPUs at once

    def current(self) -> List[wire.DeviceInfo]:
        """All devices; of a node that falls back on slots, the slots once it is known that there is
        no GPU."""
        if self.slots_if_none:
            found = (
                self._gpus
                if self._gpus or self.error or self._last.lost or not self.known
                else self.slots
            )
        else:
            found = self.slots + self._gpus
        return [self._told(device) for device in found]

    def notice(self) -> str:
        """Of the last look that was answered, as Probe.described."""
        return self._last.described(self.looking.lasted)

    # -- looking

    def tick(self, wanted: bool, since: Optional[float] = None) -> None:
        """Collect what is ready; begin a look when one is due. `since`: an attempt ended then,
        and its GPUs are to be seen free: look at once if no look has begun since then, and again
        soon."""
        if not self.with_gpus:
            return
        if self.looking.is_under_way:
            self._take_any(self.looking.advance())
        if not self.looking.may_begin():
            return
        period = self.period if self._gpus or self.error else max(self.period, IDLE_PERIOD)
        if self._driver.now is not None:
            period = max(period, self._driver.now.wait)
        elif self._gpus and self.haste:
            period = min(period, self.haste)
        period = max(period, REST * self.looking.lasted)
        begun = self.looking.begun
        hurry = since is not None or any(watched.is_in_doubt for watched in self._watched.values())
        due = time.monotonic() - begun >= (min(period, HURRY_PERIOD) if hurry else period)
        if not self.known or (wanted and due) or (since is not None and (due or begun < since)):
            self._take_any(self.looking.begin(self._not_due()))

    def waiting_on(self) -> Optional[int]:
        """The descriptor that becomes readable when the look that is under way answers."""
        return self.looking.pipe if self.looking.is_under_way else None

    def _not_due(self) -> List[str]:
        """GPUs that are out of use and better left alone for now: asking a sick one may take long,
        or hang."""
        now = time.monotonic()
        ill = {name: watched.course.now for name, watched in self._watched.items()}
        return [name for name, illness in ill.items() if illness is not None and now < illness.due]

    # -- judging

    def _take_any(self, probe: Optional[Probe]) -> None:
        if probe is not None:
            self._take(probe)

    def _take(self, probe: Probe) -> None:
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
        before = {gpu.id: gpu for gpu in self._gpus}
        found = [self._read(raw, before.get(raw.uuid), now) for raw in probe.gpus]
        gone = [gpu for gpu in self._gpus if self._is_gone(gpu.id, probe)]
        for gpu in gone:
            self._watched[gpu.id].look(now, lost=gpu_probe.LOST)
        found += [gpu._replace(utilisation=None, used_mib=0, processes=[]) for gpu in gone]
        self._parents = {raw.uuid: raw.parent for raw in probe.gpus if raw.parent}
        self._gpus = sorted(found, key=lambda gpu: (gpu.index, gpu.id))

    def _is_gone(self, name: str, probe: Probe) -> bool:
        """It was there, is not, and its GPU was not partitioned anew."""
        whole = {raw.uuid for raw in probe.gpus} | set(probe.partitioned)
        return name not in whole and self._parents.get(name) not in whole

    def _read(self, raw: RawGpu, before: Optional[wire.DeviceInfo], now: float) -> wire.DeviceInfo:
        """One look at one GPU; the state follows from it and all before when it is told."""
        watched = self._watched.setdefault(raw.uuid, Watched(self._first_wait))
        if raw.problem == gpu_probe.SKIPPED and before is not None:
            return before._replace(index=raw.number)
        processes = [self._describe(pid, memory, raw.uuid) for pid, memory in raw.processes]
        processes += [
            dict(self._describe(pid, memory, ""), role=DESKTOP) for pid, memory in raw.drawing
        ]
        who, ghost = strangers(processes, raw.used_mib, self.holder_of(raw.uuid))
        lost = gpu_probe.LOST if raw.problem == "lost" else ""
        watched.look(now, "" if lost else raw.problem, lost, who, ghost, raw.ecc)
        return wire.DeviceInfo(
            id=raw.uuid,
            index=raw.number,
            kind="cuda",
            type=raw.name or (before.type if before else ""),
            memory_mib=raw.memory_mib or (before.memory_mib if before else 0),
            state="ok",
            used_mib=raw.used_mib,
            utilisation=raw.utilisation,
            processes=[one for one in processes if one["role"] not in (SHARING, TRIAL)],
        )

    def _told(self, device: wire.DeviceInfo) -> wire.DeviceInfo:
        """As it is now: the last look, who has it, whose lock is held."""
        now = time.monotonic()
        stuck = self.stuck.get(device.id, "")
        if device.kind != "cuda":
            return device._replace(state="quarantined", reason=stuck) if stuck else device
        watched, holder = self._watched[device.id], self.holder_of(device.id)
        locked = "" if holder else self.lock_of(device.id)
        state, reason = watched.verdict(now, holder, locked, stuck, self._driver.now)
        if state == "ok":
            return device._replace(state=state, reason=reason)
        illness = self._driver.now or watched.course.now
        due = max(0.0, illness.due - now) if illness is not None else 0.0
        return device._replace(state=state, reason=reason, age=watched.age(now), next_probe=due)

    def unsettled(self, name: str) -> str:
        """Who was on a GPU at the last look, though its state does not tell yet."""
        watched = self._watched.get(name)
        return watched.seen if watched is not None and not self.holder_of(name) else ""

    def quarantine(self, name: str, reason: str) -> None:
        """Out of use for a while, for what no look at it shows."""
        if name in self._watched:
            self._watched[name].course.ill("quarantined", reason, time.monotonic())

    def left_by(self, key: str, names: List[str]) -> None:
        """An ended attempt is told to be over though memory of these GPUs is still in use."""
        for name in names:
            if name in self._watched:
                self._watched[name].left = key

    def _describe(self, pid: int, memory_mib: int, device: str) -> Dict[str, Any]:
        """A process as seen from here. In a container NVML may show pids of another namespace: such
        a one is taken for the attempt's that has the device, so that our own job does not look
        foreign."""
        process = procs.read(pid)
        # a thread of the kernel has none: then the pid is not to be believed either
        command = procs.command_of(pid)
        visible = process is not None and process.alive and bool(command)
        return {
            "pid": pid,
            "user": user_names.user_of(pid) if visible else "",
            "name": process.name if process is not None and visible else "",
            "command": command if visible else "",
            "since": procs.started_at(process) if process is not None and visible else 0.0,
            "memory_mib": memory_mib,
            "attempt": self.owner_of(pid) if visible else self.holder_of(device),
            "role": _role(process) if visible and process is not None else "",
        }

    def still_used_by(self, key: str, held: List[str]) -> str:
        """What the last probe shows of an ended attempt on its GPUs, "" for nothing."""
        for gpu in self._gpus:
            if gpu.id not in held:
                continue
            pids = [str(process["pid"]) for process in gpu.processes if process["attempt"] == key]
            if pids:
                return "{} still shows pid {}".format(gpu.id, ", ".join(pids))
            if not gpu.processes and gpu.used_mib > UNSEEN_MIB:
                return "{} still has {:,} MiB in use".format(gpu.id, gpu.used_mib)
        return ""


def _role(process: procs.Process) -> str:
    """As in judging, "" for most."""
    if process.name.startswith(MPS_SERVER):
        return SHARING
    return TRIAL if procs.mark_of(process.pid, wire.ENV_TRIAL) else ""
