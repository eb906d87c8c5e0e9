"""A language model on random windows without a data set. It accumulates, scales and clips by itself and sets its own
rate."""

import math
import sys
from typing import Any

import gpq_agent.train as gpq
import torch
from torch import nn

WORDS, WINDOW, ROWS, PIECES, STEPS, WARM = 19, 8, 5, 3, 45, 5


class Model(nn.Module):
    """Attention over earlier words, in one layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(WINDOW, width)
        self.look, self.merge = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        state = self.words(x) + self.places.weight
        query, key, value = self.look(self.norm(state)).chunk(3, dim=-1)
        state = state + self.merge(nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True))
        return nn.functional.cross_entropy(self.head(state).view(-1, WORDS), y.view(-1))


def text() -> torch.Tensor:
    steps = torch.randint(1, 4, (3000,), generator=torch.Generator().manual_seed(4))
    return steps.cumsum(0) % WORDS


def draw(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(words) - WINDOW, (ROWS,)).tolist()
    return torch.stack([words[at : at + WINDOW] for at in starts]), torch.stack(
        [words[at + 1 : at + WINDOW + 1] for at in starts]
    )


def rate(step: int) -> float:
    if step < WARM:
        return 0.01 * (step + 1) / WARM
    return 0.005 * (1 + math.cos(math.pi * (step - WARM) / (STEPS - WARM)))


def main(out: str) -> None:
    job = gpq.init(seed=7)
    words, model = text(), job.wrap(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", growth_interval=20)
    job.prepare(model, optimizer, scaler=scaler)
    for step in job.steps(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        for _ in range(PIECES):
            loss = model(*job.share(*draw(words))) / PIECES
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        job.log(loss=loss * PIECES)
    if job.rank == 0:
        torch.save({**model.state_dict(), "scale": torch.tensor(scaler.get_scale())}, out)


if __name__ == "__main__":
    main(sys.argv[1])
