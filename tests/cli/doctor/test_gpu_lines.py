"""The transcripts in docs/gpus.md match what gpq says today."""

from __future__ import annotations

from pathlib import Path

from tests.cli.doctor import gpu_lines

PAGE = Path(__file__).resolve().parents[3] / "docs" / "gpus.md"


def test_the_page_shows_what_gpq_says_about_gpus_in_each_condition() -> None:
    printed = gpu_lines.printed()
    assert f"```text\n{printed}```\n" in PAGE.read_text(encoding="utf-8"), (
        f"update the page: python -m tests.cli.doctor.gpu_lines --write\n{printed}"
    )
