"""How to get a byte pipe to a server: what every connector offers. Knows nothing of the messages in
the pipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import BinaryIO, Protocol


class Channel(Protocol):
    """Two byte streams to one process on a server. Reading gives b"" when that process or the
    connection is gone."""

    @property
    def reader(self) -> BinaryIO:
        """The output of the process."""

    @property
    def writer(self) -> BinaryIO:
        """The input of the process, unbuffered. Raises BrokenPipeError when the process is gone."""

    def last_words(self) -> str:
        """The last line that the process complained of, or "". For when it has ended."""

    def close(self) -> None:
        """End the process: closes its input, which the process takes as the end, and does not wait
        for ever. May be repeated."""


class Connector(Protocol):
    """A way to one server."""

    def put(self, content: bytes, path: str) -> None:
        """Write a file on the server, as a whole or not at all. Raises GpqError."""

    def spawn(self, argv: Sequence[str], waiting: Callable[[], None] = lambda: None) -> Channel:
        """Run a command on the server. It outlives us only if it wants to. Raises GpqError.

        If connecting takes a while, it calls `waiting` now and then. If `waiting` raises, the
        attempt ends. Raises Refused if trying again soon is useless.
        """

    def agent(
        self, arguments: Sequence[str], waiting: Callable[[], None] = lambda: None
    ) -> Channel:
        """Like `spawn`, for the agent of this gpq with these arguments."""
