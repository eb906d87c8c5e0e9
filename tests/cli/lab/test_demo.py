"""`gpq demo` as a user types it. It trains, so it needs PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_demo_that_runs_out_of_time_says_so_and_cleans_up(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "gpq", "demo", "--timeout", "1s"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 124, ran.stderr
    assert "gpq: the demo did not end within 1 s" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "in"):
        ran = subprocess.run(
            [sys.executable, "-m", "gpq", "demo", "--home", str(home)],
            env=dict(os.environ), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 2), ran.stderr
        assert f"gpq: --home {home}: cannot write there: " in ran.stderr
