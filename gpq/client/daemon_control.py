"""`gpq daemon start|stop|status|logs`: starts and stops the daemon, reads its status and log."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Iterator

from gpq import outward, paths
from gpq.client.autostart import ensure_daemon
from gpq.client.connection import connect
from gpq.errors import DaemonUnreachable, GpqError, NotFound, Refused
from gpq.rpc.daemon_answers import DaemonInfo
from gpq.rpc.job_answers import CancelResult
from gpq.rpc.requests import Cancel, Info, Shutdown
from gpq.store.lock import owner_of, start_time

STOP_SECONDS = 40.0
CHANGED = "config.toml has changed since the daemon started"
RESTART = (
    "run `gpq daemon stop`. The next command starts it with the new file, and jobs keep running"
)


def start(metrics: str = "") -> bool:
    """True if this call started it, False if one ran already. `metrics` is [ADDR:]PORT, where the
    daemon serves them.

    Raises the daemon's own error, and Refused if one runs that serves metrics elsewhere or not at
    all.
    """
    if not metrics:
        return ensure_daemon()
    url = outward.address(metrics).url
    begun = ensure_daemon("--metrics", metrics)
    current_url = url if begun else status().metrics
    if current_url != url:
        offer = f"metrics at {current_url}" if current_url else "no metrics"
        raise Refused(
            f"the daemon is already running and serves {offer}",
            "run `gpq daemon stop` and try again. Jobs keep running",
        )
    return begun


def status() -> DaemonInfo:
    """Raises DaemonUnreachable if none runs. Starts none."""
    with connect(start=False) as connection:
        return connection.call(Info(), DaemonInfo)


def stop(*, jobs: bool = False) -> bool:
    """End the daemon, whatever its version. Jobs run on, but with `jobs` all of them are cancelled
    first.

    False if none ran. Raises GpqError if it does not end.
    """
    owner = running()
    if owner is None:
        return False
    if jobs:
        with connect(start=False) as connection:
            connection.call(Cancel(["all"]), CancelResult)
    try:
        with connect(start=False) as connection:
            connection.call(Shutdown(), DaemonInfo)
    except DaemonUnreachable:  # another version, or it hangs, so a signal has to do
        _end(owner)
    until = time.monotonic() + STOP_SECONDS
    while running() == owner:
        if time.monotonic() > until:
            raise GpqError(
                f"the daemon (pid {owner[0]}) does not stop",
                f"run `kill -9 {owner[0]}`: nothing is lost, and jobs keep running",
            )
        time.sleep(0.02)
    return True


def _end(owner: tuple[int, int]) -> None:
    """Raises Refused for a process of another user."""
    with contextlib.suppress(ProcessLookupError):
        if start_time(owner[0]) != owner[1]:
            return
        try:
            os.kill(owner[0], signal.SIGTERM)
        except PermissionError:
            raise Refused(
                f"the daemon (pid {owner[0]}) belongs to another user, not to you",
                f"its owner stops it with `gpq daemon stop`: `ps -o user= {owner[0]}` names them",
            ) from None


def running() -> tuple[int, int] | None:
    """(pid, start time) of the daemon of this state directory, None if there is none. Raises
    Refused if this user may not know."""
    try:
        with open(paths.daemon_lock(), "rb") as stream:
            owner, uid = owner_of(stream.read(4096)), os.fstat(stream.fileno()).st_uid
        if owner is None or os.stat(f"/proc/{owner[0]}").st_uid != uid:  # never anybody else's
            return None
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return None
    except OSError as error:
        raise Refused(
            f"cannot read {paths.daemon_lock()}: {error.strerror}",
            "the daemon of another user is theirs to stop. GPQ_HOME chooses the folder of yours",
        ) from None
    return owner if start_time(owner[0]) == owner[1] else None


def logs(lines: int = 100) -> list[str]:
    """The last lines of the daemon's log. Raises NotFound if there is none."""
    try:
        with open(paths.daemon_log(), encoding="utf-8", errors="replace") as stream:
            return [line.rstrip("\n") for line in deque(stream, maxlen=lines)]
    except FileNotFoundError:
        raise NotFound(
            f"no log at {paths.daemon_log()}", "the daemon has not run here yet"
        ) from None
    except OSError as error:
        raise Refused(
            f"cannot read {paths.daemon_log()}: {error.strerror}",
            "GPQ_HOME chooses the folder of a daemon of yours",
        ) from None


def follow() -> Iterator[str]:
    """New lines of the log, without end. After a rotation it goes on with the new file."""
    stream = None
    try:
        while True:
            with contextlib.suppress(OSError):
                if stream is None:
                    path = paths.daemon_log()
                    stream = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115
                    stream.seek(0, os.SEEK_END)
                elif os.stat(paths.daemon_log()).st_ino != os.fstat(stream.fileno()).st_ino:
                    stream.close()
                    path = paths.daemon_log()
                    stream = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115
            line = stream.readline() if stream is not None else ""
            if line:
                yield line.rstrip("\n")
            else:
                time.sleep(0.2)
    finally:
        if stream is not None:
            stream.close()
