"""`gpq submit --snapshot`: the code as it is now, in an archive named by its SHA-256, durable in
the daemon's state directory.

In a git repository it has the committed files with later changes, and files that are neither
tracked nor ignored. Elsewhere it has the directory. Links that point outside are refused. Equal
code has the same name, for every user at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from gpq_agent import wire

from gpq import paths
from gpq.errors import GpqError, UsageError
from gpq.folders import make_private

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
    top, git_folder = _repository(os.path.realpath(cwd))
    root = top or os.path.realpath(cwd)
    kind = "a copy of the directory, no git"
    if top:
        listing, commit, state = _list_files(top, git_folder)
        kind = f"{f'commit {commit[:12]}' if commit else 'git, nothing committed yet'}, {state}"
    names = sorted(set(listing if top else _all(root)))
    if not names:
        raise UsageError(
            f"there are no files for a snapshot in {root}", "choose another directory with --cwd"
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
    code = _write(lambda archive: _fill(archive, root, names, "" if there else inside))
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


# What git sees of a repository. Its settings and its hooks name programs (filters, file monitors,
# transports), so git reads a folder of ours without them, and gpq runs nothing of a repository.
PARTS = frozenset({"index", "objects", "refs", "packed-refs", "reftable", "info", "shallow"})
# settings that say how to compare, and name no program
OF_CORE = ("filemode", "autocrlf", "eol", "symlinks", "ignorecase", "excludesfile")
EXTENSIONS = ("objectformat", "refstorage")
VALUES = rf"^(core\.({'|'.join(OF_CORE)})|extensions\.({'|'.join(EXTENSIONS)}))$"


def _repository(path: str) -> tuple[str, str]:
    """The top of the repository that contains `path`, and its .git. "" twice outside one. Raises
    UsageError for one that gpq cannot read: a copy of the directory would have other files."""
    while not (folder := _git_folder(path)):
        if os.path.ismount(path):
            return "", ""
        path = os.path.dirname(path)
    if not shutil.which("git"):
        raise UsageError(
            f"{path} is a git repository, but there is no git on this machine",
            "install git, or submit without --snapshot",
        )
    return path, folder


def _git_folder(top: str) -> str:
    """The .git of a repository, "" if there is none. Raises UsageError for a broken one."""
    path = os.path.join(top, ".git")
    if not os.path.lexists(path):
        return ""
    try:
        if not os.path.isdir(path):  # of a submodule, or of another work tree
            with open(path, errors="surrogateescape") as stream:
                path = os.path.join(top, stream.read(4096).rstrip("\n").removeprefix("gitdir: "))
        with open(os.path.join(path, "HEAD")):
            return path
    except OSError as error:
        raise _unlisted_error(top, str(error)) from None


def _unlisted_error(top: str, problem: str) -> UsageError:
    return UsageError(
        f"git cannot list the files in {top}: {problem}",
        "see what `git status` says there, or submit without --snapshot",
    )


def _list_files(top: str, git_folder: str) -> tuple[list[str], str, str]:
    """(paths from the top with files of submodules and without removed files, commit, state).
    Raises UsageError if git cannot list the files."""
    try:
        with tempfile.TemporaryDirectory(prefix="gpq-") as place:
            git = _without_programs(place, top, git_folder)
            files = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
            commit = os.fsdecode(git("rev-parse", "--verify", "--quiet", "HEAD").stdout).strip()
            changes = git("status", "--porcelain", "--no-renames", "--ignore-submodules=dirty")
        problem = _complaint(files) if files.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        raise _unlisted_error(top, problem)
    state = "dirty" if changes.stdout else "clean"
    if changes.returncode:  # in a partial clone, which git would complete now
        state = "changes unknown"
    names = []
    for name in filter(None, os.fsdecode(files.stdout).split("\0")):
        path = os.path.join(top, name)
        if os.path.isdir(path) and not os.path.islink(path):
            # A submodule, or another repository in this one. It is empty if never fetched.
            if inner_folder := _git_folder(path):
                inner_names, _, inner_state = _list_files(path, inner_folder)
                names += [os.path.join(name, inner_name) for inner_name in inner_names]
                state = inner_state if state == "clean" else state
        elif os.path.lexists(path):
            names.append(name)
    return names, commit, state


def _complaint(answer: subprocess.CompletedProcess[Any]) -> str:
    return os.fsdecode(answer.stderr).strip().rpartition("\n")[2]


def _without_programs(
    place: str, top: str, git_folder: str
) -> Callable[..., subprocess.CompletedProcess[Any]]:
    """Makes the folder that git reads, in `place`. Returns how to run git in `top`."""
    common = git_folder
    with contextlib.suppress(FileNotFoundError), open(f"{git_folder}/commondir") as stream:
        common = os.path.join(git_folder, stream.read().rstrip("\n"))
    for name, source in (("own", git_folder), ("common", common)):
        os.mkdir(f"{place}/{name}")
        shutil.copyfile(f"{source}/HEAD", f"{place}/{name}/HEAD")
        for part in os.listdir(source):
            if part in PARTS or part.startswith("sharedindex."):
                os.symlink(os.path.abspath(f"{source}/{part}"), f"{place}/{name}/{part}")
    with open(f"{place}/own/commondir", "w") as stream:
        stream.write("../common")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ["GIT_DIR"] = f"{place}/own"
    run: Callable[..., subprocess.CompletedProcess[Any]] = partial(
        subprocess.run, stdin=subprocess.DEVNULL, capture_output=True, cwd=place, check=False
    )
    values = {"core.excludesfile": f"{environ.get('XDG_CONFIG_HOME') or '~/.config'}/git/ignore"}
    for of in ([], ["--no-includes", f"--file={common}/config"]):
        answer = run(["git", "config", "-z", *of, "--get-regexp", VALUES], env=environ)
        if answer.returncode > 1:  # 1: there is none
            raise OSError(_complaint(answer))
        items = (item.partition("\n") for item in os.fsdecode(answer.stdout).split("\0"))
        values |= {name: value for name, _, value in items if value}
    values["core.excludesfile"] = os.path.expanduser(values["core.excludesfile"])
    with open(f"{place}/common/config", "w") as stream:
        stream.write("[core]\nrepositoryformatversion = 1\n[extensions]\n")
        for name in EXTENSIONS:
            if value := values.pop(f"extensions.{name}", ""):
                stream.write(f"{name} = {json.dumps(value)}\n")
    options = [word for name, value in values.items() for word in ("-c", f"{name}={value}")]
    environ |= {"GIT_WORK_TREE": top, "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_NOSYSTEM": "1"}
    environ |= {"HOME": place, "XDG_CONFIG_HOME": place}  # the user's settings name programs, too
    return lambda *words: run(["git", *options, "-C", top, *words], env=environ)


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


def keep_stdin(data: bytes) -> str:
    """The SHA-256 of an archive with only this. Raises GpqError for a full disk."""
    member = tarfile.TarInfo(wire.STDIN)
    member.size = len(data)
    return _write(lambda archive: archive.addfile(member, io.BytesIO(data)))


def _fill(archive: tarfile.TarFile, root: str, names: list[str], folder_too: str) -> None:
    """Without owners and times, so that equal code makes an equal archive. `folder_too`: a folder
    that none of `names` creates."""
    for name in names:
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
    if folder_too:
        entry = tarfile.TarInfo(folder_too)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)


def _write(fill: Callable[[tarfile.TarFile], None]) -> str:
    """Writes an archive, which is on disk before this returns. Returns its SHA-256."""
    folder = paths.snapshots()
    make_private(folder)
    temporary = ""
    try:
        # threads share a pid
        descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
        with os.fdopen(descriptor, "wb") as stream:
            with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
                fill(archive)
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
            f"cannot keep files of the job: {error}",
            f"check {folder}, and that all files are readable",
        ) from None
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
    return digest.hexdigest()
