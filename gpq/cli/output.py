"""The only place where commands print: results on stdout, notes on stderr, and JSON as the daemon
sent it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gpq.cli import streams
from gpq.errors import UsageError
from gpq.views import plain

if TYPE_CHECKING:
    from rich.console import Console


def say(*lines: str) -> None:
    """Print lines on stdout, escaped."""
    sys.stdout.write("".join(plain.safe(line) + "\n" for line in lines))
    sys.stdout.flush()


def note(*lines: str) -> None:
    """Print notes on stderr, escaped."""
    sys.stderr.write("".join(f"note: {plain.safe(line)}\n" for line in lines))


class Progress:
    """One line on stderr that changes in place, on a terminal only. "" removes it."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._shown = not quiet and sys.stderr.isatty()

    def __call__(self, line: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{plain.safe(line)}")
            sys.stderr.flush()


@contextlib.contextmanager
def on_interrupt(*lines: str) -> Iterator[None]:
    """On Ctrl-C, say what continues without this command."""
    try:
        yield
    except KeyboardInterrupt:
        note(*lines)
        raise


def failure(problem: str, hint: str) -> None:
    """Print a line and a hint on stderr, as for an error, when the command continues."""
    sys.stderr.write(
        f"gpq: {plain.safe(problem)}\n" + (f"hint: {plain.safe(hint)}\n" if hint else "")
    )


def emit(result: Any) -> None:
    """Print one line of JSON on stdout, in ASCII, so that names of jobs cannot control the
    terminal."""
    import json

    import msgspec

    sys.stdout.write(json.dumps(msgspec.to_builtins(result)) + "\n")
    sys.stdout.flush()


def result(answer: Any, *lines: str, as_json: bool) -> None:
    """Print the lines, or the answer as JSON."""
    if as_json:
        emit(answer)
    else:
        say(*lines)


def confirm(*lines: str, result: Any = None) -> None:
    """Print what the command has done: `lines`, or `result` as JSON.

    If that fails, the lines go to stderr, and the exit code still says what was done. A script that
    tries again after a failure would do it twice.
    """
    try:
        if result is None:
            say(*lines)
        else:
            emit(result)
    except OSError as error:
        streams.complain(error)
        note(*lines)


def text(
    view: Callable[[Any, int, str], list[str]], answer: Any, color: str, *, as_json: bool = False
) -> None:
    """Print the lines of a view on stdout, as wide as the terminal, escaped, or the answer as
    JSON."""
    if as_json:
        emit(answer)
        return
    limit = plain.terminal_width()
    lines = map(plain.safe, view(answer, limit, "█" if plain.ellipsis() == "…" else "#"))
    if plain.wants_colour(color):
        lines = map(plain.tint, lines)
    sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.flush()


def check_file(option: str, path: str) -> None:
    """Raises UsageError if the file that an option names cannot be written."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(
            f"{option} {path}: cannot write there",
            "choose a file in a directory that exists and is writable",
        )


@contextlib.contextmanager
def replace_file(option: str, path: str) -> Iterator[str]:
    """Where to write the file. It replaces an older one completely or not at all. Raises
    UsageError."""
    part = f"{path}.{os.urandom(8).hex()}.part"  # a name that nobody can have taken
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise UsageError(
            f"{option} {path}: {error.strerror or error}", "choose a writable file"
        ) from None


def console(color: str, *, pipe: int = 120) -> Console:
    """A console of rich for a page that scrolls, as wide as the terminal, or `pipe` columns wide
    without a terminal."""
    return _console(color, plain.terminal_width() or pipe, terminal=plain.wants_colour(color))


def screen(color: str) -> Console:
    """A console of rich that fills the terminal and follows its size."""
    return _console(color, None, terminal=True)


def _console(color: str, width: int | None, *, terminal: bool) -> Console:
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise  # `fast_path` handles this for all output

    coloured = plain.wants_colour(color)
    return Quiet(
        width=width,
        force_terminal=terminal,
        no_color=not coloured,
        color_system="standard" if coloured else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
