"""The end of an attempt: the end of the job's first process, what failed first, and the record.

What failed first follows from what the first process noted, and from what torchrun and collectives
print about themselves. If they print nothing, nothing is known.
"""

import contextlib
import errno
import os
import re
import signal
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from gpq_agent import records, wire
from gpq_agent.node.host import logs, procs
from gpq_agent.node.spool import shapes, spool
from gpq_agent.node.spool.shapes import NOTE, statement

LOOK_BACK = 1 << 16  # bytes of the log
# torchrun's summary of what failed before it ended the other processes.
TITLE = re.compile(r"^.+ FAILED$", re.MULTILINE)
ROOT = "Root Cause"
FAILURE = re.compile(r"\n *rank *: *(\d+).{0,300}?\n *exitcode *: *(-?\d+)", re.DOTALL)
PEER_GONE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|ncclRemoteError|remote process"
    r" exited"
    r"|Socket Timeout|Connection timed out|Timed out waiting \d+ms"
)


class JobProcess:
    """The first process of a job. `identity`: its record. `parent`: it is our child, so we can
    collect its exit status."""

    def __init__(self, identity: Dict[str, Any], parent: bool, boot: str) -> None:
        self.identity = identity
        self.pid = int(identity["pid"])
        self.parent = parent
        self.boot = boot
        self.childless = not parent
        self.ended_at: Optional[float] = None
        self.code: Optional[int] = None  # its exit code, None if a signal ended it or it is unknown
        self.killer: Optional[int] = None  # the signal that ended it

    def collect(self) -> None:
        """Collect every child that has ended, including escapees that the kernel handed to us."""
        if not self.parent:
            if self.ended_at is None and not procs.lives(self.identity, self.boot):
                self.ended_at = time.time()
            return
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.pid and self.ended_at is None:
                    self.ended_at = time.time()
                    if os.WIFEXITED(status):
                        self.code = os.WEXITSTATUS(status)
                    else:
                        self.killer = os.WTERMSIG(status)
        except ChildProcessError:
            self.childless = True


class Notes:
    """What a user should know about an attempt, one line each. `folder`: the attempt's."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lines: List[str] = []

    def add(self, line: str) -> None:
        """Add a line to the record of its end."""
        if line not in self.lines:
            self.lines.append(line)

    def tell(self, line: str) -> None:
        """Add a line to the record, and show it while the attempt lives. The attempt continues even
        if that fails."""
        self.add(line)
        with contextlib.suppress(OSError):
            wire.write_json(os.path.join(self.folder, NOTE), {"note": line})


def write_exit(folder: str, record: wire.ExitRecord) -> None:
    """Write the record durably, even on a full disk. Tries as long as it takes, because a lost exit
    code cannot be recovered."""
    path = os.path.join(folder, wire.EXIT)
    while True:
        try:
            shapes.mend_folder(folder)
            if os.path.isdir(path):  # no file can replace it
                records.set_aside(path)
            spool.write_reserved(path, record._asdict())
            return
        except OSError as error:
            if error.errno == errno.EROFS or _is_gone(folder):  # removed, so nobody asks
                return
            time.sleep(1.0)


def _is_gone(folder: str) -> bool:
    """Is the folder gone? No if the disk only fails to answer."""
    try:
        os.stat(folder)
    except OSError as error:
        return isinstance(error, (FileNotFoundError, NotADirectoryError))
    return False


class Verdict(NamedTuple):
    unlaunched: str = ""  # this and `excused`: see wire.ExitRecord
    note: str = ""
    cause: str = ""
    victim: bool = False
    excused: str = ""


def verdict(folder: str, order: wire.StartOrder, code: int) -> Verdict:
    """The verdict on an attempt whose first process ended with `code`, which is not 0."""
    unlaunched = statement(folder, wire.UNLAUNCHED)
    if unlaunched is not None:
        return Verdict(unlaunched=str(unlaunched.get("kind")), note=str(unlaunched.get("note")))
    reason = statement(folder, wire.EXCUSED)
    if reason is not None:
        return Verdict(excused=str(reason.get("note")))
    if not order.port:
        return Verdict()
    log = ""
    with contextlib.suppress(OSError):
        data, _, _ = logs.tail(os.path.join(folder, wire.LOG), -LOOK_BACK, LOOK_BACK)
        log = data.decode("utf-8", "replace")
    # The server releases a port after its check, so that the launcher can take it. Another process
    # may be faster.
    if re.search(r"port: {}\b.*EADDRINUSE".format(order.port), log):
        return Verdict(unlaunched="port", note="port {} was taken".format(order.port))
    return _of_replicas(folder, order, log)


def _of_replicas(folder: str, order: wire.StartOrder, log: str) -> Verdict:
    """The verdict from what the first process noted about replicas, or torchrun's summary in the
    log, and from the notes of replicas."""
    note = statement(folder, wire.FAILURES) or {"failures": []}
    endings = [(failure[0], failure[1]) for failure in note["failures"] if len(failure) == 2]
    failures = endings or _failures(log)
    for rank, code in failures:
        if code < 0 and code not in (-signal.SIGABRT, -signal.SIGTERM):
            return Verdict(cause=_cause(rank, code))
    error = statement(folder, wire.FIRST_ERROR)
    departure = statement(folder, wire.DEPARTED)
    if departure is not None and (error is None or PEER_GONE.search(str(error.get("error")))):
        rank = int(departure.get("rank", 0))
        causes = [_cause(*failure) for failure in failures if failure[0] == rank]
        words = "rank {} ended before its training was over".format(rank)
        return Verdict(cause="".join(causes) or words)
    victim = order.node_count > 1 and PEER_GONE.search(log) is not None
    if error is not None:
        words = str(error.get("error"))
        if order.node_count > 1 or len(order.devices) > 1:
            words = "rank {}: {}".format(error.get("rank"), words)
        return Verdict(cause=words, victim=victim)
    return Verdict(cause=_cause(*failures[0]) if failures else "", victim=victim)


def _failures(log: str) -> List[Tuple[int, int]]:
    """(rank, exit code) from the last summary, with the failure that the launcher saw first at the
    front."""
    head, title, root = log.rpartition(ROOT)
    if not title:
        return []
    summary = TITLE.split(head)[-1]
    return [
        (int(rank), int(code))
        for rank, code in FAILURE.findall(root)[:1] + FAILURE.findall(summary)
    ]


def _cause(rank: int, code: int) -> str:
    if code >= 0:
        return "rank {} ended with exit code {}".format(rank, code)
    if -code == signal.SIGTERM:  # gpq and launchers end processes like this
        return ""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "signal {}".format(-code)
    return "rank {} was killed by {}".format(rank, name)
