"""The one error that a training script can meet: what is so, in one line, and what to do."""


class GpqTrainError(RuntimeError):
    """`message` is one line; `hint` says what to change. Printed as both."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message if not hint else "{}\nhint: {}".format(message, hint))
        self.message = message
        self.hint = hint


class UnusableGpu(GpqTrainError):
    """CUDA refuses the GPU that this replica was given."""
