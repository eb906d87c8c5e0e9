"""A classifier with a data set that no batch divides, stopped early."""

import os
import signal

import gpq_agent.train as gpq
import transformers
from transformers import EarlyStoppingCallback

from tests.frameworks.scripts import hf_support as support


class OwnTrainer(transformers.Trainer):
    """May be killed when it has saved half."""

    def _save_optimizer_and_scheduler(self, output_dir):
        if os.path.exists(support.OUT + ".kill"):
            os.unlink(support.OUT + ".kill")
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save_optimizer_and_scheduler(output_dir)


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
trainer.add_callback(recorder)
trainer.train()
support.save(trainer)
