"""Forks of an interpreter that has imported torch, each with its own time limit and verdict.

A fork is a fresh process for CUDA if its parent has opened no device. Nothing in the parent opens
one.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from gpq_agent import wire

PR_SET_PDEATHSIG = 1
MOST_SAID = 1 << 20  # bytes of its log
LAST_LINE = 400  # characters of a process's last words
CPU = "cpu"
SLACK = 5.0  # times each limit, on CPUs that other tests use as well
slack = 1.0


class CheckFailed(Exception):
    """The check failed. The text is the figure of the FAIL."""


class CheckSkipped(Exception):
    """The check cannot run here. The text is the reason."""


class Child:
    """One fork that runs `work(tell, *arguments)`. Each `tell(value)` sends a line to the parent,
    and so does the return value."""

    def __init__(self, work: Callable[..., Any], *arguments: Any, environ: dict[str, str] | None = None) -> None:
        self._log = os.memfd_create("gpq")  # its output, for its last words
        self._rest = b""
        self._from, to_parent = os.pipe()
        to_child, self._to = os.pipe()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._from)
            os.close(self._to)
            _run(work, arguments, environ or {}, to_parent, to_child, self._log, parent)
        os.close(to_parent)
        os.close(to_child)
        self.code: int | None = None

    def ask(self, word: str = "go") -> None:
        """Wake a process that waits in `wait_for_word`."""
        os.write(self._to, word.encode() + b"\n")

    def next(self, limit: float) -> Any:
        """Return the next value that it tells, within this many seconds. Raises CheckFailed with
        its last words if it tells nothing more."""
        limit *= slack
        deadline = time.monotonic() + limit
        while b"\n" not in self._rest:
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0 or not select.select([self._from], [], [], remaining_seconds)[0]:
                self.end()
                raise CheckFailed("no answer within {:g} s{}".format(limit, self._words(": ")))
            chunk = os.read(self._from, 1 << 16)
            if not chunk:
                self.wait(5.0)
                raise CheckFailed("{}{}".format(self._ending(), self._words(": ")))
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line.decode("utf-8"))
        if "skipped" in answer:
            raise CheckSkipped(answer["skipped"])
        if "failed" in answer:
            raise CheckFailed(answer["failed"])
        return answer["value"]

    def end(self, number: int = signal.SIGKILL, patience: float = 10.0) -> int | None:
        """Send it a signal and return its exit code when it is gone. -9 for KILL."""
        if self.code is None:
            os.kill(self.pid, number)
        return self.wait(patience)

    def wait(self, patience: float) -> int | None:
        """Return its exit code. If it lives longer than this many seconds, kill it and return
        None."""
        deadline = time.monotonic() + patience
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            elif time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self.code = -signal.SIGKILL
                return None
            else:
                time.sleep(0.01)
        return self.code

    def output(self) -> str:
        """Everything that it has printed."""
        return os.pread(self._log, MOST_SAID, 0).decode("utf-8", "replace")

    def _ending(self) -> str:
        code = self.code if self.code is not None else 0
        return f"killed by signal {-code}" if code < 0 else f"exit {code}"

    def _words(self, before: str) -> str:
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        return before + lines[-1][:LAST_LINE] if lines else ""


def _run(
    work: Callable[..., Any],
    arguments: Any,
    environ: dict[str, str],
    pipe: int,
    words: int,
    log: int,
    parent: int,
) -> None:
    """Run the child. Never returns."""
    global _words_from
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(environ)
        _words_from = words

        def tell(value: Any) -> None:
            os.write(pipe, wire.encode({"value": value}))

        try:
            tell(work(tell, *arguments))
            code = 0
        except CheckSkipped as reason:
            os.write(pipe, wire.encode({"skipped": str(reason)}))
        except Exception as error:
            traceback.print_exc()
            os.write(pipe, wire.encode({"failed": error_text(error)}))
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


_words_from = -1


def wait_for_word() -> str:
    """In a child: wait for the next word of the parent's `ask`. "" if the parent is gone."""
    text = b""
    while not text.endswith(b"\n"):
        chunk = os.read(_words_from, 1)
        if not chunk:
            return ""
        text += chunk
    return text.decode().strip()


def error_text(error: BaseException) -> str:
    """One line: the first line of the error's text, after the name of its class unless it is a
    CheckFailed."""
    words = (str(error).strip() or "no reason given").splitlines()[0][:LAST_LINE]
    return words if isinstance(error, CheckFailed) else f"{type(error).__name__}: {words}"


def device_environ(*devices: str) -> dict[str, str]:
    """The variables that gpq sets for a job with these GPUs. "cpu" stands for none."""
    gpus = ",".join(device for device in devices if device != CPU)
    return {wire.ENV_DEVICES: gpus, "CUDA_VISIBLE_DEVICES": gpus, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
