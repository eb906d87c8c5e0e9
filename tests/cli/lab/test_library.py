"""`gpq config library`: a script that uses the library runs without gpq, in an environment that only has torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Gpq

SCRIPT = """
import torch
import gpq_agent.train as gpq

job = gpq.init()
data = torch.utils.data.TensorDataset(torch.arange(8.0).unsqueeze(1))
loader = job.loader(data, batch_size=4)
model = job.wrap(torch.nn.Linear(1, 1))
model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
for epoch in job.epochs(2):
    for (x,) in loader:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print("trained", job.step, gpq.__file__)
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment that finds torch through a .pth file, but neither gpq nor its library."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    [packages] = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]))
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "venv" / "bin" / "python"


def run(python: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **environ}
    script = python.parents[2] / "train.py"
    return subprocess.run([python, script], env=clean, capture_output=True, text=True, timeout=120, check=False)


def test_both_documented_ways_find_the_library_and_nothing_else(gpq: Gpq, python: Path) -> None:
    said = gpq("config", "library")
    folder = said.stdout.strip()
    assert (said.returncode, said.stderr, os.listdir(folder)) == (0, "", ["gpq_agent"])
    assert json.loads(gpq("config", "library", "--json").stdout) == {"path": folder, "schema": 2}
    assert "No module named 'gpq_agent'" in run(python).stderr
    once = run(python, PYTHONPATH=folder)
    assert once.stdout.startswith(f"trained 4 {folder}/gpq_agent/"), once.stderr
    [packages] = (python.parents[1] / "lib").glob("python3*/site-packages")
    (packages / "gpq.pth").write_text(said.stdout)
    assert run(python).stdout == once.stdout


def test_the_folder_is_the_one_that_jobs_use_and_a_running_daemons_link_stays(live: Gpq) -> None:
    folder = live("config", "library").stdout.strip()
    live("submit", "--wait", "--setup", "true", "--", "true")  # now the daemon is up and has made the folder
    link = Path(folder) / "gpq_agent"
    before = os.readlink(link)
    other = link.parent.parent / "other"
    os.symlink(before, other)
    link.unlink()
    os.symlink(other, link)  # another gpq, which still exists, could have made this link
    assert live("config", "library").stdout.strip() == folder
    assert os.readlink(link) == str(other)
    link.unlink()
    assert live("config", "library").returncode == 0
    assert os.readlink(link) == before
