"""Trains a character-level transformer on the source code of Python's standard library.

Exits with 1 if the loss on held-out text misses the target.
"""

import argparse
import math
import sys
import sysconfig
from pathlib import Path

import gpq_agent.train as gpq
import torch
from torch import nn
from torch.utils.data import Dataset

TARGET = 2.0  # nats per character on held-out text. Guessing evenly would give 4.85
CHARACTERS = 128  # ASCII. Anything else counts as "?"
MODULES = (
    "argparse ast bdb calendar codecs configparser csv datetime difflib doctest enum fractions"
    " ftplib inspect locale"
)
MODULES += (
    " mailbox optparse pdb pickle platform random shutil socket statistics subprocess tarfile"
    " textwrap threading"
)
MODULES += " traceback turtle typing uuid zipfile"


class Windows(Dataset):
    """Consecutive windows of `length` + 1 characters."""

    def __init__(self, text: torch.Tensor, length: int) -> None:
        self.length = length
        self.text = text

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.text[index * self.length : (index + 1) * self.length + 1]
        return window[:-1], window[1:]


def load(length: int, limit: int) -> tuple[Windows, Windows]:
    """Windows for (training, held-out text) from the first `limit` characters of the modules.

    Every tenth block is held out.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    text = "\n".join(
        (folder / f"{name}.py").read_text("utf-8") for name in MODULES.split() if has(folder, name)
    )
    codes = torch.tensor(bytearray(text.encode("ascii", "replace")), dtype=torch.long)[:limit]
    blocks = list(codes.split(64 * length))
    held_out = torch.cat(blocks[9::10] or blocks[-1:])
    seen = torch.cat([block for index, block in enumerate(blocks) if index % 10 != 9] or blocks)
    return Windows(seen, length), Windows(held_out, length)


def has(folder: Path, name: str) -> bool:
    # newer versions of Python have turned a few modules into folders
    return (folder / f"{name}.py").is_file()


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a norm before it and a shortcut around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.before_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(
            batch, length, 3, self.heads, width // self.heads
        )
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.before_feed(x))


class CharGPT(nn.Module):
    """Takes characters and returns scores for the next one."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.characters(text) + self.positions[: text.shape[1]]
        return self.scores(self.norm(self.blocks(x)))


def loss_of(model: nn.Module, text: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, held_out: Windows, device: torch.device, most: int = 512) -> float:
    """Mean loss over at most `most` held-out windows, evenly spread."""
    stride = max(1, len(held_out) // most)
    pairs = [held_out[index] for index in range(0, len(held_out), stride)]
    text, following = (torch.stack(part).to(device) for part in zip(*pairs, strict=True))
    parts = zip(text.split(64), following.split(64), strict=True)
    return sum(loss_of(model, one, other).item() * len(one) for one, other in parts) / len(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--batch-size", type=int, default=16, help="batch size that the learning rate is for"
    )
    parser.add_argument(
        "--max-batch-size", type=int, default=64, help="largest batch size that gpq may choose"
    )
    parser.add_argument(
        "--max-local-batch", type=int, default=32, help="most windows that fit on one GPU at once"
    )
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="characters of context")
    parser.add_argument("--text", type=int, default=400_000, help="characters of text in total")
    parser.add_argument(
        "--target", type=float, default=TARGET, help="held-out loss to reach, in nats per character"
    )
    options = parser.parse_args()

    job = gpq.init()
    training, held_out = load(options.length, options.text)
    loader = job.loader(
        training,
        batch_size=options.batch_size,
        max_batch_size=options.max_batch_size,
        max_local_batch=options.max_local_batch,
    )
    model = job.wrap(CharGPT(options.layers, options.width, options.heads, options.length))
    plain = getattr(model, "module", model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.01)
    steps = options.epochs * len(loader)  # at the base batch size, whatever gpq chooses
    warmup = min(50, steps)

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / warmup) * (
            0.55 + 0.45 * math.cos(math.pi * min(1.0, step / steps))
        )

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)

    for epoch in job.epochs(options.epochs):
        for text, following in loader:
            loss = loss_of(model, text.to(job.device), following.to(job.device))
            loss.backward()
            job.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        with job.eval():
            if job.rank == 0:
                score = evaluate(plain, held_out, job.device)
                job.log(loss=loss.item(), held_out_loss=score)
                print(
                    f"epoch {epoch + 1}/{options.epochs}  loss {loss.item():.4f}  held out"
                    f" {score:.4f}",
                    flush=True,
                )

    score = evaluate(plain, held_out, job.device)  # the same on every replica
    reached = score <= options.target
    if job.rank == 0:
        job.log(held_out_loss=score)
        print(
            f"held-out loss {score:.4f}, target {options.target}:"
            f" {'reached' if reached else 'missed'}",
            flush=True,
        )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
