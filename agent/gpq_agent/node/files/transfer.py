"""A process that sends or receives files, and nothing else. The daemon starts one on each of two
servers and joins their pipes."""

import contextlib
import os
from typing import BinaryIO, Callable, NamedTuple

from gpq_agent.node.files.receiving import Receiver
from gpq_agent.node.files.sending import Pace, send, write_line
from gpq_agent.node.host import procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim.leases import DaemonEpoch
from gpq_agent.node.spool.checkpoint_folder import HASH
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.spool.trees import Immovable

BUFFER = 1 << 20  # bytes


class Pipes(NamedTuple):
    """From the daemon, and to it."""

    source: BinaryIO
    sink: BinaryIO


def standard_pipes() -> Pipes:
    """stdin and stdout. A stray print goes to stderr, not into the stream."""
    sink = os.fdopen(os.dup(1), "wb", BUFFER)
    os.dup2(2, 1)
    return Pipes(os.fdopen(0, "rb", BUFFER), sink)


def run_sender(pipes: Pipes, place: Spool, job: int, limit: float) -> int:
    """Send the files of a job. `limit` is in bytes per second, 0 for none. Returns the exit
    code."""
    folder = os.path.join(place.checkpoints, str(job))
    return _run(pipes.sink, lambda: send(folder, pipes.source, pipes.sink, Pace(limit)))


def run_receiver(
    pipes: Pipes, place: Spool, what: str, limit: float, store: str, epoch: int
) -> int:
    """Take the files of a job, or the code with this SHA-256. `store` and `epoch` name the daemon.
    Returns the exit code."""
    reign = DaemonEpoch(place, procs.boot_id())
    receiver = Receiver(place, *pipes, Pace(limit), reign.admit)

    def receive() -> None:
        reign.greet(store, epoch)
        if HASH.fullmatch(what):
            receiver.take_code(what)
        else:
            receiver.take_job(int(what))

    return _run(pipes.sink, receive)


def _run(sink: BinaryIO, work: Callable[[], None]) -> int:
    """If the work fails, its last line says why. If the other end is gone, end without a word."""
    error, hint = "", ""
    try:
        work()
    except (EOFError, BrokenPipeError):
        return 1
    except SpoolError as problem:
        error, hint = problem.message, problem.hint
    except Immovable as problem:
        error = str(problem)
    except OSError as problem:
        error = "cannot copy files: {}".format(problem)
        hint = "check the folder, and that the disk is not full"
    except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
        error = "the other end of the transfer said something invalid: {!r}".format(problem)
    with contextlib.suppress(BrokenPipeError):
        if error:
            write_line(sink, {"error": error, "hint": hint})
        sink.flush()
    return 1 if error else 0
