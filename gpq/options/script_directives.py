"""The head of a script: its `#SBATCH` and `#GPQ` lines, and its interpreter. Reads one file and
interprets no option."""

from __future__ import annotations

import os
import re
import shlex

import msgspec

from gpq.errors import UsageError

MOST_READ = 1 << 18  # bytes
SHELLS = (".sh", ".bash", ".zsh", ".ksh", ".csh", ".sbatch", ".slurm", ".sub", ".job")
LINE = re.compile(r"#(SBATCH|GPQ)(?:\s+(.*))?")
PYTHON_LINE = re.compile(r"#!.*\bpython")
MARK = "\ufeff"
SHELL = re.compile(r"\b(?:ba|da|k|z)?sh\b")
# runs all of a script, so that its commands find nothing left on stdin
RUN_STDIN = 'eval "$(cat)"'
SRUN = re.compile(r"^[^#\n]*\bsrun\s", re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    """`slurm` and `own`: the words of each `#SBATCH` and each `#GPQ` line, with their line
    number."""

    path: str  # absolute
    python: bool  # run as a training script, otherwise as a command
    interpreter: list[str] = []  # in its first line
    slurm: list[tuple[str, list[str]]] = []
    own: list[tuple[str, list[str]]] = []
    calls_srun: bool = False
    text: str = ""  # its beginning
    stream: bool = False  # it came through a pipe or on stdin, and the job reads it there

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def read(path: str) -> Script | None:
    """None if it is not a script, or unreadable. Raises UsageError for lines that cannot be split
    into words."""
    try:
        with open(path, "rb") as stream:
            text = stream.read(MOST_READ).decode("utf-8", "replace")
    except (OSError, ValueError):  # the latter: a NUL in the path
        return None
    return parse(path, text)


def parse(path: str, text: str) -> Script | None:
    """As `read`, from its text. `path`: absolute, or "stdin"."""
    file = shlex.quote(path) if os.path.isabs(path) else "FILE"
    text, marked = text.removeprefix(MARK), text.startswith(MARK)
    first = text.partition("\n")[0]
    python = path.endswith(".py") or bool(PYTHON_LINE.match(first))
    lines: dict[str, list[tuple[str, list[str]]]] = {"SBATCH": [], "GPQ": []}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break  # only comments and empty lines come before
        if match := LINE.fullmatch(line.rstrip()):
            where = f"#{match[1]} in {os.path.basename(path)}, line {number}"
            lines[match[1]].append((where, words(match[2] or "", where)))
    slurm, own = lines["SBATCH"], lines["GPQ"]
    if not (python or slurm or own or first.startswith("#!") or path.endswith(SHELLS)):
        return None
    if not python and first.endswith("\r"):
        raise UsageError(
            f"{path} has DOS line endings, so a shell cannot run it", f"sed -i 's/\\r$//' {file}"
        )
    if not python and marked:
        raise UsageError(
            f"{path} begins with a byte order mark, which hides its first line from the system",
            f"sed -i '1s/^\\xEF\\xBB\\xBF//' {file}",
        )
    interpreter = first[2:].strip().split(None, 1) if first.startswith("#!") else []
    return Script(
        path, python, interpreter, slurm, own, not python and bool(SRUN.search(text)), text
    )


def read_stream(path: str, text: str) -> Script:
    """A shell script that came through a pipe or on stdin. Raises UsageError for anything else."""
    script = parse("stdin", text) if text.removeprefix(MARK).startswith("#!") else None
    if script is None or not any(SHELL.search(word) for word in script.interpreter):
        raise UsageError(
            f"{path} is no shell script: its first line must name a shell, such as #!/bin/bash",
            "save it to a file, or name its interpreter: gpq submit -- python3 - < FILE",
        )
    return msgspec.structs.replace(script, stream=True)


def command(script: Script, cwd: str, *, relative: bool = False) -> list[str]:
    """How it runs in `cwd`: itself, or through the interpreter that it names. `relative`: never by
    an absolute path."""
    if script.stream:
        return [*script.interpreter, "-c", RUN_STDIN, script.name]
    path = os.path.relpath(script.path, cwd)
    if path.startswith("..") and not relative:
        path = script.path
    elif os.sep not in path:
        path = os.path.join(".", path)
    if script.interpreter and os.access(script.path, os.X_OK):
        return [path]
    return [*(script.interpreter or ["/bin/sh"]), path]


def words(text: str, where: str) -> list[str]:
    """Split as a shell would, up to a word that starts a comment. Raises UsageError."""
    reader = shlex.shlex(text, posix=True)
    reader.whitespace_split, reader.commenters = True, ""
    split_words: list[str] = []
    try:
        for word in reader:
            if word.startswith("#"):
                break
            split_words.append(word)
    except ValueError as error:
        raise UsageError(f"{where}: {error}", "quote it as in a shell") from None
    return split_words
