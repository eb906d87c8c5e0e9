"""Why a launch failed, from what it left behind: its own note, otherwise the last lines of its log.

It reads only what the first process noted, and what torchrun and collectives print about
themselves. If they print nothing, it finds nothing.
"""

import os
import re
import signal
from typing import Any, Dict, List, NamedTuple, Tuple

from gpq_agent import wire
from gpq_agent.node.host import logs
from gpq_agent.node.spool.shapes import statement

LOOK_BACK = 1 << 16  # bytes of the log
# torchrun's summary of what failed before it ended the other processes.
TITLE = re.compile(r"^.+ FAILED$", re.MULTILINE)
ROOT = "Root Cause"
FAILURE = re.compile(r"\n *rank *: *(\d+).{0,300}?\n *exitcode *: *(-?\d+)", re.DOTALL)
PEER_GONE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|ncclRemoteError|remote process"
    r" exited"
    r"|Socket Timeout|Connection timed out|Timed out waiting \d+ms",
)


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
    log = _tail(os.path.join(folder, wire.LOG))
    # The server releases a port after its check, so that the launcher can take it. Another process
    # may be faster.
    if re.search(r"port: {}\b.*EADDRINUSE".format(order.port), log):
        return Verdict(unlaunched="port", note="port {} was taken".format(order.port))
    return _of_replicas(folder, order, log)


def _of_replicas(folder: str, order: wire.StartOrder, log: str) -> Verdict:
    """The verdict from what the first process noted about replicas, or torchrun's summary in the
    log, and from the notes of replicas."""
    failures = _noted_endings(folder) or _failures(log)
    for rank, code in failures:
        if code < 0 and code not in (-signal.SIGABRT, -signal.SIGTERM):
            return Verdict(cause=_cause(rank, code))
    error = statement(folder, wire.FIRST_ERROR)
    departure = statement(folder, wire.DEPARTED)
    if departure is not None and (error is None or PEER_GONE.search(str(error.get("error")))):
        return Verdict(cause=_departure(int(departure.get("rank", 0)), failures))
    victim = order.node_count > 1 and PEER_GONE.search(log) is not None
    if error is not None:
        return Verdict(cause=_error(order, error), victim=victim)
    return Verdict(cause=_cause(*failures[0]) if failures else "", victim=victim)


def _departure(rank: int, failures: List[Tuple[int, int]]) -> str:
    ends = [_cause(failed_rank, code) for failed_rank, code in failures if failed_rank == rank]
    return "".join(ends) or "rank {} ended before its training was over".format(rank)


def _error(order: wire.StartOrder, error: Dict[str, Any]) -> str:
    if order.node_count > 1 or len(order.devices) > 1:
        return "rank {}: {}".format(error.get("rank"), error.get("error"))
    return "{}".format(error.get("error"))


def _noted_endings(folder: str) -> List[Tuple[int, int]]:
    note = statement(folder, wire.FAILURES) or {"failures": []}
    return [(failure[0], failure[1]) for failure in note["failures"] if len(failure) == 2]


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


def _tail(path: str) -> str:
    try:
        data, _, _ = logs.tail(path, -LOOK_BACK, LOOK_BACK)
    except OSError:
        return ""
    return data.decode("utf-8", "replace")
