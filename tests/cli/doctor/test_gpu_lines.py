"""README's transcripts of GPUs are what gpq says today."""

from __future__ import annotations

from pathlib import Path

from tests.cli.doctor import gpu_lines

README = Path(__file__).resolve().parents[3] / "README.md"


def test_readme_shows_what_is_said_of_gpus_in_each_condition() -> None:
    printed = gpu_lines.printed()
    assert f"```\n{printed}```\n" in README.read_text(encoding="utf-8"), (
        f"python -m tests.cli.doctor.gpu_lines prints\n{printed}"
    )
