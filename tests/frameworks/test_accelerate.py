"""Scripts of Accelerate with gpq's three lines: resizes in mid-epoch change nothing of what they train."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.train.driver import DEADLINE, FORKSERVER
from tests.agent.train.test_scripts import Run, replica
from tests.support.ports import free_port

SCRIPT = Path(__file__).parent / "scripts" / "accelerated.py"
TOLERANCE = 1e-5  # relative to the norm of each tensor, in single precision


class AcceleratedRun(Run):
    """All attempts of one job. `settings`: of the script."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, SCRIPT)
        usual = {"gpq": True, "batch": 10, "accumulation": 2, "shuffle": False, "workers": 0, "drop": False}
        Path(f"{self.out}.settings").write_text(json.dumps({**usual, **settings}))

    def alone(self, processes: int) -> None:
        """Run the script without gpq."""
        port = str(free_port())
        replicas = []
        for rank in range(processes):
            environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
            environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            replicas.append(FORKSERVER.Process(target=replica, args=(environment, self.script, str(self.out), 0)))
        try:
            for process in replicas:
                process.start()
            for process in replicas:
                process.join(DEADLINE)
            assert [process.exitcode for process in replicas] == [0] * processes
        finally:
            for process in replicas:
                process.kill()
                process.join()

    def steps(self) -> list[list[dict[str, Any]]]:
        """What each replica wrote."""
        paths = sorted(self.folder.glob("weights.steps.*"))
        return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def test_x(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone, resized = AcceleratedRun(tmp_path / "alone", gpq=False), AcceleratedRun(tmp_path / "resized")
    alone.alone(2)
    resized.attempt(1, 2, 11)
    resized.attempt(2, 1, 9)
    resized.attempt(3, 3, 20)
    resized.attempt(4, 2)
    a = alone.steps(); b = resized.steps()
    print([len(x) for x in a], [len(x) for x in b], resized.notices, resized.habits, resized.stops)
    print([x["rate"] for x in a[0]][:5], [x["rate"] for x in b[0]][:5])
    for key, value in alone.weights().items():
        other = resized.weights()[key]
        print(key, float((other - value).norm() / value.norm()))
    print(Path(f"{alone.out}.losses").read_text(), Path(f"{resized.out}.losses").read_text())
    assert 0
