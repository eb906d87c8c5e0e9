"""Looks at the GPUs in a forked child, one at a time, so that a driver that hangs blocks a child
and never the agent.

A slow driver is not always faulty: without persistence mode it initialises each GPU again for each
look. So a long look is first reported as late, and given up much later.

It asks NVML first. If NVML reports nothing or fails, it asks `nvidia-smi`. devices.py attributes
processes to attempts and gives the verdict on each GPU.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from types import ModuleType
from typing import Any, List, Optional, Sequence

from gpq_agent.node.devices import gpu_probe, nvml, smi
from gpq_agent.node.devices.gpu_probe import Probe, RawGpu
from gpq_agent.node.host import procs

LATE = 3.0  # the next look may take this many times the last one
GIVEN_UP = 6.0  # a look ends after this many times the limit


class Looking:
    """Start a look and ask for its result often. Nothing here blocks."""

    def __init__(self, limit: float, with_gpus: bool) -> None:
        self.limit = limit  # seconds that every look may take
        self.begun = float("-inf")
        self.lasted = 0.0  # seconds of the last look that was answered
        self.pipe = -1  # becomes readable when the child answers
        self._binding = binding() if with_gpus else None
        self._child = 0
        self._answer = b""
        self._is_late = False
        self._stuck: List[int] = []  # killed children that the kernel has not released

    @property
    def is_under_way(self) -> bool:
        return bool(self._child)

    def may_begin(self) -> bool:
        """No other look may be running, and no more than one may hang for ever."""
        self._stuck = [pid for pid in self._stuck if not _is_collected(pid)]
        return not self._child and len(self._stuck) < 2

    def begin(self, skip: Sequence[str]) -> Optional[Probe]:
        """Answers at once only if no process can be started. `skip`: GPUs that must not be
        queried."""
        self.begun, self._answer, self._is_late = time.monotonic(), b"", False
        agent = os.getpid()
        try:
            pid, pipe = procs.fork_with_pipe()
        except OSError as error:
            return Probe([], error="cannot query the GPUs: {}".format(error.strerror))
        if pid == 0:
            _look_and_exit(pipe, agent, self._binding, skip)
        os.set_blocking(pipe, False)
        self._child, self.pipe = pid, pipe
        return None

    def advance(self) -> Optional[Probe]:
        """What there is to report: the answer, or once each, that it is late and that the look was
        given up."""
        with contextlib.suppress(BlockingIOError):
            while True:
                chunk = os.read(self.pipe, 65536)
                if not chunk:
                    return self._finish()
                self._answer += chunk
        seconds = time.monotonic() - self.begun
        patience = max(self.limit, LATE * self.lasted)
        if seconds > max(patience, GIVEN_UP * self.limit):
            try:
                os.killpg(self._child, signal.SIGKILL)  # also the nvidia-smi that it may wait for
            except OSError:
                os.kill(self._child, signal.SIGKILL)
            self._let_go()
            words = "the NVIDIA driver did not answer within {:.0f} s"
            return Probe([], error=words.format(seconds))
        if seconds <= patience or self._is_late:
            return None
        self._is_late = True
        words = "the NVIDIA driver did not answer within {:.0f} s, and gpq still waits"
        return Probe([], error=words.format(patience))

    def _finish(self) -> Probe:
        self._let_go()
        self.lasted = time.monotonic() - self.begun
        try:
            answer = json.loads(self._answer.decode("utf-8"))
            answer["gpus"] = [RawGpu(*fields) for fields in answer["gpus"]]
            return Probe(**answer)
        except (ValueError, TypeError, KeyError):
            return Probe([], error="querying the GPUs failed: the query crashed")

    def _let_go(self) -> None:
        if not _is_collected(self._child):
            self._stuck.append(self._child)
        os.close(self.pipe)
        self._child, self.pipe = 0, -1


def _is_collected(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _look_and_exit(writing: int, agent: int, binding: Any, skip: Sequence[str]) -> None:
    try:
        os.setpgid(0, 0)
        procs.keep_only({writing})
        procs.die_with_parent(agent)
        procs.write_all(writing, json.dumps(probe(binding, skip)._asdict()).encode("utf-8"))
    except BaseException as error:
        text = json.dumps({"gpus": [], "error": "querying the GPUs failed: {}".format(error)})
        os.write(writing, text.encode("utf-8"))
    finally:
        os._exit(0)


def binding() -> Optional[ModuleType]:
    """The binding with which `probe` asks NVML, None if there is none."""
    return nvml.load()


def probe(binding: Optional[ModuleType], skip: Sequence[str] = ()) -> Probe:
    """All GPUs of this server. Without a driver the answer is empty and has no error. For GPUs in
    `skip` (by UUID) NVML is asked only for their names."""
    answer = Probe([])
    if binding is not None:
        try:
            answer = nvml.look(binding, skip)
        except nvml.Unfit as reason:
            answer = Probe([], error="NVML: {}".format(reason))
    if not _says_something(answer) and shutil.which("nvidia-smi"):
        smi_answer = smi.look()
        answer = smi_answer if _says_something(smi_answer) or not answer.error else answer
    if answer.gpus or answer.error or answer.notice:
        return answer
    return answer._replace(notice=gpu_probe.unused_hardware())


def _says_something(answer: Probe) -> bool:
    return bool(answer.gpus or answer.lost or answer.hidden or answer.partitioned)
