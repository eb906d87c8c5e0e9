"""The page of bounds shows the constants of the program."""

from __future__ import annotations

from tests.docs import bounds


def test_the_page_shows_the_bounds_of_the_program() -> None:
    assert bounds.PAGE.read_text(encoding="utf-8") == bounds.page(), "run python -m tests.docs.bounds --write"
