"""What has happened in the current micro-batch, for a further backward call in it."""

from typing import Any, List, Set

from .marks import Parameter
from .parameters import parameters_of


class Recipients:
    """Most micro-batches have one backward call. So this only takes notes, and `catch_up` makes
    sets of them."""

    def __init__(self) -> None:
        self.place = 0  # in its step
        self.recipients: Set[Parameter] = set()  # whose gradients were stashed
        self.past_step: Set[Parameter] = set()  # whose optimizer made its step
        # Notes that are not in the sets yet.
        self.new_recipients: List[Parameter] = []
        self.new_steps: List[Any] = []  # optimizers

    def begin(self, place: int) -> None:
        """Another micro-batch."""
        self.place = place
        self.past_step.clear()
        self.recipients.clear()
        self.new_steps.clear()
        self.new_recipients = []

    def catch_up(self) -> None:
        """Another backward call in this micro-batch is about to run."""
        for optimizer in self.new_steps:
            self.past_step.update(parameters_of(optimizer))
        self.new_steps.clear()
        self.recipients.update(self.new_recipients)
        self.new_recipients = []
