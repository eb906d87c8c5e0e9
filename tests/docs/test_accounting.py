"""docs/accounting.md explains every figure of `gpq history` and `gpq report`."""

from __future__ import annotations

import re

from gpq.views import accounts
from tests.cli.conftest import ROOT

PLAIN = {
    "USER", "JOB", "NAME", "OWNER", "JOBS", "ID", "STATE", "EXIT", "SUBMITTED", "ENDED", "RAN", "GPUS", "REASON",
}  # fmt: skip


def test_every_figure_of_history_and_report_is_explained() -> None:
    page = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
    explained = {word.strip() for line in page.splitlines() for word in re.split(r"[,|]", line)}
    columns = [*accounts.report_columns([], "user"), *accounts.history_columns([])]
    assert {column.title for column in columns} - PLAIN <= explained
