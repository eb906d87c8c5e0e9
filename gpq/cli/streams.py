"""The standard streams when something is wrong with them: closed, full, or read by nobody. Imports
little, because `gpq.__main__` imports this."""

import io
import os
import sys

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from typing import Any


def open_closed() -> None:
    """Put the null device where the shell has closed a standard stream (`gpq status <&-`), so that
    no file of gpq gets its number.

    Nothing can be read from a closed input, writing to a closed output fails, and what goes to
    closed errors is lost.
    """
    streams = (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    )
    for number, (name, mode, flags) in enumerate(streams):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, flags)
            if null == number:
                os.set_inheritable(null, True)
            else:
                os.dup2(null, number)
                os.close(null)
            stream = open(number, mode, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


class _Output(io.FileIO):
    """Standard output that remembers a failed write."""

    failed = False

    def write(self, data: "Any") -> "Any":
        try:
            return super().write(data)
        except OSError:
            self.failed = True
            raise


class _Errors(io.FileIO):
    """Standard error that loses what it cannot write. What a command does, and its exit code, do
    not depend on it."""

    def write(self, data: "Any") -> "Any":
        try:
            return super().write(data)
        except OSError:
            return len(data)


def watch() -> None:
    """Replace stdout by one that remembers failed writes, and stderr by one that survives them.

    Both escape what their encoding lacks (LANG=C, latin-1).
    """
    for number, name, kind in ((1, "stdout", _Output), (2, "stderr", _Errors)):
        stream = getattr(sys, name)
        is_original = stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper)
        if is_original and stream.fileno() == number:
            raw = kind(number, "w", closefd=False)
            stream = io.TextIOWrapper(
                raw if stream.write_through else io.BufferedWriter(raw),
                stream.encoding,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, stream)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def has_failed() -> bool:
    """Was it stdout that failed?"""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", getattr(sys.stdout, "buffer", None))
    if isinstance(raw, _Output) and raw.failed:
        return True
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def drop() -> None:
    """Keep Python from trying again when it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def complain(error: OSError) -> None:
    """Say that stdout has failed, and write no more to it."""
    drop()
    sys.stderr.write(f"gpq: cannot write the output: {error.strerror}\n")
