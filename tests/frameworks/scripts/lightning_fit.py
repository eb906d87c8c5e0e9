"""A LightningModule with a loss that is a mean, two schedules, metrics and callbacks, and gpq's line.

It writes which examples each applied step saw, its learning rate, and the counters that Lightning shows.
"""

import json
import os
import resource
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import gpq_agent.train as gpq
import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from gpq_agent import wire
from lightning.pytorch.callbacks import Callback, EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision, TorchCheckpointIO
from torch.utils.data import DataLoader, Dataset

OPTIONS = json.loads(os.environ.get("FIT", "{}"))
OUT, RANK = Path(sys.argv[1]), os.environ.get("RANK", "0")


class Numbers(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 8, generator=generator)
        self.noise = OPTIONS.get("noise", 0.0) * torch.randn(count, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        x = self.x[place]
        return x, x.sin().sum() + self.noise[place], place


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        first = [torch.nn.Linear(8, 16)]
        if OPTIONS.get("norm"):  # a bias before it has no gradient but rounding, of which Adam makes whole steps
            first = [torch.nn.Linear(8, 16, bias=False), torch.nn.BatchNorm1d(16)]
        self.layers = torch.nn.Sequential(*first, torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        x, y, places = batch
        loss = F.mse_loss(self.layers(x)[:, 0], y, reduction=OPTIONS.get("reduction", "mean"))
        if OPTIONS.get("Scaled") and self.trainer.global_step in (5, 33):  # its scaler skips these steps
            loss = loss * float("inf")
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(x))
        self.seen.append(places.tolist())
        return loss

    def validation_step(self, batch, batch_idx):
        x, y, _ = batch
        self.log("val_loss", F.mse_loss(self.layers(x)[:, 0], y), batch_size=len(x), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        if OPTIONS.get("schedule") == "epoch":
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Fragile(TorchCheckpointIO):
    """What comes while Lightning writes a checkpoint, by the attempt."""

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        harm = OPTIONS["Fragile"].get(os.environ[wire.ENV_ATTEMPT])
        if harm in ("kill", "lease"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(b"half")
        if harm in ("kill", "term"):
            os.kill(os.getpid(), signal.SIGKILL if harm == "kill" else signal.SIGTERM)
        while harm == "lease":  # until it ends
            signal.pause()
        if harm == "full disk":
            limit_files(100)
        super().save_checkpoint(checkpoint, path, storage_options)


def limit_files(size):
    """From now on no file grows beyond so many bytes, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class Scaled(MixedPrecision):
    """A GradScaler without half precision, so results are exact."""

    def __init__(self):
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", growth_interval=9))

    def forward_context(self):
        return nullcontext()


class Forgetful(Callback):
    def on_train_start(self, trainer, module):
        self.batches = 0


class Record(Callback):
    """One line for each batch of Lightning, on each replica."""

    def __init__(self):
        self.batches = 0

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        module.seen = []
        self.rate = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.batches += 1
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        line = {
            "epoch": trainer.current_epoch, "batch": batch_idx, "step": trainer.global_step, "rate": self.rate,
            "batches": self.batches, "scale": scaler.get_scale() if scaler else 1.0, "seen": module.seen,
            "attempt": int(os.environ[wire.ENV_ATTEMPT]),
            "place": trainer.lr_scheduler_configs[0].scheduler.last_epoch,  # in its schedule
        }  # fmt: skip
        if not OPTIONS.get("plain"):
            line["worth"] = trainer.strategy.job._engine.runtime.meter.base_steps
        with open(f"{OUT}.steps.{RANK}", "a") as stream:
            stream.write(json.dumps(line) + "\n")
        attempt, terminate = os.environ[wire.ENV_ATTEMPT], OPTIONS.get("terminate", {})
        if trainer.global_step == terminate.get(attempt):
            if attempt == "2":  # gpq cannot save what it stops
                limit_files(6000)
            os.kill(os.getpid(), signal.SIGTERM)
        if attempt == "2" and trainer.global_step == terminate.get(attempt, -9) + 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking and RANK == "0":
            line = [trainer.current_epoch, trainer.global_step, float(trainer.callback_metrics["val_loss"])]
            with open(f"{OUT}.validations", "a") as stream:
                stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    root = OUT.parent
    if OPTIONS.get("plain"):  # Lightning alone reports nothing
        Path(os.environ[wire.ENV_RUN_DIR], wire.REPORT).touch()
    if OPTIONS.get("max_batch_size") and RANK == "0":  # the agent orders a batch as large as that
        pieces = OPTIONS["max_batch_size"] // (OPTIONS["batch"] * int(os.environ.get("WORLD_SIZE", "1")))
        attempt = int(os.environ[wire.ENV_ATTEMPT])
        order = wire.Control(attempt=attempt, seq=1, atomic_batch=OPTIONS["batch"], accum_steps=pieces - 1)
        wire.write_json(os.path.join(os.environ[wire.ENV_RUN_DIR], wire.CONTROL), order._asdict())
    best = ModelCheckpoint(monitor="val_loss", save_top_k=2)
    patience = EarlyStopping("val_loss", min_delta=9.0, patience=OPTIONS.get("patience", 20))
    where = (
        {"accelerator": "cpu", "devices": 1}
        if OPTIONS.get("plain")
        else gpq.lightning(
            gpus=OPTIONS.get("gpus"),
            max_batch_size=OPTIONS.get("max_batch_size"),
            batch_norm=OPTIONS.get("norm"),
            seed=3,
        )
    )
    callbacks = [Record(), best, patience, *([Forgetful()] if OPTIONS.get("forgetful") else [])]
    if OPTIONS.get("ema"):
        callbacks.append(EMAWeightAveraging(decay=0.9))
    plugins = [kind() for kind in (Fragile, Scaled) if OPTIONS.get(kind.__name__)]
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    trainer = pl.Trainer(
        **where, max_epochs=OPTIONS.get("epochs", 2), callbacks=callbacks, logger=CSVLogger(root),
        plugins=plugins, **quiet, **OPTIONS.get("trainer", {}),
    )  # fmt: skip
    train = DataLoader(Numbers(1200, 1), batch_size=OPTIONS.get("batch", 40), shuffle=OPTIONS.get("shuffle", True))
    net = Net()
    trainer.fit(net, train, DataLoader(Numbers(90, 2), batch_size=40))
    if RANK == "0":
        torch.save(net.state_dict(), OUT)
        summary = {
            "steps": trainer.global_step, "epoch": trainer.current_epoch, "best": float(best.best_model_score),
            "best_step": Path(best.best_model_path).stem, "wait": patience.wait_count,
            "total": trainer.estimated_stepping_batches,
        }  # fmt: skip
        Path(f"{OUT}.summary").write_text(json.dumps(summary))
