"""Fits that gpq refuses, one after the other. Writes what it says of each."""

import json
import os
import sys

import gpq_agent.train as gpq
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Manual(Net):
    automatic_optimization = False


class Skips(Net):
    def training_step(self, batch, batch_idx):
        return None


class Waits(Net):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        if batch_idx % 2:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        else:
            optimizer_closure()


class Seldom(Net):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 2}]


class Searches(Net):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


class Normalised(Net):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2)


DATA = TensorDataset(torch.ones(8, 2))
PLAIN = DataLoader(DATA, batch_size=2)
GROWN = {"gpq": {"max_batch_size": 4}}
BATCHES = torch.utils.data.BatchSampler(range(8), 2, drop_last=False)


class Buckets(torch.utils.data.BatchSampler):
    pass


CASES = {
    "manual": (Manual, PLAIN, {}),
    "stream": (Net, DataLoader(Stream(), batch_size=2), {}),
    "several": (Net, {"a": PLAIN, "b": PLAIN}, {}),
    "collection": (Net, [PLAIN], {}),
    "distributed": (Net, DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)), {}),
    "buckets": (
        Net,
        DataLoader(DATA, batch_sampler=Buckets(range(8), 2, drop_last=False)),
        {"accumulate_grad_batches": 2},
    ),
    "scheduler": (Net, PLAIN, {"callbacks": [GradientAccumulationScheduler({1: 2})]}),
    "reload": (Net, PLAIN, {"reload_dataloaders_every_n_epochs": 1}),
    "skips": (Skips, PLAIN, {}),
    "waits": (Waits, PLAIN, {}),
    "lbfgs": (Searches, PLAIN, {}),
    "norm": (Normalised, PLAIN, {"accumulate_grad_batches": 2}),
    "uneven": (Net, PLAIN, {"accumulate_grad_batches": 2, "limit_train_batches": 3}),
    "endless": (Net, PLAIN, {"max_epochs": -1}),
    "path": (Net, PLAIN, {}),
    "grown-steps": (Net, PLAIN, {**GROWN, "max_steps": 4}),
    "grown-part": (Net, PLAIN, {**GROWN, "limit_train_batches": 2}),
    "grown-checks": (Net, PLAIN, {**GROWN, "val_check_interval": 0.5}),
    "grown-schedule": (Seldom, PLAIN, GROWN),
    "synchronised": (Normalised, PLAIN, {"gpq": {"batch_norm": 2}, "sync_batchnorm": True}),
}


def refuse(name):
    """What gpq says, on one line."""
    module, loader, options = CASES[name]
    plain = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    own, options = options.get("gpq", {}), {key: value for key, value in options.items() if key != "gpq"}
    trainer = pl.Trainer(**gpq.lightning(**own), **{"max_epochs": 1, **plain, **options})
    try:
        trainer.fit(module(), loader, ckpt_path="some.ckpt" if name == "path" else None)
    except gpq.GpqTrainError as error:
        return str(error)
    return "not refused"


if __name__ == "__main__":
    for case in CASES:
        pid = os.fork()  # a process can have one job
        if not pid:
            with open(sys.argv[1], "a") as stream:
                stream.write(json.dumps([case, refuse(case)]) + "\n")
            os._exit(0)
        os.waitpid(pid, 0)
