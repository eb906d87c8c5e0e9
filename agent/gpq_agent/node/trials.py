"""GPUs that jobs could not use. The GPU is not always to blame, so gpq tests it alone. If the test
fails as well, for two jobs in a row, gpq quarantines the GPU. One test at a time, in its own
process, because a faulty GPU may never answer."""

import subprocess
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from gpq_agent import wire
from gpq_agent.node.devices import cuda_trial, gpu_locks
from gpq_agent.node.host.errors import SpoolError

IN_A_ROW = 2  # jobs
LIMIT = 60.0  # seconds for one test


class Suspicion(NamedTuple):
    gpu: str
    job: int


class Trial(NamedTuple):
    suspicion: Suspicion
    process: "subprocess.Popen[bytes]"
    lock: List[int]
    begun: float


class Trials:
    """`quarantine`: takes a GPU out of use, with a reason. `own`: the locks that the agent
    checks."""

    def __init__(self, quarantine: Callable[[str, str], None], locks: gpu_locks.Locks) -> None:
        self._quarantine = quarantine
        self._locks = locks
        self._heard: Set[str] = set()  # attempts
        self._waiting: List[Suspicion] = []
        self._refused: Dict[str, Set[int]] = {}  # by GPU, the jobs
        self._running: Optional[Trial] = None

    def hear(
        self,
        info: wire.AttemptInfo,
        devices: List[str],
        error: Callable[[], Optional[Dict[str, Any]]],
    ) -> None:
        """An attempt has ended. `error`: what ended its first replica here, see
        wire.FIRST_ERROR."""
        key = wire.attempt_key(info.job, info.attempt)
        if key in self._heard:
            return
        self._heard.add(key)
        if (info.exit or {}).get("code") == 0:
            for gpu in devices:
                self._refused.pop(gpu, None)
            return
        gpu = (error() or {}).get("gpu", "")
        if gpu in devices:
            self._waiting.append(Suspicion(gpu, info.job))

    def suspects(self) -> Dict[str, str]:
        """GPUs that wait for a test, and why. No job may start there before."""
        running_suspicions = [self._running.suspicion] if self._running is not None else []
        return {
            suspicion.gpu: "being tested, because job {} could not use it".format(suspicion.job)
            for suspicion in [*running_suspicions, *self._waiting]
        }

    def tick(self) -> None:
        """Start the next test, or take the result of the running one."""
        if self._running is not None:
            self._advance(self._running)
        elif self._waiting:
            self._running = self._begin(self._waiting.pop(0))

    def _begin(self, suspicion: Suspicion) -> Optional[Trial]:
        try:
            lock = self._locks.take([suspicion.gpu], 0, 0)
        except SpoolError:  # the next job already has the GPU, and will report it
            return None
        try:
            process = cuda_trial.begin(suspicion.gpu)
        except OSError:
            gpu_locks.release(lock)
            return None
        return Trial(suspicion, process, lock, time.monotonic())

    def _advance(self, trial: Trial) -> None:
        is_late = time.monotonic() - trial.begun > LIMIT
        if trial.process.poll() is None and not is_late:
            return
        self._running = None
        trial.process.kill()
        words = "CUDA did not answer within {:.0f} s".format(LIMIT)
        if not is_late:
            output, _ = trial.process.communicate()
            is_refused = trial.process.returncode == cuda_trial.REFUSED
            # CUDA's words if it refused the GPU
            words = output.decode("utf-8", "replace").partition("\n")[0] if is_refused else ""
        gpu_locks.release(trial.lock)
        self._locks.forget(trial.suspicion.gpu)
        jobs = self._refused.setdefault(trial.suspicion.gpu, set())
        if not words:
            jobs.clear()
            return
        jobs.add(trial.suspicion.job)
        if len(jobs) >= IN_A_ROW:
            reason = "{} jobs in a row could not use it: {}".format(len(jobs), words)
            self._quarantine(trial.suspicion.gpu, reason)
