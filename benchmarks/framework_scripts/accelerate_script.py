"""An Accelerate loop. Without gpq it resumes with `load_state` and `skip_first_batches`."""

import sys

import gpq_agent.train as gpq
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from benchmarks.framework_scripts import training
from benchmarks.framework_scripts.training import SETTINGS

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=training.ACCUMULATION)
if SETTINGS.gpq:
    accelerator = gpq.accelerate(accelerator)
record = training.Record(accelerator.process_index)
model = training.Model(record)
optimizer = torch.optim.AdamW(model.parameters(), lr=training.RATE)
loader = DataLoader(training.Numbers(), training.PER_DEVICE, shuffle=True)
steps = SETTINGS.epochs * len(loader) // training.ACCUMULATION
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0, 1 - step / steps))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

done = 0
checkpoints = sorted(SETTINGS.state.glob("step_*"), key=lambda path: int(path.name[5:]))
if checkpoints and not SETTINGS.gpq:
    accelerator.load_state(str(checkpoints[-1]))
    done = int(checkpoints[-1].name[5:])
first_epoch, skipped = divmod(done, len(loader))

plain = range(first_epoch, SETTINGS.epochs)
for epoch in accelerator.epochs(SETTINGS.epochs) if SETTINGS.gpq else plain:
    record.epoch = epoch
    is_resumed = epoch == first_epoch and skipped > 0
    batches = accelerator.skip_first_batches(loader, skipped) if is_resumed else loader
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        done += 1
        if record.is_over:
            accelerator.save_state(str(SETTINGS.state / f"step_{done}"))
            sys.exit()
if accelerator.is_main_process:
    training.save_weights(accelerator.unwrap_model(model))
