"""Why a training process ends: SIGTERM, a request, or out of memory. Saves nothing itself."""

import contextlib
import os
import signal
import sys
import threading
import weakref
from types import FrameType, TracebackType
from typing import Any, Callable, Optional, Type

from gpq_agent import wire

STOP_ORDERED = 1
STOP_SIGNAL = 2
EXIT_CODES = {STOP_ORDERED: 0, STOP_SIGNAL: 143}
MOST_OF_AN_ERROR = 300  # characters
OUT_OF_MEMORY = (
    "out of memory", "can't allocate memory", "cannot allocate memory",
    "cublas_status_alloc_failed", "cudnn_status_alloc_failed",
)  # fmt: skip


class SigtermHandler:
    """Turns the first SIGTERM into a request to checkpoint and leave.

    A second one ends the process as usual.
    """

    def __init__(self) -> None:
        self.requested = False
        self._pid = os.getpid()
        self.is_armed = False
        self._previous: Any = None

    def arm(self) -> None:
        """From now on, at each boundary.

        Before training starts there is nothing to save, and SIGTERM should simply end the process.
        """
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
    """Save the first line of the first error of an attempt for the agent.

    Replicas that lose that one fail later. `gpu`: the GPU that could not be used.
    """
    text = str(error).strip().partition("\n")[0][:MOST_OF_AN_ERROR]
    words = "{}: {}".format(type(error).__name__, text) if text else type(error).__name__
    content = {"rank": rank, "error": words, "gpu": gpu}
    with contextlib.suppress(OSError), open(os.path.join(folder, wire.FIRST_ERROR), "xb") as stream:
        stream.write(wire.encode(content))


def on_error(act: Callable[[BaseException], None]) -> None:
    """Call the method `act` with the error that ends the script.

    Python prints its traceback afterwards, as usual. The method's object is held weakly, because
    the hook outlives it.
    """
    previous, reference = sys.excepthook, weakref.WeakMethod(act)

    def hook(
        kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]
    ) -> None:
        method = reference()
        if method is not None:
            method(error)
        previous(kind, error, trace)

    sys.excepthook = hook
