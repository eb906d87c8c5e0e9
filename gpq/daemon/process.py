"""The daemon as a process: what it inherits, where it logs, how to end it. Knows nothing of jobs
and servers."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import logging
import logging.handlers
import os
import resource
import select
import signal
from collections.abc import Iterator
from io import TextIOWrapper

from gpq import attributes, daemon
from gpq.connectors import environment
from gpq.core.model.jobs import Attributes
from gpq.errors import GpqError, Refused
from gpq.folders import not_through_links

LOG_BYTES = 4 << 20
LOGS_KEPT = 2


class Ready:
    """The pipe to the process that started the daemon. Used once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)

    def serving(self) -> bool:
        return self._tell({"ok": True, "pid": os.getpid()})

    def failed(self, error: GpqError) -> bool:
        return self._tell(
            {"ok": False, "code": error.code, "error": error.message, "hint": error.hint}
        )

    def _tell(self, verdict: dict[str, object]) -> bool:
        """False if nobody is there to read it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return False
        with contextlib.suppress(OSError):  # the process that started it may be gone
            os.write(descriptor, json.dumps(verdict).encode())
        os.close(descriptor)
        return True


def harden() -> Attributes:
    """Make the daemon independent of the shell that started it: its variables, limits, niceness and
    cores no longer count. Files only for the owner, no core dump (it would hold every job's
    environment), no death by a closed pipe.

    Returns what it had before, for jobs that noted none: older submissions, and those of other
    programs.
    """
    umask, nice, limits = attributes.own()
    variables = environment.of_daemon() | daemon.THREADS
    os.environ.clear()
    os.environ.update(variables)
    os.umask(0o077)
    attributes.widen()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return Attributes(
        umask, nice, tuple((name, soft, hard) for name, (soft, hard) in limits.items())
    )


class _LogFile(logging.handlers.RotatingFileHandler):
    """Follows no link, because that would write wherever somebody made it lead."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=not_through_links)


def log_to_file(path: str, *, alone: bool) -> None:
    try:
        file_handler = _LogFile(path, maxBytes=LOG_BYTES, backupCount=LOGS_KEPT, encoding="utf-8")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Refused(f"{path} is a link, so gpq does not write to it", "remove the link") from None
    handlers: list[logging.Handler] = [file_handler]
    if not alone:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(
        level=logging.INFO,
        handlers=handlers,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    logging.raiseExceptions = False  # a full disk stops the log, not the daemon
    # A crash within a library has no exception, so the log says where it was. Only that thread's
    # stack, because the others run on, and reading a stack that changes can end the report early.
    log_file = not_through_links(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    faulthandler.enable(log_file, all_threads=False)


class Ending:
    """Set from any thread and by signals. Its wait looks at a pipe. A signal between Python's last
    check and the system call writes to the pipe and so ends the call, which the signal alone would
    not."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()  # the latter for `signal.set_wakeup_fd`
        os.set_blocking(self._read, False)
        os.set_blocking(self.descriptor, False)
        self._pipe = select.poll()
        self._pipe.register(self._read, select.POLLIN)

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full, so already set
            os.write(self.descriptor, b"\0")

    def wait(self, timeout: float) -> bool:
        """Was it set within that many seconds? The wait takes everything that was set before it."""
        return bool(self._pipe.poll(timeout * 1000.0)) and bool(os.read(self._read, 1 << 16))


@contextlib.contextmanager
def ended_by_signals(ending: Ending) -> Iterator[None]:
    """SIGTERM and SIGINT end the daemon cleanly."""
    before_descriptor = signal.set_wakeup_fd(ending.descriptor, warn_on_full_buffer=False)
    before = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_descriptor)
