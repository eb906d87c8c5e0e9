"""Files on their way to this server: taken in at an offset, verified by SHA-256, then renamed into
place. `sending` reads them.

<checkpoints>/.staging/NAME/set.json    what will come: {"files": [as trees.Entry, ...]}
<checkpoints>/.staging/NAME/N           the file at that place in the list, as far as it has come.
                                        After a lost connection it continues there
<checkpoints>/.staging/NAME/proved      its content was right, so from here on it is only moved

NAME is ``42`` for the files of job 42 and ``code-HASH`` for a snapshot's code. Long work (hashing,
unpacking) runs in small steps between two requests, so that nothing else waits for it.
"""

import base64
import os
import time
from typing import Any, Callable, Dict, List, Tuple

from gpq_agent import records, wire
from gpq_agent.node.files import arriving, sending, unpacking
from gpq_agent.node.files.arriving import remove
from gpq_agent.node.files.sending import Message, Work
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool import checkpoint_folder, trees
from gpq_agent.node.spool.checkpoint_folder import CODE_PREFIX, HASH, STAGING
from gpq_agent.node.spool.trees import SMALL, TIMED, Entry

SET, PROVED = "set.json", "proved"
SLICE = 0.05  # seconds of long work between two requests
# requests that are answered when their work is done
PARALLEL = ("files", "digest", "stage", "seal")


class Staging:
    """The staging of one checkpoint folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.damage: List[str] = []
        self.storage = checkpoint_folder.storage_id(folder, self.damage)
        self._works: List[Tuple[Message, Work]] = []
        # by name, with the time of change of its SET
        self._announced: Dict[str, Tuple[int, List[Entry]]] = {}
        self.operations: Dict[str, Callable[[Message], Message]] = {
            "fetch": lambda message: sending.fetch(self._of_job(message), message),
            "gather": lambda message: sending.gather(self._of_job(message), message),
            "put": self._put,
            "scatter": self._scatter,
            "kept": lambda _: checkpoint_folder.jobs(self.folder),
            "drop": self._drop,
        }

    # -- long work ---------------------------------------------------------------------------------

    def begin(self, message: Message, check: Callable[[], None]) -> None:
        """Start one of PARALLEL. `tick` gives its answer. `check` raises if the daemon may not ask
        for it."""
        works: Dict[str, Callable[[], Work]] = {
            "files": lambda: sending.files(self._of_job(message)),
            "digest": lambda: sending.digest(self._of_job(message), message),
            "stage": lambda: self._stage(message),
            "seal": lambda: self._seal(message, check),
        }
        self._works.append((message, works[message["op"]]()))

    @property
    def busy(self) -> bool:
        return bool(self._works)

    def tick(self) -> List[Tuple[Message, Callable[[Message], Message]]]:
        """Continue for a moment. Return the finished requests, each with a function that answers or
        raises."""
        if not self._works:
            return []
        message, work = self._works.pop(0)
        deadline = time.monotonic() + SLICE
        try:
            while time.monotonic() < deadline:
                next(work)
        except StopIteration as end:
            answer = end.value  # type: Message
            return [(message, lambda _: answer)]
        except Exception as error:
            return [(message, _raising(error))]
        self._works.append((message, work))  # other work is next
        return []

    # -- where it goes -----------------------------------------------------------------------------

    def _stage(self, message: Message) -> Work:
        """What a set still lacks: (place in the list, offset). It replaces another set of the same
        name."""
        entries = trees.parse(message["files"])
        name, target = self._target(message)
        place = os.path.join(self.folder, STAGING, name)
        previous = self._set(name)
        if previous != entries:
            remove(place)
        if os.path.exists(os.path.join(place, PROVED)):
            return {"missing": []}  # everything has come, and only `seal` is left to do
        missing = list(enumerate(entries))
        if "code" not in message:
            missing = []
            for number, entry in enumerate(entries):
                if entry.is_file and not checkpoint_folder.is_same(target, entry):
                    missing.append((number, entry))
                yield
        elif os.path.isdir(target):
            return {"missing": []}
        os.makedirs(place, mode=0o700, exist_ok=True)
        if previous != entries:
            wire.write_json(os.path.join(place, SET), {"files": trees.as_json(entries)})
        offsets = [
            [number, min(_size(os.path.join(place, str(number))), entry.size)]
            for number, entry in missing
        ]
        stored = sum(_stored_bytes(os.path.join(place, str(number))) for number, _ in missing)
        arriving.check_space(self.folder, sum(entry.stored for _, entry in missing) - stored)
        return {"missing": offsets}

    def _set(self, name: str) -> Any:
        """The announced listing, None if there is none or it is damaged."""
        path = os.path.join(self.folder, STAGING, name, SET)
        try:
            change_time = os.stat(path).st_mtime_ns
            if self._announced.get(name, (0, []))[0] != change_time:
                self._announced[name] = (
                    change_time,
                    trees.parse((records.read_object(path, 2 * trees.MOST_BYTES) or {})["files"]),
                )
            return self._announced[name][1]
        except (OSError, ValueError, KeyError, TypeError):
            self._announced.pop(name, None)
            return None

    def _coming(self, message: Message) -> Tuple[str, List[Entry]]:
        name, _ = self._target(message)
        entries = self._set(name)
        if entries is None:
            raise SpoolError("no such transfer to this server", "send `stage` first")
        return os.path.join(self.folder, STAGING, name), entries

    def _put(self, message: Message) -> Message:
        """Take data only at the current end of the file. The answer says where that is."""
        place, entries = self._coming(message)
        entry, path = _at(place, entries, message["at"])
        data, skip = base64.b64decode(message["data"], validate=True), int(message["skip"])
        size = _size(path)
        if int(message["offset"]) == size and skip >= 0 and size + skip + len(data) <= entry.size:
            arriving.check_space(self.folder, len(data))  # the listing may promise holes
            with open(path, "ab") as stream:
                if skip:
                    stream.truncate(size + skip)
                stream.write(data)
            size += skip + len(data)
        return {"offset": size}

    def _scatter(self, message: Message) -> Message:
        """Take complete small files: [[place in the list, data], ...]."""
        place, entries = self._coming(message)
        for number, data in message["parts"]:
            _, path = _at(place, entries, number)
            content = base64.b64decode(data, validate=True)
            arriving.check_space(self.folder, len(content))
            with open(path, "wb") as stream:
                stream.write(content)
        return {}

    def _seal(self, message: Message, check: Callable[[], None]) -> Work:
        """Everything has come: verify it against `digests` (by place in the list) and rename it
        into place. What is wrong is removed."""
        name, target = self._target(message)
        place = os.path.join(self.folder, STAGING, name)
        entries = trees.parse(message["files"])
        if self._set(name) == entries:
            if not os.path.exists(os.path.join(place, PROVED)):
                yield from self._prove(message, place, target, entries)
            check()
            try:
                if "code" in message:
                    yield from unpacking.unpack(os.path.join(place, "0"), target)
                else:
                    yield from arriving.install(place, target, entries)
                    yield from arriving.settle(self.folder, [])
            except (OSError, SpoolError):
                remove(place)  # it must come again
                raise
        elif not self._is_there(message, target, entries):
            raise SpoolError("no such transfer to this server", "send `stage` first")
        remove(place)
        self._announced.pop(name, None)
        return {}

    def _is_there(self, message: Message, target: str, entries: List[Entry]) -> bool:
        if "code" in message:
            return os.path.isdir(target)
        return all(checkpoint_folder.is_same(target, entry) for entry in entries)

    def _prove(self, message: Message, place: str, target: str, entries: List[Entry]) -> Work:
        digests, large = dict(message["digests"]), []
        for number, entry in enumerate(entries):
            path = os.path.join(place, str(number))
            if not entry.is_file:
                continue
            if not os.path.exists(path):
                if "code" not in message and checkpoint_folder.is_same(target, entry):
                    continue
                raise SpoolError(
                    "{} has not arrived".format(entry.path), "gpq sends it again", "busy"
                )
            is_timed = entry.mark.startswith(TIMED)
            digest = yield from (trees.digest(path) if is_timed else trees.sha256(path))
            if _size(path) != entry.size or digest != (
                digests.get(str(number)) if is_timed else entry.mark
            ):
                remove(place)
                raise SpoolError(
                    "{} did not arrive as it was sent".format(entry.path),
                    "gpq sends it again",
                    "busy",
                )
            os.utime(path, ns=(entry.changed, entry.changed))
            if entry.size > SMALL:
                large.append(path)
        yield from arriving.settle(place, large)
        with open(os.path.join(place, PROVED), "wb"):
            pass
        arriving.sync(place)
        return {}

    # -- what is not needed any more ---------------------------------------------------------------

    def _drop(self, message: Message) -> Message:
        name, target = self._target(message)
        remove(os.path.join(self.folder, STAGING, name))
        remove(target)
        return {}

    def code(self, digest: str) -> str:
        """The folder of a snapshot's code. Raises SpoolError if it is not here, and
        NotPrivate if another user could change it."""
        _, target = self._target({"code": digest})
        if not os.path.isdir(target):
            raise SpoolError(
                "the code {} is not on this server".format(digest[:12]),
                "gpq sends it again",
                "busy",
            )
        wire.make_private(target)
        return target

    def _target(self, message: Message) -> Tuple[str, str]:
        """(name of what is staged, where it belongs)."""
        if "code" not in message:
            return str(int(message["job"])), self._of_job(message)
        digest = str(message["code"])
        if not HASH.fullmatch(digest):
            raise ValueError("{!r} is not a SHA-256".format(digest))
        return CODE_PREFIX + digest, os.path.join(self.folder, checkpoint_folder.CODE, digest)

    def _of_job(self, message: Message) -> str:
        return os.path.join(self.folder, str(int(message["job"])))


def _raising(error: Exception) -> Callable[[Message], Message]:
    def answer(_: Message) -> Message:
        raise error

    return answer


def _at(place: str, entries: List[Entry], number: Any) -> Tuple[Entry, str]:
    """The entry with this number, and the path where it arrives."""
    if not isinstance(number, int) or not 0 <= number < len(entries) or not entries[number].is_file:
        raise ValueError("{!r} is not a file of this transfer".format(number))
    return entries[number], os.path.join(place, str(number))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _stored_bytes(path: str) -> int:
    """Bytes on the disk."""
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0
