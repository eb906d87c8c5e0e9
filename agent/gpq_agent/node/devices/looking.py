"""Looks at the GPUs in a forked child, one at a time, so that a driver that hangs costs a child and
never the agent.

A driver may be slow without being sick: one without persistence mode initialises each GPU anew for
each look. So a look that takes long is said to be late first, and given up much later.
"""

import contextlib
import json
import os
import signal
import time
from typing import Any, List, Optional, Sequence

from gpq_agent.node.devices import gpus
from gpq_agent.node.devices.gpu_probe import Probe, RawGpu
from gpq_agent.node.host import procs

LATE = 3.0  # times what the last look took, that the next one may take
GIVEN_UP = 6.0  # times the limit, after which a look is ended


class Looking:
    """Begin a look, and ask often what came of it. Nothing here blocks."""

    def __init__(self, limit: float, with_gpus: bool) -> None:
        self.limit = limit  # seconds that a look may take at least
        self.begun = float("-inf")
        self.lasted = 0.0  # seconds, of the last look that was answered
        self.pipe = -1  # becomes readable when the child answers
        self._binding = gpus.binding() if with_gpus else None
        self._child = 0
        self._answer = b""
        self._is_late = False
        self._stuck: List[int] = []  # killed children that the kernel has not let go

    @property
    def is_under_way(self) -> bool:
        return bool(self._child)

    def may_begin(self) -> bool:
        """Not beside another one, nor beside several that hang for ever."""
        self._stuck = [pid for pid in self._stuck if not _is_collected(pid)]
        return not self._child and len(self._stuck) < 2

    def begin(self, skip: Sequence[str]) -> Optional[Probe]:
        """An answer at once only where no process can be had. `skip`: GPUs that are not to be
        asked."""
        self.begun, self._answer, self._is_late = time.monotonic(), b"", False
        agent, pipe = os.getpid(), (-1, -1)
        try:
            pipe = os.pipe()
            pid = os.fork()
        except OSError as error:
            for end in pipe:
                with contextlib.suppress(OSError):
                    os.close(end)
            return Probe([], error="cannot query the GPUs: {}".format(error.strerror))
        reading, writing = pipe
        if pid == 0:
            _look_and_exit(writing, agent, self._binding, skip)
        os.close(writing)
        os.set_blocking(reading, False)
        self._child, self.pipe = pid, reading
        return None

    def advance(self) -> Optional[Probe]:
        """What there is to be told: the answer, or, once each, that there is none yet and that none
        is waited for."""
        try:
            while True:
                chunk = os.read(self.pipe, 65536)
                if not chunk:
                    return self._finish()
                self._answer += chunk
        except BlockingIOError:
            return self._silence()

    def _silence(self) -> Optional[Probe]:
        seconds = time.monotonic() - self.begun
        patience = max(self.limit, LATE * self.lasted)
        if seconds > max(patience, GIVEN_UP * self.limit):
            self._kill()
            return Probe(
                [], error="the NVIDIA driver did not answer within {:.0f} s".format(seconds)
            )
        if seconds <= patience or self._is_late:
            return None
        self._is_late = True
        return Probe(
            [],
            error="the NVIDIA driver did not answer within {:.0f} s, gpq still waits".format(
                patience
            ),
        )

    def _kill(self) -> None:
        try:
            os.killpg(self._child, signal.SIGKILL)  # with the nvidia-smi that it may wait for
        except OSError:
            os.kill(self._child, signal.SIGKILL)
        self._let_go()

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
        data = json.dumps(gpus.probe(binding, skip)._asdict()).encode("utf-8")
        while data:
            data = data[os.write(writing, data) :]
    except BaseException as error:
        text = json.dumps({"gpus": [], "error": "querying the GPUs failed: {}".format(error)})
        os.write(writing, text.encode("utf-8"))
    finally:
        os._exit(0)
