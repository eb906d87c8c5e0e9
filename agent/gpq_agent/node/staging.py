"""Files on their way to this server, and from it: read in pieces, taken in at an offset, proved by SHA-256, then renamed in.

<checkpoints>/.staging/NAME/set.json    what is to come: {"files": [[path, size, mark], ...]}
<checkpoints>/.staging/NAME/N           the file of that place in the list, as far as it came: after a cut it goes on there
<checkpoints>/.staging/NAME/proved      its content was right: from here on it is only moved

NAME is ``42`` for the files of job 42 and ``code-HASH`` for a snapshot's code. Long work (hashing, unpacking) is done a
little at a time between two requests, so that nothing else waits for it.
"""

import base64
import contextlib
import hashlib
import os
import shutil
import tarfile
import time
from typing import Any, Callable, Dict, Generator, List, Tuple

from gpq_agent import wire
from gpq_agent.node import storage
from gpq_agent.node.spool import SpoolError
from gpq_agent.node.storage import CODE_PREFIX, HASH, STAGING, File

Message = Dict[str, Any]
Work = Generator[None, None, Message]

SET, PROVED = "set.json", "proved"
PIECE = 1 << 20  # bytes, at most, of one request
BLOCK = 1 << 20  # bytes that are hashed before anything else is looked at
SLICE = 0.05  # seconds of long work between two requests
SPARE = 64 << 20  # bytes of the disk that are left free
PARALLEL = ("digest", "seal")  # requests that are answered when their work is done


class Staging:
    """Of one folder of checkpoints."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.storage = storage.storage_id(folder)
        self._works = []  # type: List[Tuple[Message, Work]]
        self.operations = {
            "files": self._files,
            "fetch": self._fetch,
            "stage": self._stage,
            "put": self._put,
            "kept": lambda _: storage.jobs(self.folder),
            "drop": self._drop,
        }  # type: Dict[str, Callable[[Message], Message]]

    # -- long work -----------------------------------------------------------------------------------------------------

    def begin(self, message: Message, check: Callable[[], None]) -> None:
        """One of PARALLEL; `tick` gives its answer. `check` raises where whoever asks may not."""
        work = self._digest(message) if message.get("op") == "digest" else self._seal(message, check)
        self._works.append((message, work))

    @property
    def busy(self) -> bool:
        return bool(self._works)

    def tick(self) -> List[Tuple[Message, Callable[[Message], Message]]]:
        """Go on for a moment. Requests that are done, each with what says their answer, or raises."""
        if not self._works:
            return []
        message, work = self._works.pop(0)
        until = time.monotonic() + SLICE
        try:
            while time.monotonic() < until:
                next(work)
        except StopIteration as end:
            answer = end.value  # type: Message
            return [(message, lambda _: answer)]
        except Exception as error:
            return [(message, _raising(error))]
        self._works.append((message, work))  # whoever else waits is next
        return []

    # -- where it comes from -------------------------------------------------------------------------------------------

    def _files(self, message: Message) -> Message:
        files = storage.listing(self._of_job(message))
        return {"files": storage.as_json(files), "age": list(storage.age(files))}

    def _fetch(self, message: Message) -> Message:
        [file] = storage.parsed([[message["path"], 0, ""]])
        limit = min(max(int(message["limit"]), 1), PIECE)
        with open(_inside(self._of_job(message), file.path), "rb") as stream:
            stream.seek(int(message["offset"]))
            return {"data": base64.b64encode(stream.read(limit)).decode("ascii")}

    def _digest(self, message: Message) -> Work:
        [file] = storage.parsed([[message["path"], 0, ""]])
        digest = yield from _hashed(_inside(self._of_job(message), file.path))
        return {"sha256": digest}

    # -- where it goes -------------------------------------------------------------------------------------------------

    def _stage(self, message: Message) -> Message:
        """What is still missing of a set: (place in the list, offset). Another set of the same name gives way."""
        files = storage.parsed(message["files"])
        name, target = self._target(message)
        place = os.path.join(self.folder, STAGING, name)
        known = _read(os.path.join(place, SET))
        if known != files:
            _remove(place)
        if "code" in message:
            missing = [] if os.path.isdir(target) else list(enumerate(files))
        else:
            missing = [(at, file) for at, file in enumerate(files) if not storage.same(target, file)]
        if missing:
            os.makedirs(place, mode=0o700, exist_ok=True)
            if known != files:
                wire.write_json(os.path.join(place, SET), {"files": storage.as_json(files)})
        if os.path.exists(os.path.join(place, PROVED)):
            return {"missing": []}  # all had come; what is left to do is `seal`
        offsets = [[at, min(_size(os.path.join(place, str(at))), file.size)] for at, file in missing]
        self._check_space(sum(file.size for _, file in missing) - sum(offset for _, offset in offsets))
        return {"missing": offsets}

    def _check_space(self, needed: int) -> None:
        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        if needed and free - SPARE < needed:
            raise SpoolError(
                "no room in {}: {} MB are needed, {} MB are free".format(self.folder, needed >> 20, free >> 20),
                "free space there, or give the server another folder: `checkpoints` in config.toml",
                "busy",
            )

    def _put(self, message: Message) -> Message:
        """Taken in only where it goes on; the answer says where that is."""
        name, _ = self._target(message)
        place = os.path.join(self.folder, STAGING, name)
        files = _read(os.path.join(place, SET))
        at, data = int(message["at"]), base64.b64decode(message["data"], validate=True)
        if files is None or not 0 <= at < len(files):
            raise SpoolError("nothing of this is on its way here", "say `stage` first")
        path = os.path.join(place, str(at))
        size = _size(path)
        if int(message["offset"]) == size and size + len(data) <= files[at].size:
            with open(path, "ab") as stream:
                stream.write(data)
            size += len(data)
        return {"offset": size}

    def _seal(self, message: Message, check: Callable[[], None]) -> Work:
        """All has come: prove it against `sha256` (by place in the list), and rename it in. What is wrong is removed."""
        name, target = self._target(message)
        place = os.path.join(self.folder, STAGING, name)
        files = storage.parsed(message["files"])
        if _read(os.path.join(place, SET)) == files:
            if not os.path.exists(os.path.join(place, PROVED)):
                yield from self._prove(place, files, dict(message["sha256"]))
            check()
            try:
                if "code" in message:
                    yield from _unpack(os.path.join(place, "0"), target)
                else:
                    _install(place, target, files)
            except (OSError, SpoolError):
                _remove(place)  # it has to come anew
                raise
        elif "code" not in message and not all(storage.same(target, file) for file in files):
            raise SpoolError("nothing of this is on its way here", "say `stage` first")
        if "code" not in message:
            _remove_newer(target, files)
        _remove(place)
        return {}

    def _prove(self, place: str, files: List[File], digests: Dict[str, str]) -> Work:
        for at, file in enumerate(files):
            path = os.path.join(place, str(at))
            if not os.path.exists(path):
                continue  # it was here already
            digest = yield from _hashed(path)
            if _size(path) != file.size or digest != digests.get(str(at)):
                _remove(place)
                raise SpoolError("{} did not arrive as it was sent".format(file.path), "it is sent again", "busy")
            if file.mark.startswith("t"):
                os.utime(path, (int(file.mark[1:]), int(file.mark[1:])))
            _sync(path)
        with open(os.path.join(place, PROVED), "wb"):
            pass
        _sync(place)
        return {}

    # -- what is not needed any more -----------------------------------------------------------------------------------

    def _drop(self, message: Message) -> Message:
        name, target = self._target(message)
        _remove(os.path.join(self.folder, STAGING, name))
        _remove(target)
        return {}

    def code(self, digest: str) -> str:
        """The folder of a snapshot's code. Raises SpoolError where it is not here."""
        _, target = self._target({"code": digest})
        if not os.path.isdir(target):
            raise SpoolError("the code {} is not on this server".format(digest[:12]), "it is sent again", "busy")
        return target

    def _target(self, message: Message) -> Tuple[str, str]:
        """(name of what is staged, where it belongs)."""
        if "code" not in message:
            return str(int(message["job"])), self._of_job(message)
        digest = str(message["code"])
        if not HASH.fullmatch(digest):
            raise ValueError("{!r} is no SHA-256".format(digest))
        return CODE_PREFIX + digest, os.path.join(self.folder, storage.CODE, digest)

    def _of_job(self, message: Message) -> str:
        return os.path.join(self.folder, str(int(message["job"])))


def _raising(error: Exception) -> Callable[[Message], Message]:
    def answer(_: Message) -> Message:
        raise error

    return answer


def _hashed(path: str) -> Generator[None, None, str]:
    """SHA-256 of a file, a block at a time."""
    state = hashlib.sha256()
    with open(path, "rb") as stream:
        while True:
            block = stream.read(BLOCK)
            if not block:
                return state.hexdigest()
            state.update(block)
            yield


def _install(place: str, target: str, files: List[File]) -> None:
    """Move what has come to where it belongs: what it replaces is taken away first, the record of own saves comes last."""
    os.makedirs(target, mode=0o700, exist_ok=True)
    coming = [(at, file) for at, file in enumerate(files) if os.path.exists(os.path.join(place, str(at)))]
    library = [file for file in files if file.path.startswith(storage.LIBRARY + "/" + storage.STEP)]
    if not all(storage.same(target, file) for file in library):
        _install_step(place, target, library[0].path.rpartition("/")[0], files)
    last = storage.OWN + "/" + storage.RECORD
    for at, file in sorted(coming, key=lambda one: one[1].path == last):
        source, path = os.path.join(place, str(at)), os.path.join(target, file.path)
        if not os.path.exists(source):
            continue  # it went with its step
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.replace(source, path)
        _sync(os.path.dirname(path))


def _install_step(place: str, target: str, step: str, files: List[File]) -> None:
    """A checkpoint of the library is whole or absent: its folder is put together beside it, then renamed."""
    final = os.path.join(target, step)
    folder, name = os.path.split(final)
    temporary = os.path.join(folder, ".{}.staged.tmp".format(name))
    os.makedirs(temporary, mode=0o700, exist_ok=True)
    for at, file in enumerate(files):
        if file.path.rpartition("/")[0] != step:
            continue
        source, path = os.path.join(place, str(at)), os.path.join(temporary, os.path.basename(file.path))
        if os.path.exists(source):
            os.replace(source, path)
        elif not os.path.exists(path):
            shutil.copy2(os.path.join(target, file.path), path)  # it was here already
    _sync(temporary)
    _remove(final)
    os.rename(temporary, final)
    _sync(folder)


def _remove_newer(target: str, files: List[File]) -> None:
    """Checkpoints that the loader would prefer are of an attempt that was given up: the job went on without them."""
    kept = [file.path.split("/")[1] for file in files if file.path.startswith(storage.LIBRARY + "/" + storage.STEP)]
    for name in storage.steps(target):
        if kept and storage.step_of(name) > storage.step_of(kept[0]):
            _remove(os.path.join(target, storage.LIBRARY, name))


def _unpack(path: str, target: str) -> Generator[None, None, None]:
    """A tar archive of plain files, folders and links that stay inside, as nobody but us; whole or absent."""
    if os.path.isdir(target):
        return
    temporary = "{}.{}.tmp".format(target, os.getpid())
    _remove(temporary)
    os.makedirs(temporary, mode=0o700)
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                _extract(archive, member, temporary)
                yield
        os.rename(temporary, target)
    except (tarfile.TarError, FileExistsError) as error:
        raise SpoolError("the code cannot be unpacked: {}".format(error)) from error
    finally:
        if not os.path.isdir(target):
            _remove(temporary)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    parts = member.name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in member.name:
        raise SpoolError("the code holds a path that leads out of it: {!r}".format(member.name))
    path = _inside(folder, member.name)
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o755)  # whatever the umask: the files are the job's, not the agent's
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if member.issym():
        end = os.path.normpath(os.path.join(os.path.dirname(member.name), member.linkname))
        if os.path.isabs(member.linkname) or end == ".." or end.startswith("../"):
            raise SpoolError("the code holds a link that leads out of it: {!r}".format(member.name))
        os.symlink(member.linkname, path)
        return
    source = archive.extractfile(member) if member.isreg() else None
    if source is None:
        raise SpoolError("the code holds something that is no file: {!r}".format(member.name))
    mode = 0o755 if member.mode & 0o100 else 0o644  # never setuid, whatever it says
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as stream:
        os.fchmod(stream.fileno(), mode)
        shutil.copyfileobj(source, stream, BLOCK)


def _inside(folder: str, path: str) -> str:
    """The full path. Raises SpoolError where a link on the way leads out of the folder."""
    full = os.path.join(folder, path)
    root = os.path.realpath(folder)
    if not os.path.realpath(full).startswith(root + os.sep):
        raise SpoolError("{!r} leads out of {}".format(path, folder))
    return full


def _read(path: str) -> Any:
    """The listing that was announced, None where there is none or it is damaged."""
    try:
        return storage.parsed((wire.read_json(path) or {})["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _remove(path: str) -> None:
    """Renamed first, so that half of it never looks like the whole."""
    if not os.path.lexists(path):
        return
    folder, name = os.path.split(path)
    doomed = os.path.join(folder, ".{}.{}.old.tmp".format(name.lstrip("."), os.getpid()))
    with contextlib.suppress(OSError):
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(path, doomed)
        shutil.rmtree(doomed)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
