"""A process that sends or receives files, and nothing else. The daemon starts one on each of two
servers and joins their pipes."""

import argparse
import contextlib
import os
import sys
from typing import BinaryIO, Callable, NamedTuple, NoReturn

from gpq_agent import wire
from gpq_agent.node.files.receiving import Receiver
from gpq_agent.node.files.sending import Pace, send, write_line
from gpq_agent.node.host import procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim.leases import DaemonEpoch
from gpq_agent.node.spool.checkpoint_folder import HASH
from gpq_agent.node.spool.spool import Spool, own_path
from gpq_agent.node.spool.trees import Immovable

BUFFER = 1 << 20  # bytes


class Pipes(NamedTuple):
    """From the daemon, and to it."""

    source: BinaryIO
    sink: BinaryIO


def main() -> NoReturn:
    """With the arguments of the agent (node/main.py), and what to do. Does not return."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--spool", "--checkpoints", "--store", "--receive"):
        parser.add_argument(name, default="")
    for name in ("--epoch", "--send"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--transfer-limit", type=float, default=0.0)
    options, _ = parser.parse_known_args()
    os.umask(0o077)
    sink = os.fdopen(os.dup(1), "wb", BUFFER)
    os.dup2(2, 1)  # a stray print must not get into the stream
    pipes, limit = Pipes(os.fdopen(0, "rb", BUFFER), sink), options.transfer_limit * 1e6
    try:
        place = Spool(own_path(options.spool), own_path(options.checkpoints))
    except (SpoolError, wire.NotPrivate, OSError) as error:
        sys.exit("{}".format(error))
    if options.send:
        code = run_sender(pipes, place, options.send, limit)
    else:
        code = run_receiver(pipes, place, options.receive, limit, options.store, options.epoch)
    os._exit(code)  # what is left to write has no reader


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
