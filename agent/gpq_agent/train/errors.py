"""The error that a training script can get: the problem in one line, and what to do."""


class GpqTrainError(RuntimeError):
    """`message` is one line, and `hint` says what to change. It prints as both."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message if not hint else "{}\nhint: {}".format(message, hint))
        self.message = message
        self.hint = hint


class UnusableGpu(GpqTrainError):
    """CUDA refuses this replica's GPU."""
