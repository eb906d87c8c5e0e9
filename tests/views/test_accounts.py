"""History and report: the CSV reads back. The page stands alone and shows no text of users as markup."""

from __future__ import annotations

import csv
import io
import os
import re
from datetime import datetime, timezone
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from gpq.cli import output
from gpq.errors import UsageError
from gpq.rpc import account_answers
from gpq.views import accounts, html_report, svg
from tests.cli import served

VOID = {"meta", "br"}
ATTACK = "<script>alert(1)</script>\"'&\u202e</style>"


class Read(HTMLParser):
    """The tags, attributes and texts, and whether every tag is closed."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("by", ["user", "job", "server", "day"])
def test_the_page_stands_alone_and_is_complete(by: str) -> None:
    text = html_report.document(served.report(by), served.report())
    read = Read(text)
    assert not read.open
    assert not {"script", "link", "img", "iframe", "object", "base", "form", "a"} & set(read.tags)
    names = {name for name, _ in read.attributes}
    assert not {"src", "href", "xlink:href", "action", "style"} & names
    assert not [name for name in names if name.startswith("on")]
    assert not re.findall(r"https?:|//|url\(|@import", text)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in read.attributes
    assert "prefers-color-scheme:dark" in text
    assert "svg" in read.tags
    assert len(text) < 100_000


def test_text_from_users_stays_text_on_the_page() -> None:
    for by in ("user", "job"):
        answer = served.report(by, user=ATTACK)
        answer.rows[0] = msgspec.structs.replace(answer.rows[0], name=ATTACK if by == "job" else "")
        text = html_report.document(answer, served.report(user=ATTACK))
        read = Read(text)
        assert "script" not in read.tags
        assert read.tags.count("style") == 1
        assert "alert(1)" in "".join(read.texts)
        assert "\u202e" not in text
        assert "<script" not in text


def test_every_user_is_on_the_page_and_many_are_summed_up_as_others() -> None:
    answer = served.report()
    rows = [served.report_row(f"user-{n}", gpu_hours=20.0 - n) for n in range(12)]
    users = [account_answers.UserPiece(f"user-{n}", 1.0, 0.5, 1.0) for n in range(12)]
    pieces = [msgspec.structs.replace(piece, users=users) for piece in answer.pieces]
    answer = msgspec.structs.replace(answer, rows=rows, pieces=pieces)
    texts = "".join(Read(html_report.document(answer, answer)).texts)
    assert all(f"user-{n}" in texts for n in range(12))
    assert "others, 02 Mar 2026: 0.167 GPUs" in texts, "four of 1 hour in 24, as a mean"


def test_an_empty_history_has_a_page_too() -> None:
    empty = msgspec.structs.replace(
        served.report(), rows=[], pieces=[], total=served.report_row("", gpu_hours=0.0, rhos=0)
    )
    read = Read(html_report.document(empty, empty))
    assert "No job used a GPU" in "".join(read.texts)
    assert "svg" not in read.tags
    assert accounts.report(empty, 80)[-1] == "no job used a GPU, waited or ended in this time"
    assert accounts.history(account_answers.HistoryList([]), 80) == ["no jobs ended in this time"]


def test_a_page_is_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for text in ("one", "two"):
        with output.replace_file("--html", str(path)) as part:
            Path(part).write_text(text)
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["report.html"]
    for bad in (str(tmp_path), str(tmp_path / "none" / "report.html")):
        with pytest.raises(UsageError):
            output.check_file("--html", bad)
        with pytest.raises(UsageError), output.replace_file("--html", bad) as part:
            Path(part).write_text("three")
    assert os.listdir(tmp_path) == ["report.html"]


def test_csv_reads_back_with_the_names_of_the_json() -> None:
    rows = [served.ended(1, name='a,b\n"c"', reason="\x1b[2J"), *served.history().jobs]
    [first, *rest] = list(
        csv.DictReader(
            io.StringIO("".join(accounts.csv_lines(map(msgspec.structs.asdict, rows), account_answers.EndedView)))
        )
    )
    assert tuple(first) == account_answers.EndedView.__struct_fields__
    assert (first["name"], first["reason"]) == ('a,b\\x0a"c"', "\\x1b[2J")
    assert [row["id"] for row in rest] == ["1", "2", "3"]
    assert (rest[0]["goodput_hours"], float(rest[2]["goodput_hours"])) == ("", 3.1)
    head = "".join(accounts.csv_lines([], account_answers.ReportRow))
    assert head == ",".join(account_answers.ReportRow.__struct_fields__) + "\n"


def test_names_cannot_reach_the_terminal() -> None:
    rows = account_answers.HistoryList([served.ended(1, name=served.EVIL, user=served.EVIL, reason=served.EVIL)])
    answer = served.report("job", user=served.EVIL)
    for line in (
        *accounts.history(rows, 0),
        *accounts.report(answer, 0),
        *accounts.report(served.report(user=served.EVIL), 0),
    ):
        assert line.isprintable(), line


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.004, 1.0, 7.3, 99.0, 123456.0])
def test_heights_stay_in_the_picture(value: float) -> None:
    drawn = svg.over_time([("ana", [value, 0.0])], ["one", "two"], "GPUs")
    for top, height in re.findall(r'y="([\d.-]+)" width="[\d.]+" height="([\d.]+)"', drawn):
        assert float(top) >= svg.TOP - 0.1
        assert float(top) + float(height) <= 230


def test_hourly_bars_are_labelled_with_the_time_of_day() -> None:
    start = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    stamps = [start.replace(hour=12 + n).isoformat().replace("+00:00", "Z") for n in range(4)]
    pieces = [account_answers.Piece(a, b, []) for a, b in pairwise(stamps)]
    assert all(":" in label for label in html_report._labels(pieces))
    assert all(":" not in label for label in html_report._labels(served.report().pieces))
