"""`gpq submit --snapshot`: the code as it is now, in an archive named by its SHA-256, durable in
the daemon's state directory.

In a git repository it has the committed files with later changes, and files that are neither
tracked nor ignored. Elsewhere it has the directory. Links that point outside are refused. Equal
code has the same name, for every user at any time.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpq import paths
from gpq.errors import GpqError, UsageError

MOST_BYTES = 200_000_000
MOST_FILES = 20_000
# for a directory without git
LEFT_OUT = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules"})
HINT = "list data in .gitignore, or submit without --snapshot"


class Frozen(NamedTuple):
    """`code` is the SHA-256, `cwd` the working directory in it, `summary` a description for
    people."""

    code: str
    cwd: str
    summary: str
    root: str


def freeze(cwd: str) -> Frozen:
    """A snapshot of the repository that contains `cwd`, or of `cwd`. Raises UsageError if it cannot
    be made, GpqError for a full disk."""
    top = _git(cwd, "rev-parse", "--show-toplevel")
    root = os.path.realpath(top.rstrip("\n") if top else cwd)
    names = sorted(set(_tracked(root) if top else _all(root)))
    if not names:
        raise UsageError(
            f"there are no files for a snapshot in {root}",
            "choose another directory with --cwd",
        )
    if len(names) > MOST_FILES:
        raise UsageError(f"{root} has {len(names)} files, more than {MOST_FILES}", HINT)
    size = sum(os.lstat(os.path.join(root, name)).st_size for name in names)
    if size > MOST_BYTES:
        largest = max(names, key=lambda name: os.lstat(os.path.join(root, name)).st_size)
        problem = (
            f"the code in {root} has {size // 1_000_000} MB, more than {MOST_BYTES // 1_000_000}:"
            f" the largest file is {largest}"
        )
        raise UsageError(problem, HINT)
    inside = os.path.relpath(os.path.realpath(cwd), root)
    there = inside == "." or any(name.startswith(f"{inside}/") for name in names)
    code = _write(root, names, "" if there else inside)
    kind = _commit(root) if top else "a copy of the directory, no git"
    return Frozen(code, inside, f"{kind}, {len(names)} files, sha256 {code[:12]}", root)


def within(frozen: Frozen, script: str, cwd: str) -> str:
    """The script's path in the copy, from its working directory. Raises UsageError for a script
    outside it."""
    path = os.path.realpath(script)
    if not path.startswith(frozen.root + os.sep):
        raise UsageError(
            f"the script {script} is outside the snapshot of {frozen.root}",
            "submit it from its own directory",
        )
    return os.path.relpath(path, os.path.realpath(cwd))


# The settings of a repository name programs: a file monitor, hooks, filters, diff drivers. gpq runs
# none of them.
INERT = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "status.submoduleSummary=false",
    "submodule.recurse=false",
)
FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"


def _git(folder: str, *words: str, settings: Sequence[str] = INERT) -> str:
    """Git's answer. "" without git, or outside a repository. Runs nothing that the repository
    names."""
    options = [word for setting in settings for word in ("-c", setting)]
    command = ["git", *options, "-C", folder, *words]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=env
        )
    except FileNotFoundError:
        return ""
    return os.fsdecode(process.stdout) if process.returncode == 0 else ""


def _without_filters(root: str) -> list[str]:
    """Settings that turn off the programs through which git filters compared files."""
    names = _git(root, "config", "--name-only", "-z", "--get-regexp", FILTERS).split("\0")
    return [f"{name}={'false' if name.endswith('required') else ''}" for name in names if name]


def _commit(root: str) -> str:
    commit = _git(root, "rev-parse", "HEAD").strip()
    look = ("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty")
    dirty = bool(_git(root, *look, settings=[*INERT, *_without_filters(root)]))
    return (f"commit {commit[:12]}" if commit else "git, nothing committed yet") + (
        ", dirty" if dirty else ", clean"
    )


def _tracked(root: str, below: str = "") -> Iterator[str]:
    """Paths from the top, with files of submodules, without removed files."""
    listed = _git(
        os.path.join(root, below), "ls-files", "-z", "--cached", "--others", "--exclude-standard"
    )
    for name in filter(None, listed.split("\0")):
        path = os.path.join(below, name)
        full = os.path.join(root, path)
        if os.path.isdir(full) and not os.path.islink(full):
            if _is_top(full):
                # A submodule, or another repository in this one. It is empty if never fetched.
                yield from _tracked(root, path)
        elif os.path.lexists(full):
            yield path


def _is_top(folder: str) -> bool:
    return _git(folder, "rev-parse", "--show-toplevel").rstrip("\n") == os.path.realpath(folder)


def _all(root: str) -> Iterator[str]:
    count = size = 0
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in [*names, *links]:
            full = os.path.join(folder, name)
            count, size = count + 1, size + os.lstat(full).st_size
            if count > MOST_FILES or size > MOST_BYTES:
                limit = f"{MOST_FILES} files or {MOST_BYTES // 1_000_000} MB"
                raise UsageError(
                    f"{root} is not a git repository and has more than {limit}",
                    f"run `git init` there and {HINT}",
                )
            yield os.path.relpath(full, root)


def _write(root: str, names: list[str], folder_too: str) -> str:
    """Writes the archive, which is on disk before this returns. Returns its SHA-256. `folder_too`:
    a folder that none of `names` creates."""
    folder = paths.snapshots()
    temporary = ""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # threads share a pid
        descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
        with os.fdopen(descriptor, "wb") as stream:
            with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for name in names:
                    _add(archive, root, name)
                if folder_too:
                    entry = tarfile.TarInfo(folder_too)
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(entry)
            stream.flush()
            os.fsync(stream.fileno())
        with open(temporary, "rb") as written:
            digest = hashlib.sha256()
            for block in iter(lambda: written.read(1 << 20), b""):
                digest.update(block)
        os.replace(temporary, os.path.join(folder, f"{digest.hexdigest()}.tar"))
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise GpqError(
            f"cannot make a snapshot of the code: {error}",
            f"check {folder}, and that all files are readable",
        ) from None
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
    return digest.hexdigest()


def _add(archive: tarfile.TarFile, root: str, name: str) -> None:
    """Without owner and time, so that equal code makes an equal archive."""
    full = os.path.join(root, name)
    status = os.lstat(full)
    member = tarfile.TarInfo(name)
    if stat.S_ISLNK(status.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(full)
        end = os.path.normpath(os.path.join(os.path.dirname(name), member.linkname))
        if os.path.isabs(member.linkname) or end == ".." or end.startswith("../"):
            raise UsageError(
                f"the link {name} points outside {root}",
                "remove it, list it in .gitignore, or copy its target",
            )
        archive.addfile(member)
    elif stat.S_ISREG(status.st_mode):
        member.mode = 0o755 if status.st_mode & 0o100 else 0o644
        with open(full, "rb") as stream:
            member.size = os.fstat(stream.fileno()).st_size
            archive.addfile(member, stream)
