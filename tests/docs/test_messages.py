"""The page of the commonest messages shows what the program prints today."""

from __future__ import annotations

from tests.docs import commonest


def test_the_page_shows_what_the_program_prints() -> None:
    written = commonest.rows(commonest.PAGE.read_text(encoding="utf-8"))
    assert len(written) == 59
    printed = {name: commonest.cell(text) for name, text in commonest.messages().items()}
    assert {name: now for name, (_, now) in written.items()} == printed, "run python -m tests.docs.commonest --write"
