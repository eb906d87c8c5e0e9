"""The first program that gpq runs on a server. It installs the agent if it is missing, then becomes
the agent.

ssh carries its source, so it stands alone and never imports gpq_agent. One request on stdin says
which agent. Each answer is one line that starts with the request's random word. After the last
answer this process becomes the agent. No text of the request ever reaches a shell.

A block is 8 hex digits (its length) and that many bytes. The request is a block of JSON:
  {"word", "sha256", "arguments"}   -> {"ok", "have"}. Without `have` the bundle follows as a block
                                    -> {"ok"}
Every answer may be {"ok": false, "error", "hint"} instead, after which it ends.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import zlib
from typing import Dict, List

PACKAGE = "gpq_agent"
PATH = re.compile(r"gpq_agent(/[a-z_]+)*/[a-z_]+\.py")
MOST = 16 << 20  # bytes of an unpacked bundle
# The login variables that the agent keeps. It must not get the PYTHONPATH of another Python, and
# jobs get their variables elsewhere (login.py).
KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LD_LIBRARY_PATH", "SSH_CONNECTION")


class Refusal(Exception):
    """`message` says what is wrong, `hint` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def main() -> None:
    request = json.loads(block().decode("utf-8"))
    word = str(request["word"])
    try:
        become_agent(word, str(request["sha256"]), list(map(str, request["arguments"])))
    except Refusal as refusal:
        answer(word, {"ok": False, "error": refusal.message, "hint": refusal.hint})
    except OSError as error:
        location = " {}".format(error.filename) if error.filename else ""
        message = "cannot write{}: {}".format(location, error.strerror)
        hint = "make it writable, and check that the disk is not full"
        answer(word, {"ok": False, "error": message, "hint": hint})


def take(size: int) -> bytes:
    """Read exactly this many bytes of stdin. The bytes after them are for the program that this
    process becomes."""
    pieces = []
    while size:
        piece = os.read(0, min(size, 1 << 16))
        if not piece:
            sys.exit(0)  # nobody is at the other end any more
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def block() -> bytes:
    size = int(take(8), 16)
    if size > MOST:
        sys.exit(1)
    return take(size)


def answer(word: str, fields: Dict[str, object]) -> None:
    data = "{} {}\n".format(word, json.dumps(fields)).encode("utf-8")
    while data:
        data = data[os.write(1, data) :]


def become_agent(word: str, digest: str, arguments: List[str]) -> None:
    if not re.fullmatch("[0-9a-f]{64}", digest):
        problem = "the daemon named no bundle"
        raise Refusal(problem, "gpq on the daemon's machine is damaged: reinstall it")
    home = os.path.expanduser("~")
    store = home
    for name in (".gpq", "agent"):
        store = os.path.join(store, name)
        private(store)
    target = os.path.join(store, digest)
    have = digest_of(target) == digest
    answer(word, {"ok": True, "have": have})
    if not have:
        install(store, target, digest, block())
        answer(word, {"ok": True})
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment["PYTHONPATH"] = target
    os.chdir("/")
    argv = [sys.executable, "-B", "-m", "gpq_agent.node", *arguments]
    os.execve(sys.executable, argv, environment)


def private(folder: str) -> None:
    """Make a folder that only this user may enter. Raises Refusal if it belongs to somebody else or
    is not a folder."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise Refusal("{} is not a folder of your own".format(folder), "move it away")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(folder, 0o700)


def digest_of(target: str) -> str:
    """The digest of the folder's content. "" if it cannot be a bundle, because it has a link, a
    file of another user or an extra file."""
    files = {}
    try:
        status = os.lstat(target)
        if (
            not stat.S_ISDIR(status.st_mode)
            or status.st_uid != os.geteuid()
            or stat.S_IMODE(status.st_mode) & 0o022
        ):
            return ""
        if os.listdir(target) != [PACKAGE]:
            return ""
        for folder, folders, names in os.walk(os.path.join(target, PACKAGE)):
            if "__pycache__" in folders:  # unknown who compiled them, so never use them
                folders.remove("__pycache__")
                shutil.rmtree(os.path.join(folder, "__pycache__"), ignore_errors=True)
            for name in names + folders:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid():
                    return ""
            for name in names:
                path = os.path.join(folder, name)
                with open(path, "rb") as stream:
                    files[os.path.relpath(path, target)] = stream.read().decode("utf-8")
    except (OSError, ValueError):
        return ""
    return hashlib.sha256(pack(files)).hexdigest()


def pack(files: Dict[str, str]) -> bytes:
    """The same bytes for the same content on every Python. The digest is computed from them."""
    return json.dumps(files, sort_keys=True, separators=(",", ":")).encode("ascii")


def install(store: str, target: str, digest: str, archive: bytes) -> None:
    """Write elsewhere, sync, then rename, so that a folder with this name is complete or absent."""
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(archive, MOST)
    except zlib.error:
        content = b""
    if unpacker.unconsumed_tail or hashlib.sha256(content).hexdigest() != digest:
        hint = "try again. If it happens every time, the connection alters data"
        raise Refusal("the agent arrived damaged", hint)
    files = json.loads(content.decode("ascii"))
    if any(PATH.fullmatch(path) is None for path in files):
        words = "the agent contains unexpected files"
        raise Refusal(words, "reinstall gpq on the daemon's machine")
    temporary = tempfile.mkdtemp(prefix=".new-", dir=store)
    try:
        for path, text in sorted(files.items()):
            full_path = os.path.join(temporary, path)
            os.makedirs(os.path.dirname(full_path), mode=0o700, exist_ok=True)
            put(full_path, text.encode("utf-8"))
        if digest_of(target) != digest:  # otherwise another connection was faster
            discard(target)
            os.rename(temporary, target)
            sync(store)
    except OSError:
        if digest_of(target) != digest:  # as above
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if digest_of(target) != digest:
        problem = "{} differs from what gpq wrote there".format(target)
        raise Refusal(problem, "check the server's disk")


def discard(target: str) -> None:
    """Make room. gpq has checked what is there, and it is not what its name says."""
    if os.path.islink(target) or os.path.isfile(target):
        os.unlink(target)
    elif os.path.isdir(target):
        shutil.rmtree(target)


def put(path: str, content: bytes) -> None:
    """Write a file completely or not at all."""
    temporary = "{}.{}.tmp".format(path, os.getpid())
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is None:
            error.filename = path
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        problem = "cannot write {}: {}".format(path, error.strerror)
        raise Refusal(problem, "check that the folder exists and has space") from error
    sync(os.path.dirname(path))


def sync(folder: str) -> None:
    descriptor = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
