"""LoRA on batches of like lengths, with activation checkpointing, for a number of steps that ends within an epoch."""

import gpq_agent.train as gpq
import peft
import transformers

from tests.frameworks.scripts import hf_support as support


class Counts(transformers.TrainerCallback):
    """Counts what a restart forgets."""

    def __init__(self):
        self.logs = 0

    def on_log(self, *place, **kwargs):
        self.logs += 1


Trainer = gpq.elastic(transformers.Trainer)
lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", lora_dropout=0.0)
model = peft.get_peft_model(support.language_model(), lora)
model.enable_input_require_grads()
recorder = support.record(model)
args = support.arguments(
    max_steps=31, activation_checkpointing=True, train_sampling_strategy="group_by_length", do_eval=True
)
trainer = Trainer(
    model, args, data_collator=support.collate, train_dataset=support.rows(), eval_dataset=support.rows(7),
    callbacks=[Counts()],
)  # fmt: skip
trainer.add_callback(recorder)
trainer.train()
support.save(trainer)
