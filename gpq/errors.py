"""Every error that a user can meet. What is so goes in `message` (one line), what to do about it in
`hint`, and lines of another program's that explain it in `quoted`.

    GpqError              1   something failed
    |-- NodeSilent        1   a server cannot be asked now; asked later it may answer
    |-- StoreFailed       1   the state can no longer be kept: the daemon ends
    |-- UsageError        2   the command line or the configuration is wrong
    |-- DaemonUnreachable 3   no daemon answers, or one of another version
    |-- NotFound          4   no such job, node or user
    |-- Refused           5   understood, possible in principle, and not done
    |-- TimedOut        124   `--timeout` of `gpq wait` or `gpq demo` ran out
    `-- Interrupted     130   Ctrl-C; 143 SIGTERM

Anything else that escapes is a bug and shows its traceback. Whatever is raised here changed
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence


class GpqError(Exception):
    """`message` says what is so, `hint` what to do; `code` is the exit status of the command.
    `quoted`: what another program printed, a line each, to be shown as lines."""

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


class TimedOut(GpqError, TimeoutError):
    """Python's own TimeoutError as well."""

    code = 124


class Interrupted(GpqError):
    """By a signal, in a command that had something to say or to end first."""

    code = 130

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + signal


BY_CODE: dict[int, type[GpqError]] = {
    kind.code: kind
    for kind in (GpqError, UsageError, DaemonUnreachable, NotFound, Refused, TimedOut)
}
