"""Looks up the names of Lightning that the adapter uses, in the middle of a fit. Prints those that are missing."""

import json
import sys

import lightning.pytorch as pl
import torch
from gpq_agent.train.frameworks.versions import LIGHTNING
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer import call
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.missing = []

    def training_step(self, batch, batch_idx):
        self.missing = [name for name in LIGHTNING if not exists(self.trainer, name)]
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def exists(trainer, name):
    item = call if name.startswith("call.") else trainer
    for part in name.replace("call.", "").split("."):
        if part == "0":
            item = item[0]
        elif hasattr(item, part):
            item = getattr(item, part)
        else:
            return False
    return True


if __name__ == "__main__":
    trainer = pl.Trainer(
        max_steps=1, accelerator="cpu", logger=CSVLogger(sys.argv[1]), enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    net = Net()
    trainer.fit(net, DataLoader(TensorDataset(torch.ones(2, 2)), batch_size=2))
    sys.stdout.write(json.dumps([pl.__version__, net.missing]))
