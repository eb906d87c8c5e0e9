"""The end of an attempt: on request, or because training is over."""

from typing import NoReturn

from gpq_agent import wire
from gpq_agent.train.runtime.shutdown import leave, part_company, raise_if_stopping
from gpq_agent.train.runtime.termination import EXIT_CODES, SigtermHandler

from .runtime import Runtime


class Ending:
    """The end of a job. One per job."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._terminator = SigtermHandler()

    @property
    def is_requested(self) -> bool:
        """By SIGTERM."""
        return self._terminator.requested

    def arm(self) -> None:
        """From now on SIGTERM asks for a checkpoint."""
        self._terminator.arm()

    def disarm(self) -> None:
        """From now on SIGTERM ends the process, as usual."""
        self._terminator.disarm()

    def leave(self, kind: int) -> NoReturn:
        """Everything is saved. Say so on every server, and exit."""
        raise_if_stopping()
        self._runtime.mark(wire.STOPPED)
        self._runtime.pulse.phase("ended")
        self.disarm()  # a replica that must hurry now has nothing left to save
        leave(EXIT_CODES[kind], self._runtime.say)

    def done(self) -> None:
        """Training is over. Say so on every server, so that exit code 0 ends the job."""
        part_company()
        self.disarm()
        self._runtime.pulse.phase("ended")
        self._runtime.finished = True
        self._runtime.mark(wire.FINISHED)
