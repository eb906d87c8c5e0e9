"""One set of files from where it lies to one node, piece by piece over the connections that the
daemon has anyway.

Pieces are small enough that each takes about `PIECE_SECONDS`, so that orders and reports wait no
longer for them; after a cut it goes on at the offset that the node names. What arrived is proved by
SHA-256 on the node before it counts.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from gpq.core.model.units import Seconds
from gpq.errors import GpqError, NodeSilent

PIECE_SECONDS: Seconds = 0.2
MOST_AT_ONCE = 1000  # files of one piece
FIRST_PIECE, LEAST_PIECE, MOST_PIECE = 1 << 16, 1 << 13, 1 << 20  # bytes
ANSWER: Seconds = 20.0  # for one piece; a node that is silent for so long is cut
LONG_WORK: Seconds = 3600.0  # to hash or to unpack the whole
LOOK: Seconds = 0.2  # between two looks whether a node is back
GIVE_UP: Seconds = 60.0  # of silence, after which somebody else is to decide what to do

TIMED = "t"  # first letter of a mark that is no digest
SMALL = 1 << 16  # bytes: of files up to here many go in one piece
Listing = Sequence[Sequence[Any]]  # [path, size, mark, ...], as wire's `files`
Ask = Callable[
    [str, Mapping[str, Any], Seconds], Mapping[str, Any]
]  # an operation of one node; raises NodeSilent, GpqError


class Source(Protocol):
    """Where a set comes from."""

    def read(self, path: str, offset: int, limit: int) -> tuple[int, bytes]:
        """(bytes of a hole that come first, data)."""

    def gather(self, paths: Sequence[str]) -> list[str]:
        """Base64 of small files, the first of those."""

    def digest(self, path: str) -> str: ...


class Abandoned(Exception):
    """Nobody wants it any more."""


@dataclass
class Gauge:
    """How far a transfer is. Written by its thread, read by any."""

    done: int = 0
    total: int = 0
    moved: int = 0  # bytes that were really sent, by this transfer
    seconds: Seconds = 0.0  # that took
    note: str = ""  # what it waits for

    @property
    def rate(self) -> float:
        """Bytes a second, 0 while that is not known."""
        return self.moved / self.seconds if self.seconds > 0 else 0.0


class NodeSource:
    """The files of a job on a node."""

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
    """`what`: {"job": 42} or {"code": hash}. `target`: operations of the node. `wanted` is asked
    before every piece."""

    def __init__(
        self,
        what: Mapping[str, Any],
        files: Listing,
        source: Source,
        target: Ask,
        wanted: Callable[[], bool],
        gauge: Gauge,
    ) -> None:
        self._what = dict(what)
        self._files = files
        self._source = source
        self._target = target
        self._wanted = wanted
        self.gauge = gauge
        self._piece = FIRST_PIECE

    def run(self) -> None:
        """Until it is there. Raises Abandoned, NodeSilent when an end was silent for GIVE_UP
        seconds, GpqError when it cannot be done."""
        self.gauge.total = sum(int(size) for _, size, *_ in self._files)
        cut_at: Seconds | None = None
        while True:
            before = self.gauge.moved
            try:
                self._once()
                return
            except NodeSilent as error:
                now = time.monotonic()
                cut_at = now if cut_at is None or self.gauge.moved > before else cut_at
                self.gauge.note = f"interrupted: {error.message}"
                if now - cut_at > GIVE_UP:
                    raise
            self._check()
            time.sleep(LOOK)

    def _once(self) -> None:
        self._check()
        answer = self._target("stage", {**self._what, "files": self._files}, LONG_WORK)
        missing = [(int(at), int(offset)) for at, offset in answer["missing"]]
        self.gauge.done = self.gauge.total - sum(self._size(at) - offset for at, offset in missing)
        self.gauge.note = ""
        small = [at for at, _ in missing if self._size(at) <= SMALL]
        large = [(at, offset) for at, offset in missing if offset < self._size(at) > SMALL]
        with ThreadPoolExecutor(1, "staging-read") as ahead:
            self._send_small(ahead, small)
            for at, offset in large:
                self._send(ahead, at, offset)
        timed = [at for at, _ in missing if str(self._files[at][2]).startswith(TIMED)]
        digests = {str(at): self._source.digest(str(self._files[at][0])) for at in timed}
        self._check()
        self.gauge.note = "being checked" if missing else ""
        self._target("seal", {**self._what, "files": self._files, "digests": digests}, LONG_WORK)
        self.gauge.note = ""

    def _size(self, at: int) -> int:
        return int(self._files[at][1])

    def _send_small(self, ahead: ThreadPoolExecutor, places: Sequence[int]) -> None:
        """Many files a piece."""
        rest = list(places)

        def read() -> Future[list[str]]:
            return ahead.submit(
                self._source.gather, [str(self._files[at][0]) for at in self._batch(rest)]
            )

        coming = read() if rest else None
        while coming is not None:
            self._check()
            began = time.monotonic()
            contents = coming.result()
            if not contents:
                raise GpqError(f"{self._files[rest[0]][0]} cannot be read", "try again")
            batch, rest = rest[: len(contents)], rest[len(contents) :]
            coming = read() if rest else None
            parts = [list(pair) for pair in zip(batch, contents, strict=True)]
            self._target("scatter", {**self._what, "parts": parts}, ANSWER)
            self._count(sum(self._size(at) for at in batch), 0, time.monotonic() - began)

    def _batch(self, places: Sequence[int]) -> list[int]:
        """The first of them, as many as a piece holds."""
        room, batch = self._piece, list(places[:1])
        for at in places[1:MOST_AT_ONCE]:
            room -= self._size(at)
            if room < 0:
                break
            batch.append(at)
        return batch

    def _send(self, ahead: ThreadPoolExecutor, at: int, offset: int) -> None:
        """One file from `offset` on: while a piece is written, the next one is read."""
        path, size = str(self._files[at][0]), self._size(at)

        def read(begin: int) -> Future[tuple[int, bytes]]:
            return ahead.submit(self._source.read, path, begin, min(self._piece, size - begin))

        coming = read(offset)
        while offset < size:
            self._check()
            began = time.monotonic()
            skip, data = coming.result()
            data = data[: size - offset - skip]
            end = offset + skip + len(data)
            if end == offset:
                raise GpqError(f"{path} became shorter while it was read", "try again")
            if end < size:
                coming = read(end)
            encoded = base64.b64encode(data).decode("ascii")
            fields = {**self._what, "at": at, "offset": offset, "skip": skip, "data": encoded}
            if int(self._target("put", fields, ANSWER)["offset"]) != end:
                raise NodeSilent("what it has is not what was sent to it", "it goes on from there")
            offset = end
            self._count(len(data), skip, time.monotonic() - began)

    def _count(self, moved: int, skipped: int, took: Seconds) -> None:
        self.gauge.done += moved + skipped
        self.gauge.moved += moved
        self.gauge.seconds += took
        self._piece = fitting(self._piece, took)

    def _check(self) -> None:
        if not self._wanted():
            raise Abandoned


def fitting(piece: int, took: Seconds) -> int:
    """The next size of a piece, after one of `piece` bytes took so long: at most doubled, within
    the limits."""
    wanted = piece * min(PIECE_SECONDS / max(took, 1e-4), 2.0)
    return int(min(max(wanted, LEAST_PIECE), MOST_PIECE))
