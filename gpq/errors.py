"""All errors that a user can meet. `message` (one line) says what is wrong, `hint` says what to do,
and `quoted` has lines of another program that explain it.

    GpqError              1   something failed
    |-- NodeSilent        1   a server does not answer now, but may later
    |-- StoreFailed       1   the daemon cannot store its state, so it stops
    |-- UsageError        2   the command line or the configuration is wrong
    |-- DaemonUnreachable 3   no daemon answers, or it has another version
    |-- NotFound          4   no such job, server or user
    |-- Refused           5   understood and possible, but not done
    |-- NeverStarts       6   a job that is waited for does not start on its own
    |-- TimedOut        124   `--timeout` of `gpq wait` or `gpq demo` ran out
    `-- Interrupted     130   Ctrl-C, or 143 for SIGTERM

Any other exception is a bug and shows its traceback. Whoever raises one of these has changed
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence


class GpqError(Exception):
    """`message` says what is wrong, and `hint` what to do. `code` is the exit status of the
    command. `quoted`: output of another program, line by line."""

    code = 1

    def __init__(self, message: str, hint: str = "", quoted: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.quoted = tuple(quoted)


class NodeSilent(GpqError):
    pass


class StoreFailed(GpqError):
    pass


class UsageError(GpqError):
    code = 2


class DaemonUnreachable(GpqError):
    code = 3


class NotFound(GpqError):
    code = 4


class Refused(GpqError):
    code = 5


class NeverStarts(GpqError):
    code = 6


class TimedOut(GpqError, TimeoutError):
    """Also a TimeoutError of Python."""

    code = 124


class Interrupted(GpqError):
    """A signal interrupted a command that had to say or end something first."""

    code = 130

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + signal


BY_CODE: dict[int, type[GpqError]] = {
    kind.code: kind
    for kind in (GpqError, UsageError, DaemonUnreachable, NotFound, Refused, NeverStarts, TimedOut)
}


def expect_utf8(text: str, variable: str = "") -> None:
    """Raises UsageError for a word with other bytes, which Python keeps as halves of surrogate
    pairs, or for such a value of a variable, which may be a secret."""
    try:
        text.encode()
    except UnicodeEncodeError:
        what, hint = f"the variable {variable}", "unset it, or give it another value with --env"
        if not variable:
            chars = [
                f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else char
                for char in text
            ]
            shown = "".join(chars).encode("utf-8", "backslashreplace").decode()
            what, hint = f"`{shown}`", "rename the file, or write it in UTF-8"
        raise UsageError(f"{what} contains a byte that is not UTF-8", hint) from None
