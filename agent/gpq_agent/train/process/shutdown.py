"""Why and how a training process ends.

Why: SIGTERM, an order, or an error such as too little memory. How: open files, `finally` blocks,
exit handlers, the end. The way out starts once everything is durable, so no fault here loses
training. It never waits for the interpreter to be torn down, which takes seconds with torch in it.
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
import weakref
from types import FrameType, TracebackType
from typing import Any, Callable, List, NoReturn, Optional, Tuple, Type

from gpq_agent import wire

STOP_ORDERED = 1
STOP_SIGNAL = 2
EXIT_CODES = {STOP_ORDERED: 0, STOP_SIGNAL: 143}
MOST_OF_AN_ERROR = 300  # characters
OUT_OF_MEMORY = (
    "out of memory", "can't allocate memory", "cannot allocate memory",
    "cublas_status_alloc_failed", "cudnn_status_alloc_failed",
)  # fmt: skip
_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
TEARDOWN_SECONDS = 30
_company: List[int] = []  # at most one: the process, if it trains together with others
departure: List[Tuple[int, int]] = []  # at most one: the process that leaves, and its exit code


class SigtermHandler:
    """Turns the first SIGTERM into a request to checkpoint and leave. A second one ends the process
    as usual."""

    def __init__(self) -> None:
        self.requested = False
        self._pid = os.getpid()
        self.is_armed = False
        self._previous: Any = None

    def arm(self) -> None:
        """From now on, at each boundary. Before training starts there is nothing to save, and
        SIGTERM should simply end the process."""
        if self.is_armed or self.requested:
            return
        if threading.current_thread() is threading.main_thread():
            self.is_armed = True
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)

    def disarm(self) -> None:
        """Nothing is left to save."""
        if self.is_armed:
            self.is_armed = False
            handler = self._previous if self._previous is not None else signal.SIG_DFL
            signal.signal(signal.SIGTERM, handler)

    def _on_signal(self, number: int, frame: Optional[FrameType]) -> None:
        self.disarm()
        # A process that the script forks inherits the handler, but not the job.
        if os.getpid() != self._pid:
            os.kill(os.getpid(), number)
        self.requested = True


def is_out_of_memory(error: BaseException) -> bool:
    """Is this a failed allocation, on a device or on the host?"""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in OUT_OF_MEMORY)


def note_error(folder: str, rank: int, error: BaseException, gpu: str = "") -> None:
    """Save the first line of the first error of an attempt for the agent. Replicas that lose that
    one fail later. `gpu`: the GPU that could not be used."""
    text = str(error).strip().partition("\n")[0][:MOST_OF_AN_ERROR]
    words = "{}: {}".format(type(error).__name__, text) if text else type(error).__name__
    content = {"rank": rank, "error": words, "gpu": gpu}
    with contextlib.suppress(OSError), open(os.path.join(folder, wire.FIRST_ERROR), "xb") as stream:
        stream.write(wire.encode(content))


def on_error(act: Callable[[BaseException], None]) -> None:
    """Call the method `act` with the error that ends the script. Python prints its traceback
    afterwards, as usual. The method's object is held weakly, because the hook outlives it."""
    previous, reference = sys.excepthook, weakref.WeakMethod(act)

    def hook(
        kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]
    ) -> None:
        method = reference()
        if method is not None:
            method(error)
        previous(kind, error, trace)

    sys.excepthook = hook


class StopTraining(SystemExit):
    """Raised in the script between two steps if the job must stop. The checkpoint is already
    durable. `finally` blocks and context managers run on the way. If the script swallows the
    exception, the next step raises it again."""


def leave(code: int, say: Callable[[str], None]) -> NoReturn:
    """Leave the script with StopTraining, and then the process with `code`. `say` gets the error of
    the script's own clean-up. A thread other than the main one ends the process at once, because
    nothing raised there would reach the script's blocks."""
    if not is_leaving():
        departure[:] = [(os.getpid(), code)]
        previous = sys.excepthook

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

        sys.excepthook = hook
    flush_files()
    if threading.current_thread() is not threading.main_thread():
        _end_process()
    raise StopTraining(code)


def is_leaving() -> bool:
    """Is this process leaving? Not true for a process that the script forks in the meantime."""
    return bool(departure) and departure[0][0] == os.getpid()


def raise_if_stopping() -> None:
    """Raise StopTraining again in a script that swallowed it. The other replicas are gone."""
    if departure and is_leaving():
        raise StopTraining(departure[0][1])


def flush_files() -> None:
    """Flush all open file objects of the process. Skips pipes and sockets, whose reader may not
    read, except stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        # Nothing may be left to read it.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    gc.unfreeze()  # frozen objects are not listed
    kinds = {kind for writer in _WRITERS for kind in _with_subclasses(writer)}
    # By type(), because isinstance() is slow and would ask lazy objects of the script what they
    # are.
    streams: List[Any] = [item for item in gc.get_objects() if type(item) in kinds]
    # Text goes through a buffer.
    for stream in sorted(streams, key=lambda item: not isinstance(item, io.TextIOWrapper)):
        try:
            is_open = not stream.closed and stream.writable()
            if not is_open or not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                continue
        except (AttributeError, OSError, ValueError):  # detached, or without a file
            continue
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            words = "gpq: cannot flush {}: {}\n"
            message = words.format(getattr(stream, "name", "a file"), error)
            with contextlib.suppress(AttributeError, OSError, ValueError):
                sys.stderr.write(message)


def _with_subclasses(kind: Type[Any]) -> List[Type[Any]]:
    kinds = [kind]
    for subclass in kind.__subclasses__():
        kinds += _with_subclasses(subclass)
    return kinds


def _end_process() -> NoReturn:
    """Flush what was written while leaving, end the children, and exit. Skips the tear-down of the
    interpreter."""
    with contextlib.suppress(Exception):
        logging.shutdown()
    end_at_once(departure[0][1])


def end_at_once(code: int) -> NoReturn:
    """End this process without running anything of the script. Flushes its files and ends its
    children first."""
    # Only the main thread may do this, and only there can a handler interfere.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.terminate()
    flush_files()
    os._exit(code)


def be_one_of_many() -> None:
    """This process is one replica of several: see `_at_exit`."""
    _company[:] = [os.getpid()]


def part_company() -> None:
    """Training is over, and nothing is running between replicas any more."""
    _company.clear()


def note_departure(folder: str, rank: int) -> None:
    """At exit, while others can still reach this replica: record that it leaves early. That is
    before training is over, and without an error. Replicas that wait for it will report a lost
    connection, which explains nothing."""
    if _company == [os.getpid()] and not is_leaving() and not hasattr(sys, "last_type"):
        path = os.path.join(folder, wire.DEPARTED)
        with contextlib.suppress(OSError), open(path, "xb") as stream:
            stream.write(wire.encode({"rank": rank}))


@atexit.register  # At import, before a script registers its own: handlers run in reverse order.
def _at_exit() -> None:
    """The last handler. During a collective, tearing down the interpreter waits for the other
    replicas, which wait for this one. That would hold the GPUs for half an hour. So a replica that
    fails ends at once, and one that leaves in another way is ended if that takes too long."""
    if is_leaving():
        _end_process()
    if _company != [os.getpid()]:
        return
    if issubclass(getattr(sys, "last_type", SystemExit), Exception):
        end_at_once(1)
    flush_files()
    # A job that is released now would wait for the others, which then end first and get the blame.
    gc.freeze()
    with contextlib.suppress(ValueError):  # only the main thread may do this
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(TEARDOWN_SECONDS)
