"""Lightning. Without gpq it resumes with `ckpt_path`."""

import os
import sys
from typing import Any

import gpq_agent.train as gpq
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from benchmarks.framework_scripts import training
from benchmarks.framework_scripts.training import SETTINGS

record = training.Record(int(os.environ.get("RANK", "0")))
CHECKPOINT = SETTINGS.state / "last.ckpt"


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = training.Model(record)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(**batch)["loss"]

    def on_train_epoch_start(self) -> None:
        record.epoch = self.current_epoch

    def on_train_batch_end(self, *args: Any) -> None:
        if record.is_over:
            self.trainer.save_checkpoint(CHECKPOINT)
            sys.exit()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=training.RATE)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: max(0, 1 - step / steps)
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


replicas = int(os.environ.get("WORLD_SIZE", "1"))
plain = {"accelerator": "cpu", "devices": replicas, "strategy": "ddp" if replicas > 1 else "auto"}
trainer = pl.Trainer(
    **(gpq.lightning() if SETTINGS.gpq else plain),
    max_epochs=SETTINGS.epochs,
    accumulate_grad_batches=training.ACCUMULATION,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
module = Module()
loader = DataLoader(training.Numbers(), training.PER_DEVICE, shuffle=True)
resumes = CHECKPOINT.exists() and not SETTINGS.gpq
trainer.fit(module, loader, ckpt_path=CHECKPOINT if resumes else None)
if trainer.is_global_zero:
    training.save_weights(module.model)
