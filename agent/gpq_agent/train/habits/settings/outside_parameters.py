"""An optimizer has parameters outside the wrapped models, in a loop without `job.loader()`."""

from torch.nn.parallel import DistributedDataParallel

from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class OutsideParameters(Observer):
    """Nothing averages their gradients over replicas. With `job.loader()` the library does it."""

    codes = ("outside-parameters",)

    def attempt_begins(self) -> Habits:
        models = self.job.models
        if not any(isinstance(model, DistributedDataParallel) for model in models):
            return ()
        inside = {id(item) for model in models for item in model.parameters()}
        groups = [group for optimizer in self.job.optimizers for group in optimizer.param_groups]
        if all(id(item) in inside for group in groups for item in group["params"]):
            return ()
        return [Habit("outside-parameters")]
