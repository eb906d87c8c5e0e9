"""Escaping and fitting: the terminal gets nothing that it would obey, and no line is too wide."""

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.views import plain
from gpq.views.queue import ranges
from gpq.views.terminal import Filter, LastStates
from tests.cli.served import EVIL

OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


@given(st.text())
def test_safe_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    assert not OBEYED.search(plain.safe(text))
    assert plain.safe(plain.safe(text)) == plain.safe(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train", "train"),
        ("a\nb\tc\rd", r"a\x0ab\x09c\x0dd"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b1m", r"\x9b1m"),
        ("\u202egpj", r"\u202egpj"),
        ("\U000e0041", r"\U000e0041"),
        ("Grüße 漢字 🎉", "Grüße 漢字 🎉"),
        ("\udc80", r"\udc80"),
    ],
)
def test_escapes_look_like_this(text: str, shown: str) -> None:
    assert plain.safe(text) == shown


@given(st.text(), st.integers(1, 40))
def test_cut_text_fits(text: str, columns: int) -> None:
    assert plain.width(plain.cut(plain.safe(text), columns)) <= columns


@given(
    st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30)), min_size=1, max_size=6),
    st.integers(1, 100),
)
def test_a_table_is_never_wider_than_its_limit(rows: list[tuple[str, str, str]], limit: int) -> None:
    columns = [
        plain.Column("ID", [plain.safe(row[0]) for row in rows], 99, right=True),
        plain.Column("NAME", [plain.safe(row[1]) for row in rows], 50, least=8),
        plain.Column("REASON", [plain.safe(row[2]) for row in rows], 60, least=12),
    ]
    lines = plain.table(columns, limit)
    assert len(lines) == len(rows) + 1
    assert max(map(plain.width, lines)) <= limit


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Mn"])), st.integers(20, 60))
def test_wrapped_lines_lose_no_word(text: str, limit: int) -> None:
    lines = plain.wrap(text, limit, "- ", "  ")
    assert "".join("".join(line[2:] for line in lines).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (-1, "0s"), (59.9, "59s"), (60, "1m00s"), (3725, "1h02m"), (360000, "4d04h")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert plain.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0521, "0.052"), (1.849, "1.85"), (42.06, "42.1"), (4210.4, "4210")]
)
def test_numbers(value: float | None, text: str) -> None:
    assert plain.number(value) == text


def test_ranges_of_indices() -> None:
    assert ranges([3, 0, 1, 2, 7]) == "0-3,7"


class TestLogs:
    """What `gpq logs` lets through to a terminal."""

    @staticmethod
    def shown(*pieces: bytes) -> str:
        screen = Filter()
        return "".join(map(screen.feed, pieces))

    def test_colours_pass_and_other_codes_are_shown(self) -> None:
        assert self.shown(b"\x1b[1;31mred\x1b[0m\n") == "\x1b[1;31mred\x1b[0m\n"
        assert self.shown(b"\x1b[2J\x1b]0;title\x07\n") == "\\x1b[2J\\x1b]0;title\\x07\n"
        assert self.shown(b"\x1b]8;;http://x\x1b\\link\n") == "\\x1b]8;;http://x\\x1b\\link\n"
        assert self.shown(b"\xff\n") == "\\xff\n"

    def test_a_progress_bar_erases_what_it_overwrites(self) -> None:
        assert self.shown(b"10%\r20%\r\n") == "10%\r\x1b[K20%\n"

    @pytest.mark.parametrize("size", range(1, 9))
    def test_of_each_line_only_its_last_state_is_left(self, size: int) -> None:
        data = b"one\r\n10%\r20%\r\n\r5/9\r\r6/9\nfree\n1\r22\r333\r"
        states = LastStates()
        lines = b"".join(states.feed(data[at : at + size]) for at in range(0, len(data), size))
        assert (lines, states.rest(), states.rest()) == (b"one\r\n20%\r\n6/9\nfree\n", b"333\r", b"")

    def test_a_state_that_is_already_shown_is_overwritten(self) -> None:
        states = LastStates()
        assert [(states.feed(data), states.rest()) for data in (b"1\r22", b"2\r333", b"\r4\r5", b"\n6", b"7\r8")] == [
            (b"", b"22"), (b"", b"\r333"), (b"", b"\r5"), (b"\n", b"6"), (b"", b"\r8"),
        ]  # fmt: skip

    def test_the_boundaries_of_chunks_make_no_difference(self) -> None:
        data = ("one\r\n" + EVIL + "\x1b[31mrot é漢\x1b[0m\rzwei\n").encode()
        whole = self.shown(data, b"\n")
        for size in range(1, 9):
            assert self.shown(*(data[at : at + size] for at in range(0, len(data), size)), b"\n") == whole

    @given(st.binary())
    def test_only_colours_and_line_controls_ever_pass(self, data: bytes) -> None:
        rest = re.sub("\x1b\\[[0-9;:]*m|\r\x1b\\[K|\n|\t", "", self.shown(data, b"."))
        assert not OBEYED.search(rest)


def test_the_width_comes_from_columns_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    assert plain.terminal_width() == 33
    monkeypatch.setenv("COLUMNS", "nonsense")
    assert plain.terminal_width() in (0, _real())


def _real() -> int:
    try:
        return os.get_terminal_size(1).columns
    except OSError:
        return 0


@pytest.mark.parametrize(
    ("line", "tinted"),
    [
        ("job 1 (held): waits", ["held"]),
        ("    held by job 3 (root, 2 GPUs)", []),
        ("job 7 running of ana: running on ada:0-1", ["running"]),
        ("job 7 a of ana: failed (1), exit 1", ["failed"]),
        (" 3  held  ana  completed  -", ["held", "completed"]),
        (" 3  train  ana  timeout", ["timeout"]),
        ("pending pending", []),
    ],
)
def test_only_real_states_are_coloured(line: str, tinted: list[str]) -> None:
    found = plain.tint(line)
    assert re.findall("\x1b\\[[0-9]+m([a-z]+)\x1b\\[0m", found) == tinted
    assert re.sub("\x1b\\[[0-9]+m", "", found) == line
