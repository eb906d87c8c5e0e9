"""Errands that may take long, or hang. Each has its own process and a time limit, and is answered
once it reports something.

`checks.py` lists them. If a process ends before it reports anything, that is an answer too.
"""

import contextlib
import os
import signal
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.doctor import checks, errand_process, gpu_report
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import shim
from gpq_agent.node.spool.spool import Spool

Message = Dict[str, Any]
LONGEST = 600.0  # seconds
MOST = 16  # at once
ERRANDS = dict(checks.ERRANDS, gpu=gpu_report.errand)


def _end_all(*_: Any) -> None:
    """Kill the errand and everything that it started, because it has its own process group."""
    os.killpg(0, signal.SIGKILL)


class _Errand(NamedTuple):
    message: Message
    pipe: int
    heard: List[bytes]
    limit: float


class Errands:
    """The errands of one agent. `base` and `limits`: those of a login."""

    def __init__(
        self, place: Spool, base: Dict[str, str], common: str, limits: Dict[str, List[int]]
    ) -> None:
        self.place = errand_process.Place(place.path, place.checkpoints, base, common, limits)
        self._under_way: List[_Errand] = []

    @property
    def is_waited_for(self) -> bool:
        return bool(self._under_way)

    def begin(self, message: Message) -> None:
        """The answer comes with a later `ended`. Raises SpoolError and OSError."""
        errand = ERRANDS.get(str(message.get("errand")))
        fields, limit = message.get("fields", {}), float(message.get("limit", 30.0))
        if errand is None or not isinstance(fields, dict) or not 0 < limit <= LONGEST:
            raise SpoolError(
                "unknown errand {!r}".format(message.get("errand")),
                "use one of {}".format(", ".join(ERRANDS)),
            )
        if len(self._under_way) >= MOST:
            raise SpoolError("{} errands are running".format(MOST), "wait until one ends", "busy")
        read_end, write_end = os.pipe()

        def run() -> None:
            signal.signal(signal.SIGALRM, _end_all)
            signal.setitimer(signal.ITIMER_REAL, limit)
            try:
                errand(self.place, fields, write_end)
            except Exception as error:
                errand_process.tell(
                    write_end, {"error": "{}: {}".format(type(error).__name__, error)}
                )

        try:
            shim.detach(self.place.spool, {write_end}, run)
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        self._under_way.append(_Errand(message, read_end, [], limit))

    def ended(self) -> List[Tuple[Message, Message]]:
        """(message, answer) of the errands that have reported since the last call."""
        over: List[Tuple[Message, Message]] = []
        for errand in list(self._under_way):
            answer = self._look(errand)
            if answer is not None:
                self._under_way.remove(errand)
                os.close(errand.pipe)
                over.append((errand.message, {"answer": answer}))
        return over

    @staticmethod
    def _look(errand: _Errand) -> Optional[Message]:
        with contextlib.suppress(BlockingIOError):
            while True:
                chunk = os.read(errand.pipe, 1 << 16)
                if not chunk:
                    break
                errand.heard.append(chunk)
            with contextlib.suppress(ValueError):
                return wire.decode(b"".join(errand.heard))
            return {"error": "no answer within {:g} s".format(errand.limit)}
        return None
