"""`gpq check` on loops with random numbers or half precision. Correct loops compare equal, and a 1% error is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Gpq

SCRIPT = """
import gpq_agent.train as gpq
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

torch.set_float32_matmul_precision("high")
generator = torch.Generator().manual_seed(5)
inputs = torch.randn(240, 12, generator=generator)
data = TensorDataset(inputs, (inputs @ torch.randn(12, 3, generator=generator)).argmax(1))
job = gpq.init(seed=1)
loader = job.loader(data, batch_size=13, max_batch_size=52)
{model}
model = job.wrap(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, _ = job.prepare(model, optimizer)

class Wrong:
    step, place = -1, 0

    def __call__(self, loss):
        self.place = self.place + 1 if self.step == job.step else 0
        self.step = job.step
        return loss * {factor} if self.place else loss

wrong = Wrong()
for epoch in job.epochs(9):
    for x, y in loader:
        {loss}
        loss = wrong(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        job.log(loss=loss)
"""
DENSE = "net = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 3))"
CLASSES = "loss = functional.cross_entropy(model(x), y)"
ATTENTION = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        return self.head(self.layer(self.embed(x.reshape(len(x), 4, 3))).mean(1))
net = Net()
"""
VAE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(12, 16), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 12))
    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, dim=1)
        again = self.decode(mean + torch.randn_like(mean) * (spread / 2).exp())
        distance = (mean.square() + spread.exp() - spread - 1).sum(1).mean() / 2
        return (again - x).square().sum(1).mean() + distance
net = Net()
"""
DIFFUSION = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(13, 32), nn.SiLU(), nn.Linear(32, 12))
    def forward(self, x, time):
        return self.layers(torch.cat([x, time[:, None] / 100], dim=1))
net = Net()
"""
DENOISE = """
        time, noise = torch.randint(0, 100, (len(x),)), torch.randn_like(x)
        kept = (1 - time / 100)[:, None]
        loss = functional.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, time), noise)
"""
AUTOCAST = """with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)"""
LOOPS = {
    "dropout": (DENSE, CLASSES),
    "attention": (ATTENTION, CLASSES),
    "vae": (VAE, "loss = model(x)"),
    "diffusion": (DIFFUSION, DENOISE),
    "autocast": (DENSE, AUTOCAST),
}
HALF = DENSE + ".to(torch.bfloat16)"
HALF_CLASSES = "loss = functional.cross_entropy(model(x.to(torch.bfloat16)).float(), y)"

PICKY = """
class Picky(nn.Module):
    def forward(self, x):
        if x.dtype != {dtype}:
            raise RuntimeError("only {dtype}, not " + str(x.dtype))
        return x
net = nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.Linear(32, 32), Picky(), nn.GELU(),
                    nn.Dropout(0.3), nn.Linear(32, 3))
nn.init.zeros_(net[2].bias)
"""
ROUGH = (
    "not run in full precision, because the script fails in it (RuntimeError: only torch.bfloat16, not "
    "torch.float32): only the first step that differs was compared, to within 3 units in the "
    "last place (2.3%)"
)


def checked(gpq: Gpq, path: Path, model: str, loss: str, factor: float) -> dict[str, Any]:
    path.write_text(SCRIPT.format(model=model, loss=loss, factor=factor))
    said = gpq("check", "--json", "--steps", "6", "--timeout", "4m", str(path), timeout=280)
    assert said.returncode in (0, 1), said
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {row["shape"]: row["verdict"] for row in found["shapes"]}


@pytest.mark.parametrize("name", LOOPS)
def test_a_correct_loop_trains_the_same_in_every_shape(gpq: Gpq, tmp_path: Path, name: str) -> None:
    found = checked(gpq, tmp_path / "train.py", *LOOPS[name], factor=1.0)
    assert set(verdicts(found).values()) == {"same"}, found
    assert max(row["largest"] for row in found["shapes"]) < 1e-5
    assert found["habits"] == []
    assert "everything ran in full precision, without autocast and TF32" in found["notes"]


@pytest.mark.parametrize("name", LOOPS)
def test_an_error_of_one_percent_in_a_micro_batch_is_found(gpq: Gpq, tmp_path: Path, name: str) -> None:
    found = checked(gpq, tmp_path / "train.py", *LOOPS[name], factor=1.01)
    wrong = {shape for shape, verdict in verdicts(found).items() if verdict == "differs"}
    assert wrong >= {"accumulating", "split", "two replicas, accumulating"}, found
    assert found["shapes"][0]["what"].startswith("gradient of ")


def test_half_precision_weights_are_compared_after_one_step_with_a_tolerance(gpq: Gpq, tmp_path: Path) -> None:
    found = checked(gpq, tmp_path / "train.py", HALF, HALF_CLASSES, factor=1.0)
    assert set(verdicts(found).values()) == {"same"}, found
    assert any(note.startswith("weights in half precision: only the first step") for note in found["notes"])
    found = checked(gpq, tmp_path / "train.py", HALF, HALF_CLASSES, factor=1.1)
    rows = {row["shape"]: row for row in found["shapes"]}
    assert (rows["accumulating"]["verdict"], rows["accumulating"]["step"]) == ("differs", 1), found
    assert (rows["split"]["verdict"], rows["split"]["step"]) == ("differs", 2), found


def test_a_script_that_fails_in_full_precision_is_checked_unchanged(gpq: Gpq, tmp_path: Path) -> None:
    picky = PICKY.format(dtype="torch.bfloat16")
    verdict = checked(gpq, tmp_path / "train.py", picky, AUTOCAST, factor=1.0)
    assert set(verdicts(verdict).values()) == {"same"}, verdict
    assert ROUGH in verdict["notes"]
    assert not any(note.startswith("everything ran in full") for note in verdict["notes"])
    verdict = checked(gpq, tmp_path / "train.py", picky, AUTOCAST, factor=1.1)
    rows = verdicts(verdict)
    cut = {rows[shape] for shape in ("accumulating", "split", "two replicas, accumulating")}
    assert cut == {"differs"}, verdict
    assert ROUGH in verdict["notes"]


def test_a_script_that_also_fails_unchanged_says_so(gpq: Gpq, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    model = PICKY.format(dtype="torch.float16")
    path.write_text(SCRIPT.format(model=model, loss=AUTOCAST, factor=1.0))
    result = gpq("check", "--timeout", "4m", str(path), timeout=280)
    assert (result.returncode, result.stdout) == (1, "")
    assert "the script fails on its own, in one replica, with exit code 1:" in result.stderr
    assert "RuntimeError: only torch.float16, not torch.bfloat16" in result.stderr
