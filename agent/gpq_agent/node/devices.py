"""The devices of this node, judged: whose processes a GPU runs, whether it may be given away, when it is free again.

Probing runs in a forked child with a time limit, so that a driver that hangs costs a child and never the agent.
"""

import json
import os
import pwd
import signal
import time
from typing import Any, Callable, Dict, List, Optional

from gpq_agent import wire
from gpq_agent.node import gpus, procs

PERIOD = 5.0  # seconds between probes while somebody is interested
HURRY_PERIOD = 1.0  # while an ended attempt still shows on its GPU
IDLE_PERIOD = 60.0  # where the last look found no GPU
PROBE_LIMIT = 10.0
NOTE_AFTER, RELEASE_AFTER = 30.0, 60.0  # seconds that an ended attempt may still show on its GPU
UNSEEN_MIB = 1500  # memory in use by no visible process that is more than a driver keeps for itself


class Devices:
    """CPU slots as given, and GPUs as last probed. `tick` often; nothing here blocks."""

    def __init__(
        self,
        slots: List[wire.DeviceInfo],
        with_gpus: bool,
        owner_of: Callable[[int], str],
        holder_of: Callable[[str], str],
        probe_limit: float = PROBE_LIMIT,
        probe_period: float = PERIOD,
        slots_if_none: bool = False,
    ) -> None:
        self.slots = slots
        self.slots_if_none = slots_if_none
        self.with_gpus = with_gpus
        self.owner_of = owner_of
        self.holder_of = holder_of
        self.limit = probe_limit
        self.period = probe_period
        self.driver = ""
        self.error = ""
        self.known = not with_gpus
        self.probed_from = float("-inf")  # when the last finished probe had begun
        self._gpus: List[wire.DeviceInfo] = []
        self._nvml = gpus.load_nvml() if with_gpus else None
        self._child = 0
        self._pipe = -1
        self._begun = float("-inf")
        self._answer = b""
        self._stuck: List[int] = []  # killed probes that the kernel has not let go

    def current(self) -> List[wire.DeviceInfo]:
        """All devices; of a node that falls back on slots, the slots once it is known that there is no GPU."""
        if self.slots_if_none:
            return self._gpus if self._gpus or self.error or not self.known else self.slots
        return self.slots + self._gpus

    # -- probing

    def tick(self, wanted: bool, since: Optional[float] = None) -> None:
        """Collect what is ready; begin a probe when one is due. `since`: an attempt ended then, and its GPUs are to be
        seen free: look at once if no probe has begun since then, and again soon."""
        if not self.with_gpus:
            return
        self._stuck = [pid for pid in self._stuck if not _collected(pid)]
        if self._child:
            self._advance()
        if self._child or len(self._stuck) > 1:
            return
        period = self.period if self._gpus or self.error else max(self.period, IDLE_PERIOD)
        due = time.monotonic() - self._begun >= (period if since is None else min(period, HURRY_PERIOD))
        if not self.known or (wanted and due) or (since is not None and (due or self._begun < since)):
            self._begin()

    def waiting_on(self) -> Optional[int]:
        """The descriptor that becomes readable when the running probe answers."""
        return self._pipe if self._child else None

    def _begin(self) -> None:
        self._begun = time.monotonic()
        self._answer = b""
        agent = os.getpid()
        try:
            reading, writing = os.pipe()
        except OSError as error:
            self._take(gpus.Probe([], error="the GPUs cannot be looked at: {}".format(error.strerror)))
            return
        try:
            pid = os.fork()
        except OSError as error:
            os.close(reading)
            os.close(writing)
            self._take(gpus.Probe([], error="the GPUs cannot be looked at: {}".format(error.strerror)))
            return
        if pid == 0:
            _probe_and_exit(writing, agent, self._nvml)
        os.close(writing)
        os.set_blocking(reading, False)
        self._child, self._pipe = pid, reading

    def _advance(self) -> None:
        try:
            while True:
                chunk = os.read(self._pipe, 65536)
                if not chunk:
                    break
                self._answer += chunk
        except BlockingIOError:
            if time.monotonic() - self._begun > self.limit:
                self._give_up()
            return
        self._finish()

    def _give_up(self) -> None:
        try:
            os.killpg(self._child, signal.SIGKILL)  # with the nvidia-smi that it may wait for
        except OSError:
            os.kill(self._child, signal.SIGKILL)
        if not _collected(self._child):
            self._stuck.append(self._child)
        self._close()
        self._take(gpus.Probe([], error="the NVIDIA driver did not answer within {:.0f} s".format(self.limit)))

    def _finish(self) -> None:
        if not _collected(self._child):
            self._stuck.append(self._child)
        self._close()
        try:
            answer = json.loads(self._answer.decode("utf-8"))
            answer["gpus"] = [gpus.RawGpu(*one) for one in answer["gpus"]]
            self._take(gpus.Probe(**answer))
        except (ValueError, TypeError, KeyError):
            self._take(gpus.Probe([], error="probing the GPUs failed: the probe crashed"))

    def _close(self) -> None:
        os.close(self._pipe)
        self._child, self._pipe = 0, -1

    # -- judging

    def _take(self, probe: gpus.Probe) -> None:
        self.known = True
        self.probed_from = self._begun
        self.error = probe.error
        self.driver = probe.driver or self.driver
        if probe.error:
            self._gpus = [gpu._replace(state="degraded", reason=probe.error, utilisation=None) for gpu in self._gpus]
            return
        before = {gpu.id: gpu for gpu in self._gpus}
        now = [self._judge(raw, before.get(raw.uuid)) for raw in probe.gpus]
        gone = [gpu for gpu in self._gpus if gpu.id not in {raw.uuid for raw in probe.gpus}]
        now += [
            gpu._replace(state="lost", reason=gpus.LOST, utilisation=None, used_mib=0, processes=[]) for gpu in gone
        ]
        if probe.lost and not gone:
            self.error = "GPU {} is lost; this node must reboot".format(", ".join(map(str, probe.lost)))
        self._gpus = sorted(now, key=lambda gpu: (gpu.index, gpu.id))

    def _judge(self, raw: gpus.RawGpu, before: Optional[wire.DeviceInfo]) -> wire.DeviceInfo:
        processes = [self._describe(pid, memory, raw.uuid) for pid, memory in raw.processes]
        info = wire.DeviceInfo(
            id=raw.uuid,
            index=raw.number,
            kind="cuda",
            type=raw.name or (before.type if before else ""),
            memory_mib=raw.memory_mib or (before.memory_mib if before else 0),
            state="ok",
            used_mib=raw.used_mib,
            utilisation=raw.utilisation,
            processes=processes,
        )
        if raw.problem:
            lost = raw.problem == "lost"
            return info._replace(state="lost" if lost else "degraded", reason=gpus.LOST if lost else raw.problem)
        reason = self._foreign(info)
        return info._replace(state="foreign", reason=reason) if reason else info

    def _describe(self, pid: int, memory_mib: int, device: str) -> Dict[str, Any]:
        """A process as seen from here. In a container NVML may show pids of another namespace: such a one is taken for
        the attempt's that has the device, so that our own job does not look foreign."""
        process = procs.read(pid)
        visible = process is not None and process.alive
        return {
            "pid": pid,
            "user": _user(pid) if visible else "",
            "name": process.name if process is not None and visible else "",
            "memory_mib": memory_mib,
            "attempt": self.owner_of(pid) if visible else self.holder_of(device),
        }

    def _foreign(self, info: wire.DeviceInfo) -> str:
        """Why the GPU is not ours to give away, "" when it is."""
        holder = self.holder_of(info.id)
        for process in info.processes:
            if process["attempt"] and process["attempt"] == holder:
                continue
            who = ", ".join(part for part in (process["user"], process["name"]) if part) or "not visible from here"
            reason = "pid {} ({}) uses {:,} MiB".format(process["pid"], who, process["memory_mib"])
            if process["attempt"]:
                reason += "; attempt {} was not given this GPU".format(process["attempt"])
            return reason
        if not info.processes and not holder and info.used_mib > UNSEEN_MIB:
            return "{:,} MiB are in use by no process that can be seen".format(info.used_mib)
        return ""

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


class Release:
    """Holds back the news that an attempt has ended until its GPUs are seen to be free, for a minute at most.

    After that minute the end is reported: the GPU itself is then "foreign", and nobody gets it.
    """

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self._ended: Dict[str, float] = {}
        self._released: Dict[str, bool] = {}

    def holding(self, key: str) -> bool:
        """Does this ended attempt still have its GPUs?"""
        return key in self._ended and key not in self._released

    def since(self) -> Optional[float]:
        """When the last of the attempts ended that are held back; None when none is."""
        return max((ended for key, ended in self._ended.items() if key not in self._released), default=None)

    def filter(self, key: str, info: wire.AttemptInfo, held: List[str]) -> wire.AttemptInfo:
        """The attempt as it may be reported; "running" while it is held back."""
        if info.state != "exited" or key in self._released or not self.devices.with_gpus or _only_slots(held):
            return info
        ended = self._ended.setdefault(key, time.monotonic())
        waited = time.monotonic() - ended
        rest = self.devices.still_used_by(key, held) if self.devices.probed_from >= ended else "not probed yet"
        known = self.devices.probed_from >= ended and (bool(self.devices.error) or not rest)
        if known or waited > RELEASE_AFTER:
            self._released[key] = True
            return info
        note = "it has ended, but {}".format(rest) if waited > NOTE_AFTER else ""
        return info._replace(state="running", exit=dict(info.exit or {}, note=note) if note else None)


def _only_slots(held: List[str]) -> bool:
    return all(device.startswith("slot-") for device in held)


def _collected(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _user(pid: int) -> str:
    try:
        uid = os.stat("/proc/{}".format(pid)).st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _probe_and_exit(writing: int, agent: int, nvml: Any) -> None:
    try:
        os.setpgid(0, 0)
        procs.keep_only({writing})
        procs.die_with_parent(agent)
        answer = gpus.probe(nvml)._asdict()
        data = json.dumps(answer).encode("utf-8")
        while data:
            data = data[os.write(writing, data) :]
    except BaseException as error:
        text = json.dumps({"gpus": [], "error": "probing the GPUs failed: {}".format(error)})
        os.write(writing, text.encode("utf-8"))
    finally:
        os._exit(0)
