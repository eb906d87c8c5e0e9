"""A classifier with a data set that no batch divides, stopped early. Its loss is scaled, and its third step overflows."""

import os
import resource
import signal
from pathlib import Path

import gpq_agent.train as gpq
import torch
import transformers
from transformers import EarlyStoppingCallback

from tests.frameworks.scripts import hf_support as support


class OwnTrainer(transformers.Trainer):
    """May get a signal, or a full disk, when it has saved half."""

    def _save_optimizer_and_scheduler(self, output_dir):
        trouble = Path(support.OUT + ".trouble")
        if trouble.exists():
            name = trouble.read_text()
            trouble.unlink()
            if name == "full":
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            else:
                os.kill(os.getpid(), getattr(signal, name))
        super()._save_optimizer_and_scheduler(output_dir)

    def compute_loss(self, *args, **options):
        loss = super().compute_loss(*args, **options)
        return loss * 1e30 if self.state.global_step == 2 and self.model.training else loss


Trainer = gpq.elastic(OwnTrainer)
transformers.set_seed(3)
config = transformers.BertConfig(
    vocab_size=support.EXAMPLES, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=32, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
model = transformers.BertForSequenceClassification(config)
recorder = support.record(model)


def collate(batch):
    result = support.collate(batch)
    result["labels"] = result["input_ids"][:, 0] % 3
    return result


def metrics(prediction):
    return {"errors": float((prediction.predictions.argmax(-1) != prediction.label_ids).mean())}


args = support.arguments(
    eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="eval_loss",
    num_train_epochs=6, max_grad_norm=0.0, optim="sgd", learning_rate=0.05,
)  # fmt: skip
trainer = Trainer(
    model, args, data_collator=collate, train_dataset=support.rows(195), eval_dataset=support.rows(48),
    compute_metrics=metrics, callbacks=[EarlyStoppingCallback(2, early_stopping_threshold=10.0)],
)  # fmt: skip
trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)  # as fp16=True makes on a GPU
trainer.add_callback(recorder)
trainer.train()
support.save(trainer)
