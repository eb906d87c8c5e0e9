"""What goes wrong here and is told to the daemon."""


class SpoolError(Exception):
    """What the daemon is told: one line, a hint, and of what kind it is (wire.REFUSALS)."""

    def __init__(self, message: str, hint: str = "", kind: str = "wrong") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind
