"""Messages that are still to be sent, and those that were lost, in a file next to the database.

notifications.json  {"store": id of the database, "seq": the journal was read up to here, "waiting":
                    [...], "lost": [...]}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from gpq_agent import wire

from gpq import decoding
from gpq.core.feasibility.leases import span
from gpq.core.model.units import Seconds

MOST_WAITING, MOST_LOST = 5000, 200


@dataclass(frozen=True, slots=True)
class Message:
    """One fact for one target."""

    seq: int  # number of the fact in the journal
    at: Seconds
    job: int
    target: str
    word: str  # as in `--notify-on`
    said: str  # the fact in one line
    tries: int = 0
    due: Seconds = 0.0
    why: str = ""  # why the last try failed

    @property
    def about(self) -> str:
        return f"the notification of its {self.word}"

    @property
    def key(self) -> tuple[int, str]:
        """Which fact goes to which target."""
        return self.seq, self.target


@dataclass(frozen=True, slots=True)
class State:
    """The content of the file."""

    store: str = ""
    seq: int = 0
    waiting: tuple[Message, ...] = ()
    lost: tuple[Message, ...] = ()

    def with_news(self, seq: int, messages: Sequence[Message]) -> State:
        """Adds messages at the end. If too many wait, the oldest are lost."""
        queue = (*self.waiting, *messages)
        overflow = [
            replace(message, why="too many messages are waiting")
            for message in queue[:-MOST_WAITING]
        ]
        lost_messages = (*self.lost, *overflow)[-MOST_LOST:]
        return replace(self, seq=seq, waiting=queue[-MOST_WAITING:], lost=lost_messages)

    def after_success(self, batch: Sequence[Message]) -> State:
        """Removes the sent messages. All others for the same target are due at once."""
        target, batch_keys = batch[0].target, {message.key for message in batch}
        queue = [message for message in self.waiting if message.key not in batch_keys]
        return replace(
            self,
            waiting=tuple(
                replace(message, due=0.0) if message.target == target else message
                for message in queue
            ),
        )

    def after_failure(
        self, batch: Sequence[Message], why: str, now: Seconds, backoff: Sequence[Seconds]
    ) -> State:
        """Messages wait longer, or are lost after their last try."""
        batch_keys = {message.key for message in batch}
        queue: list[Message] = []
        lost_messages = list(self.lost)
        for message in self.waiting:
            if message.key not in batch_keys:
                queue.append(message)
                continue
            next_message = replace(message, tries=message.tries + 1, why=why)
            if message.tries < len(backoff):
                queue.append(replace(next_message, due=now + backoff[message.tries]))
            else:
                lost_messages.append(next_message)
        return replace(self, waiting=tuple(queue), lost=tuple(lost_messages[-MOST_LOST:]))

    def notes(self, job: int, now: Seconds) -> list[str]:
        """A line for each message about a job that was not sent, or not yet."""
        lost_notes = [
            f"{message.about} was not sent to {message.target}: {message.why}, given up after"
            f" {_tries(message.tries)}"
            for message in self.lost
            if message.job == job
        ]
        late_notes = [
            f"{message.about} was not sent to {message.target} yet: {message.why}, next try in"
            f" {span(max(message.due - now, 0.0))}"
            for message in self.waiting
            if message.job == job and message.tries
        ]
        return lost_notes + late_notes


def read(path: str) -> tuple[State, str]:
    """(the content, why it cannot be read)."""
    try:
        content = wire.read_json(path)
        if content is None:
            return State(), ""
        return decoding.convert(content, State), ""
    except (OSError, ValueError) as error:
        return State(), str(error)


def write(path: str, state: State) -> None:
    """Writes the whole file or nothing, durably. Raises OSError."""
    wire.write_json(path, asdict(state))


def _tries(count: int) -> str:
    return f"{count} {'try' if count == 1 else 'tries'}"
