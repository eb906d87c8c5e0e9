"""Hugging Face Trainer. Without gpq it resumes with `resume_from_checkpoint`."""

import os
from typing import Any

import gpq_agent.train as gpq
import transformers
from transformers.trainer_utils import get_last_checkpoint

from benchmarks.framework_scripts import training
from benchmarks.framework_scripts.training import SETTINGS

Trainer = gpq.elastic(transformers.Trainer) if SETTINGS.gpq else transformers.Trainer
record = training.Record(int(os.environ.get("RANK", "0")))


class Stop(transformers.TrainerCallback):
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        record.epoch = int(state.epoch + 1e-6)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if record.is_over:
            control.should_save = control.should_training_stop = True


arguments = transformers.TrainingArguments(
    str(SETTINGS.state),
    per_device_train_batch_size=training.PER_DEVICE,
    gradient_accumulation_steps=training.ACCUMULATION,
    num_train_epochs=SETTINGS.epochs,
    learning_rate=training.RATE,
    logging_strategy="no",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    dataloader_num_workers=0,
)
model = training.Model(record)
trainer = Trainer(model, arguments, train_dataset=training.Numbers(), callbacks=[Stop()])
checkpoint = get_last_checkpoint(str(SETTINGS.state)) if SETTINGS.state.is_dir() else None
trainer.train(resume_from_checkpoint=None if SETTINGS.gpq else checkpoint)
if trainer.is_world_process_zero():
    training.save_weights(model)
