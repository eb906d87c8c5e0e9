"""Errors that the agent reports to the daemon."""


class SpoolError(Exception):
    """One line for the daemon, a hint, and the kind of the error (wire.REFUSALS)."""

    def __init__(self, message: str, hint: str = "", kind: str = "wrong") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind
