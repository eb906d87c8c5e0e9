"""The only place where commands print: results on stdout, remarks on stderr, JSON as the daemon
gave it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gpq.views import plain

if TYPE_CHECKING:
    from rich.console import Console


def say(*lines: str) -> None:
    """Lines on stdout, escaped."""
    sys.stdout.write("".join(plain.safe(line) + "\n" for line in lines))
    sys.stdout.flush()


def note(*lines: str) -> None:
    """Remarks on stderr, escaped."""
    sys.stderr.write("".join(f"note: {plain.safe(line)}\n" for line in lines))


@contextlib.contextmanager
def on_interrupt(*lines: str) -> Iterator[None]:
    """On Ctrl-C, say what continues without this command."""
    try:
        yield
    except KeyboardInterrupt:
        note(*lines)
        raise


def failure(problem: str, hint: str) -> None:
    """A line and a hint on stderr, as an error has them, of something that does not end the
    command."""
    sys.stderr.write(
        f"gpq: {plain.safe(problem)}\n" + (f"hint: {plain.safe(hint)}\n" if hint else "")
    )


def emit(result: Any) -> None:
    """One line of JSON on stdout, in ASCII: what a job named itself cannot reach the terminal."""
    import json

    import msgspec

    sys.stdout.write(json.dumps(msgspec.to_builtins(result)) + "\n")
    sys.stdout.flush()


def text(view: Callable[[Any, int, str], list[str]], answer: Any, color: str) -> None:
    """The lines of a view on stdout, as wide as the terminal. The view has escaped what is not its
    own."""
    limit = plain.terminal_width()
    lines = view(answer, limit, "█" if plain.ellipsis() == "…" else "#")
    if plain.wants_colour(color):
        lines = [plain.tinted(line) for line in lines]
    sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.flush()


def console(color: str, *, pipe: int = 120) -> Console:
    """A console of rich for a page that scrolls: as wide as the terminal, or `pipe` columns where
    there is none."""
    return _console(color, plain.terminal_width() or pipe, terminal=plain.wants_colour(color))


def screen(color: str) -> Console:
    """A console of rich that fills the terminal and follows its size."""
    return _console(color, None, terminal=True)


def _console(color: str, width: int | None, *, terminal: bool) -> Console:
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise  # the door knows what to do, as with all other output

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
