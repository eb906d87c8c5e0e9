"""Start the daemon if none runs. One of many racing commands starts it, and the daemon's error
reaches the terminal. With it start the arbiters of the teams for which this user decides."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from gpq import paths
from gpq.client.quick import refuse_stranger
from gpq.connectors import environment
from gpq.errors import BY_CODE, DaemonUnreachable, GpqError, Refused
from gpq.folders import make_private, not_through_links

START_SECONDS = 60.0
# that the daemon of another starter, such as systemd, has to serve or to end
OTHER_SECONDS = 10.0
QUIET_SECONDS = 2.0  # a start that takes longer is announced on a terminal


def ensure_daemon(*options: str, quiet: bool = False) -> bool:
    """Return once a daemon serves: True if this call started it, with `options`. `quiet` writes
    nothing, because the terminal shows a picture. Raises the daemon's own error, such as
    Refused."""
    home = paths.home()
    make_private(home)
    was_refused = False
    while True:
        with _alone(home):
            if serves():
                return False
            for team in own_teams():
                _start_again(team, quiet)
            try:
                _start("daemon", options, paths.daemon_log(), quiet)
                return True
            except Refused:
                if was_refused:
                    raise
                was_refused = True
        _await_other()


@contextlib.contextmanager
def _alone(home: str) -> Iterator[None]:
    """One starter at a time. The daemon's own lock will not do, because the daemon holds it as long
    as it lives. Raises Refused."""
    try:
        descriptor = os.open(
            os.path.join(home, "start.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        raise Refused(
            f"cannot write in the state directory {home}: {error.strerror}",
            "make it writable, or set GPQ_HOME to another directory",
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _await_other() -> None:
    """Wait until a daemon that somebody else started serves or has ended, at most OTHER_SECONDS."""
    from gpq.client.daemon_control import running  # which starts daemons by this module

    until = time.monotonic() + OTHER_SECONDS
    while running() is not None and not serves() and time.monotonic() < until:
        time.sleep(0.02)


def start_arbiter(team: str, *options: str, quiet: bool = False) -> bool:
    """Return once the arbiter of a team of this user serves: True if this call started it, with
    `options`. Raises the arbiter's own error."""
    if arbiter_runs(team):
        return False
    folder = paths.team(team)
    make_private(folder)
    _start("arbiter", (*options, "--", team), os.path.join(folder, "arbiter.log"), quiet)
    return True


def arbiter_runs(team: str) -> bool:
    """Does the arbiter of this team of this user hold its lock?"""
    try:
        with open(os.path.join(paths.team(team), "lock"), "rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it never ran
        pass
    return False


def own_teams() -> list[str]:
    """The teams for which this user decides."""
    rosters = glob.glob(os.path.join(glob.escape(paths.team("")), "*", "roster.json"))
    return sorted(os.path.basename(os.path.dirname(roster)) for roster in rosters)


def _start_again(team: str, quiet: bool) -> None:
    """The daemon does without it, so a failure is a remark."""
    try:
        start_arbiter(team, quiet=quiet)
    except GpqError as error:
        if not quiet:
            _remark(f"the arbiter of team {team} does not start: {error.message}")


def serves() -> bool:
    """Does a daemon listen on the socket? Raises Refused if it is another user's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5.0)
        try:
            probe.connect(paths.socket())
        except OSError:
            return False
        refuse_stranger(probe)
        return True


def _start(what: str, options: Sequence[str], log: str, quiet: bool) -> None:
    """Run the daemon or an arbiter in its own session. It reports on a pipe that it serves, or why
    it cannot."""
    if os.environ.get("GPQ_MARK"):
        # It would belong to the job's process tree and end with it.
        raise Refused(
            f"the {what} is not running, and a job cannot start it",
            "run `gpq daemon start` in your shell",
        )
    read_end, write_end = os.pipe()
    try:
        with open(log, "ab", opener=not_through_links) as output:
            child = subprocess.Popen(
                [
                    *environment.interpreter(),
                    "-m",
                    f"gpq.{what}.main",
                    "--detached",
                    "--ready-fd",
                    str(write_end),
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=environment.of_daemon(),
                start_new_session=True,
                pass_fds=(write_end,),
            )
    except OSError as error:
        os.close(read_end)
        raise DaemonUnreachable(f"cannot start the {what}: {error}", "see `gpq doctor`") from None
    finally:
        os.close(write_end)
    remark = threading.Timer(QUIET_SECONDS, _announce, [what])
    remark.daemon = True
    if not quiet:
        remark.start()
    try:
        child.wait()  # it forks and exits. What serves is its child, not ours
        hint = "see `gpq daemon logs`" if what == "daemon" else f"see {log}"
        _expect_ready(read_end, START_SECONDS, what, hint)
    finally:
        remark.cancel()
        os.close(read_end)


def _announce(what: str) -> None:
    """Say on a terminal what takes so long."""
    if sys.stderr is not None and sys.stderr.isatty():
        _remark(f"starting the {what}, which takes a moment")


def _remark(line: str) -> None:
    with contextlib.suppress(OSError, AttributeError):  # closed, or none
        sys.stderr.write(f"note: {line}\n")
        sys.stderr.flush()


def _expect_ready(descriptor: int, seconds: float, what: str, logs: str) -> None:
    """Read what the process reports. Raises its error, unless it serves."""
    until, answer = time.monotonic() + seconds, b""
    while True:
        readable, _, _ = select.select([descriptor], [], [], max(until - time.monotonic(), 0.0))
        if not readable:
            raise DaemonUnreachable(f"the {what} is not ready after {seconds:.0f} s", logs)
        piece = os.read(descriptor, 65536)
        if not piece:
            break
        answer += piece
    try:
        verdict = json.loads(answer)
    except ValueError:
        raise DaemonUnreachable(f"the {what} ended during its start", logs) from None
    if not verdict.get("ok"):
        raise BY_CODE.get(verdict.get("code", 1), GpqError)(
            verdict.get("error", ""), verdict.get("hint", "")
        )
