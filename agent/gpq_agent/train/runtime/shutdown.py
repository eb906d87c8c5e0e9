"""The way out of a training process that was asked to stop.

Open files, `finally` blocks, exit handlers, the end. It begins once everything is durable, so
whatever goes wrong on it loses no training. Nothing waits for an interpreter with torch in it to be
torn down, which takes seconds.
"""

import atexit
import contextlib
import gc
import io
import logging
import multiprocessing
import os
import signal
import stat
import sys
import threading
from types import TracebackType
from typing import Any, Callable, List, NoReturn, Optional, Tuple, Type

from gpq_agent import wire

_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
TEARDOWN_SECONDS = 30
_company: List[int] = []  # at most one: the process that trains together with others
_departure: List[Tuple[int, int]] = []  # at most one: the process that leaves, and its exit code


class StopTraining(SystemExit):
    """Raised between two steps in the script of a job that was asked to stop.

    Its checkpoint is durable by then. `finally` blocks and context managers run on the way. A
    script that swallows it meets it again at the next step.
    """


def leave(code: int, say: Callable[[str], None]) -> NoReturn:
    """Out of the script by StopTraining, and then of the process with `code`.

    `say` is told what the script's own clean-up fails with. A thread other than the main one ends
    the process at once: nothing raised there would reach the script's blocks.
    """
    if not is_leaving():
        _departure[:] = [(os.getpid(), code)]
        sys.excepthook = _hook(sys.excepthook, say)
    flush_files()
    if threading.current_thread() is not threading.main_thread():
        _end_process()
    raise StopTraining(code)


def is_leaving() -> bool:
    """Is this process on its way out? Not a process that the script forks meanwhile."""
    return bool(_departure) and _departure[0][0] == os.getpid()


def raise_if_stopping() -> None:
    """Raise StopTraining once more in a script that has swallowed it.

    The other replicas are gone.
    """
    if is_leaving():
        raise StopTraining(_departure[0][1])


def flush_files() -> None:
    """Write out what all open file objects of the process hold back.

    Those on pipes and sockets, whose reader may take nothing, are left alone, except stdout and
    stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        # Nobody may be left to read it.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    gc.unfreeze()  # what is frozen is not listed
    kinds = {kind for writer in _WRITERS for kind in _with_subclasses(writer)}
    # By type(), not isinstance(): that is slow, and would ask lazy objects of the script what they
    # are.
    streams = [item for item in gc.get_objects() if type(item) in kinds]
    # Text goes by way of a buffer.
    for stream in sorted(streams, key=lambda item: not isinstance(item, io.TextIOWrapper)):
        _flush(stream)


def _with_subclasses(kind: Type[Any]) -> List[Type[Any]]:
    subclasses: List[Type[Any]] = kind.__subclasses__()
    return [
        kind,
        *(descendant for subclass in subclasses for descendant in _with_subclasses(subclass)),
    ]


def _flush(stream: Any) -> None:
    try:
        if stream.closed or not stream.writable():
            return
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return
    except (AttributeError, OSError, ValueError):  # detached, or of no file
        return
    try:
        stream.flush()
    except (OSError, ValueError) as error:
        words = "gpq: cannot flush {}: {}\n"
        message = words.format(getattr(stream, "name", "a file"), error)
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(message)


def _hook(previous: Callable[..., Any], say: Callable[[str], None]) -> Callable[..., Any]:
    def hook(
        kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]
    ) -> None:
        previous(kind, error, trace)
        if is_leaving():
            text = " ".join(str(error).split())[:200]
            description = "{}: {}".format(kind.__name__, text) if text else kind.__name__
            say(
                "the script's own clean-up failed while it stopped ({}), but its checkpoint is "
                "complete".format(description)
            )

    return hook


def _end_process() -> NoReturn:
    """Flush what was written on the way out, end the children, and go.

    Tearing the interpreter down is left out.
    """
    with contextlib.suppress(Exception):
        logging.shutdown()
    end_at_once(_departure[0][1])


def end_at_once(code: int) -> NoReturn:
    """End this process without running anything of the script's.

    What it holds back is written, and its children end first.
    """
    # Only the main thread may, and only there can a handler get in our way.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.terminate()
    flush_files()
    os._exit(code)


def be_one_of_many() -> None:
    """This process is a replica among others: see `_at_exit`."""
    _company[:] = [os.getpid()]


def part_company() -> None:
    """Training is over: nothing is under way between replicas any more."""
    _company.clear()


def note_departure(folder: str, rank: int) -> None:
    """At exit, while others can still reach this replica: note that it leaves early.

    That is before training is over, and not by an error. Whoever waits for it will complain of a
    lost connection, and that explains nothing.
    """
    if _company == [os.getpid()] and not is_leaving() and not hasattr(sys, "last_type"):
        path = os.path.join(folder, wire.DEPARTED)
        with contextlib.suppress(OSError), open(path, "xb") as stream:
            stream.write(wire.encode({"rank": rank}))


@atexit.register  # At the import, before a script registers its own: handlers run in reverse order.
def _at_exit() -> None:
    """The last handler.

    While a collective is under way, tearing the interpreter down waits for the other replicas,
    which wait for this one: for half an hour, and GPUs are held. So a replica that fails ends at
    once, and one that leaves in any other way is ended when that takes too long.
    """
    if is_leaving():
        _end_process()
    if _company != [os.getpid()]:
        return
    if issubclass(getattr(sys, "last_type", SystemExit), Exception):
        end_at_once(1)
    flush_files()
    # A job that is let go now would wait for the others, who then end first and are blamed.
    gc.freeze()
    with contextlib.suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(TEARDOWN_SECONDS)
