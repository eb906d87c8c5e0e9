"""A layer computes statistics over the current batch."""

import torch

from gpq_agent.train.checkpoints.state_parts import unwrap
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.internals import BatchNorm as AnyBatchNorm


class BatchNorm(Observer):
    """Over the part on one device, or over all replicas with SyncBatchNorm. Checked once models are
    as they are trained, because a layer in eval mode computes none."""

    codes = ("batch-norm", "sync-batch-norm")

    def training_begins(self) -> Habits:
        synchronised = ""
        for model in self.job.models:
            for name, layer in unwrap(model).inner.named_modules():
                if not isinstance(layer, AnyBatchNorm) or not layer.training:
                    continue
                if not isinstance(layer, torch.nn.SyncBatchNorm):
                    return [Habit("batch-norm", name)]
                synchronised = synchronised or name or type(layer).__name__
        return [Habit("sync-batch-norm", synchronised)] if synchronised else ()
