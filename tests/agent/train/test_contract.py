"""The loop in the docstring of `loop/loop.py`, which an adapter's author copies."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from gpq_agent.train.loop import loop

from .test_scripts import Run, assert_same

# Writes the examples of each step that is committed.
PROLOGUE = """
import json, os, sys
from gpq_agent.train.loop.loop import TrainingLoop

commit = TrainingLoop.end_step

def end_step(self, *, applied):
    commit(self, applied=applied)
    step = self.step
    line = [step.epoch, len(step.micros), [place for micro in step.micros for place in micro.indices]]
    with open(sys.argv[1] + ".steps." + os.environ.get("RANK", "0"), "a") as stream:
        stream.write(json.dumps(line) + "\\n")

TrainingLoop.end_step = end_step
"""


def example() -> str:
    """The indented block of the docstring."""
    text = loop.__doc__ or ""
    lines = [line for line in text.splitlines(keepends=True)[1:] if not line.strip() or line.startswith("    ")]
    return textwrap.dedent("".join(lines))


def test_the_example_of_the_contract_uses_each_example_once_over_two_one_and_two_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script = tmp_path / "example.py"
    script.write_text(PROLOGUE + example())
    undisturbed, resized = Run(tmp_path / "undisturbed", script), Run(tmp_path / "resized", script)
    undisturbed.attempt(1, replicas=1)
    resized.attempt(1, replicas=2, stop_after=3)
    resized.attempt(2, replicas=1, stop_after=8)
    resized.attempt(3, replicas=2)

    assert len(set(resized.stops)) == 2
    assert_same(undisturbed, resized)
    assert not resized.habits
    for run in (undisturbed, resized):
        lines = [
            json.loads(line) for path in run.folder.glob("weights.steps.*") for line in path.read_text().splitlines()
        ]
        used = Counter((epoch, place) for epoch, _, places in lines for place in places)
        assert used == Counter((epoch, place) for epoch in range(4) for place in range(150))
        assert max(micros for _, micros, _ in lines) == 4
