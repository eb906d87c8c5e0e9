"""The pages about jobs are complete: every state, every moment of a query, every variable."""

from __future__ import annotations

import re

from gpq.core.feasibility.leases import Silence
from gpq.core.model.jobs import JobState
from gpq.core.model.units import NodeId
from gpq.errors import BY_CODE
from gpq.options import environment
from gpq.options.completion_data import GRAMMAR
from gpq.rpc.job_columns import COLUMNS, FIELDS
from gpq.rpc.submit_table import OPTIONS
from tests.cli.conftest import ROOT

JOBS = (ROOT / "docs" / "jobs.md").read_text()
MANY = (ROOT / "docs" / "many-jobs.md").read_text()
ENVIRONMENT = (ROOT / "docs" / "environment.md").read_text()


def table(page: str, head: str) -> dict[str, str]:
    """First cell -> second cell of the table whose head line begins with `head`."""
    body = page.partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [line.strip("| ").split(" | ", 1) for line in body]
    assert rows, f"the page has no table {head}"
    return {first.strip(): rest for first, rest in rows}


def words(text: str) -> set[str]:
    return set(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text))


def test_every_state_is_explained() -> None:
    assert list(table(JOBS, "state")) == [state.value for state in JobState]


def test_every_exit_code_is_explained() -> None:
    assert {0, *BY_CODE, 130} == {int(code) for code in table(JOBS, "exit code")}


def test_the_page_says_what_may_be_edited_and_when() -> None:
    whens = {word: when for cell, when in table(JOBS, "you want to change").items() for word in words(cell)}
    known = {option.flag: option.edit for option in OPTIONS}
    expected = {"always": "at any time", "resizable": "can be resized", "waiting": "while it waits"}
    for flag, when in whens.items():
        assert expected[known[flag]] in when, flag
    editable = {flag for flag in GRAMMAR["edit"][1] if known.get(flag, "never") != "never"}
    assert whens.keys() | {"--name"} == editable


def test_every_moment_to_sort_by_is_named() -> None:
    assert words(MANY) >= COLUMNS.keys() - {*FIELDS}


def test_every_variable_that_a_job_inherits_is_named() -> None:
    named = words(ENVIRONMENT)
    assert {name for name in environment.NAMES if name not in environment.PROXIES or name.islower()} <= named
    assert set(environment.PREFIXES) <= named


def test_the_page_quotes_todays_reasons() -> None:
    assert f"`{Silence((NodeId('b'),), 40.0, None)}".partition(":")[0] in JOBS
    quoted = "stopped without proof of a checkpoint"
    assert quoted in JOBS
    assert quoted in (ROOT / "gpq" / "core" / "state" / "attempt_end.py").read_text()
