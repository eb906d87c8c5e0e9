"""Copies one set of files to one server, piece by piece over the daemon's existing connections.

Pieces are small enough to take about `PIECE_SECONDS` each, so that orders and reports do not wait
longer for them. After a cut the transfer continues at the offset that the server names. The server
verifies everything with SHA-256 before it counts.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from gpq.core.model.units import Seconds
from gpq.errors import GpqError, NodeSilent

PIECE_SECONDS: Seconds = 0.2
MOST_AT_ONCE = 1000  # files of one piece
FIRST_PIECE, LEAST_PIECE, MOST_PIECE = 1 << 16, 1 << 13, 1 << 20  # bytes
ANSWER: Seconds = 20.0  # for one piece. A server that is silent for this long is disconnected
LONG_WORK: Seconds = 3600.0  # to hash or to unpack everything
LOOK: Seconds = 0.2  # between two checks whether a server is back
GIVE_UP: Seconds = 60.0  # of silence, after which the caller decides what to do

TIMED = "t"  # first letter of a mark that is not a digest
SMALL = 1 << 16  # bytes: many files up to this size go into one piece
Listing = Sequence[Sequence[Any]]  # [path, size, mark, ...], as wire's `files`
Ask = Callable[
    [str, Mapping[str, Any], Seconds], Mapping[str, Any]
]  # an operation of one server. Raises NodeSilent, GpqError


class Source(Protocol):
    """Where a set comes from."""

    def read(self, path: str, offset: int, limit: int) -> tuple[int, bytes]:
        """(bytes of a hole before the data, data)."""

    def gather(self, paths: Sequence[str]) -> list[str]:
        """Base64 of small files, as many of the first ones as fit."""

    def digest(self, path: str) -> str: ...


class Abandoned(Exception):
    """Nobody wants it any more."""


@dataclass
class Gauge:
    """How far a transfer is. Written by its thread, read by any."""

    progress: int = 0  # bytes on the server
    total: int = 0
    moved: int = 0  # bytes that this transfer really sent
    seconds: Seconds = 0.0  # seconds that this took
    note: str = ""  # what it waits for

    @property
    def rate(self) -> float:
        """Bytes per second, 0 while that is not known."""
        if self.seconds <= 0:
            return 0.0
        return self.moved / self.seconds


class NodeSource:
    """The files of a job on a server."""

    def __init__(self, ask: Ask, job: int) -> None:
        self._ask = ask
        self._job = job

    def read(self, path: str, offset: int, limit: int) -> tuple[int, bytes]:
        fields = {"job": self._job, "path": path, "offset": offset, "limit": limit}
        answer = self._ask("fetch", fields, ANSWER)
        return int(answer["skip"]), base64.b64decode(answer["data"])

    def gather(self, paths: Sequence[str]) -> list[str]:
        return list(self._ask("gather", {"job": self._job, "paths": list(paths)}, ANSWER)["data"])

    def digest(self, path: str) -> str:
        return str(self._ask("digest", {"job": self._job, "path": path}, LONG_WORK)["digest"])


class FileSource:
    """One file of the daemon's own, named by its SHA-256."""

    def __init__(self, path: str, digest: str) -> None:
        self._path = path
        self._digest = digest

    def read(self, path: str, offset: int, limit: int) -> tuple[int, bytes]:
        try:
            with open(self._path, "rb") as stream:
                stream.seek(offset)
                return 0, stream.read(limit)
        except OSError as error:
            raise GpqError(
                f"cannot read {self._path}: {error.strerror}", "submit the job again"
            ) from None

    def gather(self, paths: Sequence[str]) -> list[str]:
        return [base64.b64encode(self.read(path, 0, SMALL)[1]).decode("ascii") for path in paths]

    def digest(self, path: str) -> str:
        return self._digest


class Transfer:
    """`subject` is {"job": 42} or {"code": hash}. `target` has operations of the server.
    `is_wanted` is called before every piece."""

    def __init__(
        self,
        subject: Mapping[str, Any],
        files: Listing,
        source: Source,
        target: Ask,
        is_wanted: Callable[[], bool],
        gauge: Gauge,
    ) -> None:
        self._subject = dict(subject)
        self._files = files
        self._source = source
        self._target = target
        self._is_wanted = is_wanted
        self.gauge = gauge
        self._piece = FIRST_PIECE

    def run(self) -> None:
        """Returns when everything is there. Raises Abandoned, NodeSilent if one end was silent for
        GIVE_UP seconds, GpqError if it is impossible."""
        self.gauge.total = sum(int(size) for _, size, *_ in self._files)
        cut_at: Seconds | None = None
        while True:
            before = self.gauge.moved
            try:
                self._once()
                return
            except NodeSilent as error:
                now = time.monotonic()
                if cut_at is None or self.gauge.moved > before:
                    cut_at = now
                self.gauge.note = f"interrupted: {error.message}"
                if now - cut_at > GIVE_UP:
                    raise
            self._check()
            time.sleep(LOOK)

    def _once(self) -> None:
        self._check()
        answer = self._target("stage", {**self._subject, "files": self._files}, LONG_WORK)
        missing_files = [(int(index), int(offset)) for index, offset in answer["missing"]]
        self.gauge.progress = self.gauge.total - sum(
            self._size(index) - offset for index, offset in missing_files
        )
        self.gauge.note = ""
        with ThreadPoolExecutor(1, "staging-read") as ahead:
            self._send_small(
                ahead, [index for index, _ in missing_files if self._size(index) <= SMALL]
            )
            for index, offset in missing_files:
                if offset < self._size(index) > SMALL:
                    self._send(ahead, index, offset)
        digests = self._digests(index for index, _ in missing_files)
        self._check()
        if missing_files:
            self.gauge.note = "being checked"
        self._target("seal", {**self._subject, "files": self._files, "digests": digests}, LONG_WORK)
        self.gauge.note = ""

    def _digests(self, indices: Iterable[int]) -> dict[str, str]:
        """Digests of files whose marks are their times, by index. The marks of the others are
        digests already."""
        return {
            str(index): self._source.digest(str(self._files[index][0]))
            for index in indices
            if str(self._files[index][2]).startswith(TIMED)
        }

    def _size(self, index: int) -> int:
        return int(self._files[index][1])

    def _send_small(self, ahead: ThreadPoolExecutor, indices: Sequence[int]) -> None:
        """Many files per piece."""
        queue = list(indices)

        def read() -> Future[list[str]]:
            paths = [str(self._files[index][0]) for index in self._batch(queue)]
            return ahead.submit(self._source.gather, paths)

        if queue:
            future = read()
        while queue:
            self._check()
            began = time.monotonic()
            contents = future.result()
            if not contents:
                raise GpqError(f"{self._files[queue[0]][0]} cannot be read", "try again")
            batch, queue = queue[: len(contents)], queue[len(contents) :]
            if queue:
                future = read()
            parts = [list(pair) for pair in zip(batch, contents, strict=True)]
            self._target("scatter", {**self._subject, "parts": parts}, ANSWER)
            self._count(sum(self._size(index) for index in batch), 0, time.monotonic() - began)

    def _batch(self, indices: Sequence[int]) -> list[int]:
        """As many of the first ones as one piece holds."""
        room, batch = self._piece, list(indices[:1])
        for index in indices[1:MOST_AT_ONCE]:
            room -= self._size(index)
            if room < 0:
                break
            batch.append(index)
        return batch

    def _send(self, ahead: ThreadPoolExecutor, index: int, offset: int) -> None:
        """One file from `offset` on. While a piece is written, the next one is read."""
        path, size = str(self._files[index][0]), self._size(index)

        def read(begin: int) -> Future[tuple[int, bytes]]:
            return ahead.submit(self._source.read, path, begin, min(self._piece, size - begin))

        future = read(offset)
        while offset < size:
            self._check()
            began = time.monotonic()
            skip, data = future.result()
            data = data[: size - offset - skip]
            end = offset + skip + len(data)
            if end == offset:
                raise GpqError(f"{path} became shorter while it was read", "try again")
            if end < size:
                future = read(end)
            text = base64.b64encode(data).decode("ascii")
            fields = {**self._subject, "at": index, "offset": offset, "skip": skip, "data": text}
            if int(self._target("put", fields, ANSWER)["offset"]) != end:
                raise NodeSilent("it did not store all the data", "gpq continues from there")
            offset = end
            self._count(len(data), skip, time.monotonic() - began)

    def _count(self, sent_bytes: int, hole_bytes: int, seconds: Seconds) -> None:
        self.gauge.progress += sent_bytes + hole_bytes
        self.gauge.moved += sent_bytes
        self.gauge.seconds += seconds
        self._piece = next_size(self._piece, seconds)

    def _check(self) -> None:
        if not self._is_wanted():
            raise Abandoned


def next_size(piece: int, seconds: Seconds) -> int:
    """The next size of a piece, after one of `piece` bytes took this long. It at most doubles,
    within the limits."""
    size = piece * min(PIECE_SECONDS / max(seconds, 1e-4), 2.0)
    return int(min(max(size, LEAST_PIECE), MOST_PIECE))
