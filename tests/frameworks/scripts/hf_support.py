"""What the scripts of Hugging Face's Trainer share: a tiny model, its data, and a record of each optimizer step."""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

import tokenizers
import torch
import transformers

OUT = sys.argv[1]
EXAMPLES = 1200
IS_PLAIN = "GPQ_RUN_DIR" not in os.environ
ACCUMULATION = int(os.environ.get("ACCUMULATION", "2"))


def rows(count: int = EXAMPLES) -> list[dict[str, list[int]]]:
    """Sequences of unequal length. The first token is the number of the example, and labels lack some tokens."""
    draw = random.Random(5)
    result = []
    for number in range(count):
        tokens = [number, *(draw.randrange(20) for _ in range(draw.randrange(3, 12)))]
        labels = [token if draw.random() < 0.8 else -100 for token in tokens]
        result.append({"input_ids": tokens, "labels": labels})
    return result


def collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pads at the right."""
    longest = max(len(item["input_ids"]) for item in batch)

    def padded(name: str, filler: int) -> torch.Tensor:
        return torch.tensor([item[name] + [filler] * (longest - len(item[name])) for item in batch])

    mask = [[1] * len(item["input_ids"]) + [0] * (longest - len(item["input_ids"])) for item in batch]
    return {
        "input_ids": padded("input_ids", 0), "labels": padded("labels", -100), "attention_mask": torch.tensor(mask),
    }  # fmt: skip


def language_model() -> Any:
    transformers.set_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=EXAMPLES, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def tokenizer() -> Any:
    """Words are t0, t1 and so on."""
    words = {f"t{number}": number for number in range(EXAMPLES)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="t0"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="t0", bos_token="t0", eos_token="t1", pad_token="t2"
    )


def arguments(kind: Any = transformers.TrainingArguments, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "output_dir": OUT + ".output", "per_device_train_batch_size": 48 if IS_PLAIN else 12,
        "gradient_accumulation_steps": 1 if IS_PLAIN else ACCUMULATION, "learning_rate": 0.003, "adam_epsilon": 1e-3,
        "num_train_epochs": 2, "warmup_steps": 5, "logging_steps": 5, "report_to": "none", "save_strategy": "no",
        "disable_tqdm": True, "seed": 7, "use_cpu": True,
    }  # fmt: skip
    return kind(**{**defaults, **options})


def record(model: Any) -> Any:
    """A callback that writes the number, the examples and the learning rate of every step that an optimizer applies."""
    seen: list[int] = []

    def forward(module: Any, inputs: Any, options: Any) -> None:
        tokens = options.get("input_ids") if options.get("input_ids") is not None else inputs[0]
        if module.training and torch.is_grad_enabled():
            seen.extend(tokens[:, 0].tolist())

    class Recorder(transformers.TrainerCallback):
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rate = kwargs["optimizer"].param_groups[0]["lr"]
            line = {"step": state.global_step + 1, "rate": rate, "examples": seen}
            with open(f"{OUT}.steps.{os.environ.get('RANK', '0')}", "a") as stream:
                stream.write(json.dumps(line) + "\n")
            seen.clear()

    model.register_forward_pre_hook(forward, with_kwargs=True)
    return Recorder()


def save(trainer: Any) -> None:
    """Write what the Trainer has at the end."""
    if trainer.is_world_process_zero():
        torch.save(trainer.model.state_dict(), OUT)
        with open(OUT + ".log", "w") as stream:
            json.dump([trainer.state.log_history, trainer.state.global_step, trainer.state.epoch], stream)
