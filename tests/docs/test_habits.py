"""The library generates the table of habits in docs/loops.md, and each habit makes one readable line."""

import pytest
from gpq_agent import wire
from gpq_agent.train.habits.freedoms import line
from gpq_agent.train.habits.table import HABITS, table

from tests.cli.conftest import ROOT

BEGIN, END = "<!-- habits: python -m gpq_agent.train.habits.table -->\n", "<!-- /habits -->"


def test_the_table_in_the_page_is_up_to_date() -> None:
    text = (ROOT / "docs" / "loops.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0] == table(), "run python -m gpq_agent.train.habits.table"


@pytest.mark.parametrize("code", HABITS)
def test_a_habit_is_one_line_that_names_freedoms_and_cure(code: str) -> None:
    entry = HABITS[code]
    said = line(wire.Habit(code, list(entry.freedoms), entry.message.format("this"), entry.cure))
    assert "\n" not in said
    assert "{" not in said
    assert entry.cure in said
    assert entry.freedoms
    assert set(entry.freedoms) <= set(wire.FREEDOMS)
    assert all(freedom in said for freedom in entry.freedoms)
