"""How to get a byte pipe to a node: what every connector offers. Knows nothing of the messages that
go through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import BinaryIO, Protocol


class Channel(Protocol):
    """Two byte streams to one process on a node. Reading gives b"" once that process or the way to
    it is gone."""

    @property
    def reader(self) -> BinaryIO:
        """What the process says."""

    @property
    def writer(self) -> BinaryIO:
        """What it is told; unbuffered. Raises BrokenPipeError once it is gone."""

    def last_words(self) -> str:
        """The last line that the process complained of, "" where it did not; for when it has
        ended."""

    def close(self) -> None:
        """End the process: closes its input, which it takes as the end, and does not wait for ever.
        May be repeated."""


class Connector(Protocol):
    """A way to one node."""

    def put(self, content: bytes, path: str) -> None:
        """Write a file on the node, whole or not at all. Raises GpqError."""

    def spawn(self, argv: Sequence[str], waiting: Callable[[], None] = lambda: None) -> Channel:
        """Run a command on the node that outlives us only if it wants to. Raises GpqError.

        `waiting` is called now and then where the way to the node takes a while; what it raises
        ends the attempt. Raises Refused where there is no use in trying again soon.
        """

    def agent(
        self, arguments: Sequence[str], waiting: Callable[[], None] = lambda: None
    ) -> Channel:
        """As `spawn`, the node agent of this gpq with these arguments."""
