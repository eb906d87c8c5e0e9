"""The decision that matters, for a script of a framework: it grows when that pays, and gives a GPU back."""

from __future__ import annotations

from tests.e2e.harness import Daemon
from tests.support.waiting import wait_until

PATIENCE = 200.0  # seconds, because each attempt imports transformers and the machine may be busy

TRAINING = """
import os, time
import gpq_agent.train as gpq
import torch
import transformers

class Model(transformers.BertForSequenceClassification):
    def forward(self, input_ids, labels):
        open("replicas." + os.environ.get("WORLD_SIZE", "1"), "w").close()
        if os.path.exists("slow"):  # as if the model were larger
            time.sleep(0.01 * len(input_ids))
        return super().forward(input_ids, labels=labels)

torch.manual_seed(0)
data = [{"input_ids": torch.randint(50, (6,)), "labels": torch.tensor(number % 2)} for number in range(1600)]
config = transformers.BertConfig(
    vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
)
arguments = transformers.TrainingArguments(
    "out", per_device_train_batch_size=16, num_train_epochs=2, save_strategy="no", report_to=[], disable_tqdm=True,
    use_cpu=True,
)
Trainer = gpq.elastic(transformers.Trainer)
trainer = Trainer(Model(config), arguments, train_dataset=data)
trainer.train()
print("steps:", trainer.state.global_step)
"""


def test_a_script_of_hugging_face_grows_when_it_pays_and_gives_a_slot_back() -> None:
    with Daemon(slots=2, policy="goodput", interval=1.0, settle_seconds=0.5, restart_seconds=1.0) as daemon:
        (daemon.work / "slow").touch()
        (daemon.work / "train.py").write_text(TRAINING)
        job = daemon.submit("train.py", level="script", max_gpus=2, grace=60.0)
        wait_until(lambda: (daemon.work / "replicas.2").exists(), "it trains on both slots", PATIENCE)
        box = daemon.shell("while [ ! -e go ]; do sleep 0.05; done")
        daemon.until(box, "running", patience=PATIENCE)
        (daemon.work / "replicas.1").unlink()
        wait_until(lambda: (daemon.work / "replicas.1").exists(), "it goes on beside the other job", PATIENCE)
        row = daemon.detail(job)
        assert (row.job.level, row.adapter) == ("resizable", "transformers")
        (daemon.work / "slow").unlink()
        (daemon.work / "go").touch()
        detail = daemon.until(job, "completed", "failed", patience=PATIENCE)
        assert (detail.job.state, detail.job.exit_status) == ("completed", 0), daemon.log(job, detail.job.attempt)
        assert detail.job.resizes >= 2
        assert "steps: 200" in daemon.log(job, detail.job.attempt), "as on one GPU, wherever it started"
        assert detail.metrics["gpq_passes"] == detail.metrics["gpq_passes_exact"] == 2
