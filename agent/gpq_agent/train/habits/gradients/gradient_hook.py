"""A parameter has a hook, which may change its gradient before a batch is complete.

Hooks of modules and activations are covered by gpq check.
"""

from gpq_agent.train.events import BatchEnd
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.internals import gradient_hooks

WATCHED_STEPS = 5  # steps of an attempt after which new hooks are looked for


class GradientHook(Observer):
    """Looks for hooks at the first batch, in the first steps and after each epoch. Those of wandb
    only read."""

    codes = ("grad-hook",)

    def training_begins(self) -> Habits:
        for item in self.job.parameters():
            for hooks in gradient_hooks(item):
                for hook in hooks.values():
                    module = getattr(hook, "__module__", None) or ""
                    if module.partition(".")[0] != "wandb":
                        return [Habit("grad-hook", getattr(hook, "__qualname__", repr(hook)))]
        return ()

    def batch_ends(self, event: BatchEnd) -> Habits:
        return self.training_begins() if event.step < WATCHED_STEPS else ()

    def epoch_ends(self) -> Habits:
        return self.training_begins()
