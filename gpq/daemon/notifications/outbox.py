"""What is still to be told to people, and what never was, in a file beside the database.

notifications.json  {"store": id of the database, "seq": the journal was read up to it, "waiting":
                    [...], "lost": [...]}
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gpq_agent import wire

from gpq import decoding
from gpq.core.feasibility.leases import span
from gpq.core.model.units import Seconds


@dataclass(frozen=True, slots=True)
class Message:
    """One fact for one target."""

    seq: int  # of the fact in the journal
    at: Seconds
    job: int
    target: str
    word: str  # of `--notify-on`
    said: str  # the fact in a line
    tries: int = 0
    due: Seconds = 0.0
    why: str = ""  # the last try failed

    @property
    def about(self) -> str:
        return f"the notification of its {self.word}"


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered."""

    store: str = ""
    seq: int = 0
    waiting: tuple[Message, ...] = ()
    lost: tuple[Message, ...] = ()

    def notes(self, job: int, now: Seconds) -> list[str]:
        """What could not be sent about a job, or not yet, a line each."""
        lost_notes = [
            f"{message.about} was not sent to {message.target}: {message.why}; given up after"
            f" {_tries(message.tries)}"
            for message in self.lost
            if message.job == job
        ]
        late_notes = [
            f"{message.about} is not sent to {message.target} yet: {message.why}; tried again in"
            f" {span(max(message.due - now, 0.0))}"
            for message in self.waiting
            if message.job == job and message.tries
        ]
        return lost_notes + late_notes


def read(path: str) -> tuple[State, str]:
    """(what is remembered, why it cannot be read)."""
    try:
        content = wire.read_json(path)
        return (decoding.convert(content, State) if content is not None else State()), ""
    except (OSError, ValueError) as error:
        return State(), str(error)


def write(path: str, state: State) -> None:
    """Whole or not at all, and durably. Raises OSError."""
    wire.write_json(path, asdict(state))


def _tries(count: int) -> str:
    return f"{count} {'try' if count == 1 else 'tries'}"
