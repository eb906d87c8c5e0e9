"""Sends one message through a separate process, and ends it if it takes too long. Knows names of
targets, but no URL."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading

from gpq.connectors import environment

LIMIT = 30.0  # seconds from the start of the process to the answer of the service
LONGEST_REASON = 200  # characters


class Courier:
    """One thread at a time may call `deliver`. Any thread may call `end`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False

    def deliver(self, target: str, title: str, body: str, limit: float = LIMIT) -> str:
        """Returns "" if the service accepted it, otherwise why not. Neither the answer nor the
        arguments of a process contain a secret."""
        order = json.dumps({"target": target, "title": title, "body": body}).encode()
        try:
            process = self._start()
        except OSError as error:
            return f"cannot start a process: {error.strerror}"
        if process is None:
            return "the daemon is stopping"
        try:
            output, _ = process.communicate(order, limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            return f"no answer within {limit:.0f} s"
        finally:
            with self._lock:
                self._process = None
        try:
            return str(json.loads(output)["why"])[:LONGEST_REASON]
        except (ValueError, KeyError, TypeError):
            return f"the process that sends it crashed (exit code {process.returncode})"

    def end(self) -> None:
        """Gives up what is being sent, and starts nothing more."""
        with self._lock:
            self._over = True
            if self._process is not None:
                _kill(self._process)

    def _start(self) -> subprocess.Popen[bytes] | None:
        # our own variables, without those of another Python
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        with self._lock:
            if self._over:
                return None
            self._process = subprocess.Popen(
                [*environment.interpreter(), "-m", "gpq.notify.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=own | environment.python_path(),
                start_new_session=True,
            )
            return self._process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends it with everything that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
