"""What the threads of `gpq top` ask for: the end of a log, answers that fail, and actions."""

import threading
from pathlib import Path

import pytest

from gpq.cli.top.open_job import LONGEST, Log, PageFeed
from gpq.cli.top.poller import Deeds, Feed, parse_filter
from gpq.client.connection import Lasting
from gpq.errors import NotFound, UsageError
from tests.cli.served import Made, job
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPQ_HOME", str(home))
    monkeypatch.setenv("GPQ_CONFIG", str(home / "config.toml"))


def read(made: Made, data: bytes, attempt: int = 1, log: Log | None = None) -> Log:
    log = log or Log()
    made.logs[attempt] = data
    with Lasting(print) as daemon:
        for _ in range(len(data) // 5 + 2):  # the fake daemon sends five bytes at a time
            log.read(daemon, "1", attempt)
    return log


def test_a_log_has_the_lines_that_a_terminal_would_show(made: Made) -> None:
    log = read(made, "one\r\nbar 1%\rbar 22%\rbar 333%\n\nGrüße\x1b[2J \x1b[31mred\x1b[0m\topen".encode())
    assert list(log.lines) == ["one", "bar 333%", "", "Grüße\\x1b[2J \x1b[31mred\x1b[0m\topen"]
    read(made, made.logs[1] + b" end\rnew", log=log)
    assert log.lines[-1] == "new"
    read(made, made.logs[1] + b"\n", log=log)
    assert list(log.lines)[-2:] == ["", "new"]
    assert log.about == "attempt 1 on a"


def test_the_next_attempt_follows_after_a_separating_line(made: Made) -> None:
    log = read(made, b"without an end")
    read(made, b"again\n", attempt=2, log=log)
    assert list(log.lines) == ["without an end", "--- attempt 2 ---", "again"]


def test_an_endless_line_takes_little_memory(made: Made) -> None:
    log = Log()
    for _ in range(5):
        log._write("x" * LONGEST)
    assert list(log.lines) == ["x" * LONGEST]
    assert len(log._open_line) <= 2 * LONGEST


def test_an_unreadable_log_is_reported_and_the_page_still_appears(made: Made) -> None:
    made.silent[1] = "node a does not answer"
    with Lasting(print) as daemon:
        page = PageFeed(1)(daemon)
        assert page.log_of == "node a does not answer"
        assert page.detail.job.id == 1
        made.rows[0] = job(1, "pending", attempt=0)
        assert PageFeed(1)(daemon).log_of == "it has not started yet"


def test_a_feed_keeps_its_last_answer_and_reports_the_problem(made: Made) -> None:
    answers: list[object] = ["first", NotFound("gone"), "second", ValueError("a mistake")]
    news = threading.Event()

    def look(daemon: Lasting) -> object:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    feed: Feed[object] = Feed(look, 3600.0, news.set)
    wait_until(lambda: feed.last_look.answer == "first", "the first answer")
    feed.now()
    wait_until(lambda: feed.last_look.problem is not None, "the refusal")
    assert feed.last_look.answer == "first"
    feed.now()
    wait_until(lambda: feed.last_look.answer == "second", "the next answer")
    assert feed.last_look.problem is None
    feed.now()
    wait_until(lambda: feed.broken is not None, "an unexpected error is passed on")
    assert isinstance(feed.broken, ValueError)
    assert news.is_set()


def test_actions_run_in_order_and_are_reported(made: Made) -> None:
    done = threading.Event()
    deeds = Deeds(done.set)
    deeds.prioritise(made.rows[1], 1)
    deeds.prioritise(made.rows[1], 1)
    deeds.hold(made.rows[1])
    wait_until(lambda: len(made.asked) == 3, "three requests")
    assert [getattr(each, "changes", None) for each in made.asked] == [{"priority": 1}, {"priority": 2}, None]
    wait_until(lambda: deeds.remark() == "job 1 will be held", "the report of the last action")
    deeds.read()
    wait_until(lambda: deeds.remark() == "", "no report after it was read")
    assert done.is_set()


def test_a_filter_has_selectors_and_conditions() -> None:
    assert parse_filter("3-7 user=ana 'name~a b' age>2h @") == (["3-7", "@"], ["user=ana", "'name~a b'", "'age>2h'"])
    assert parse_filter("") == ([], [])
    with pytest.raises(UsageError, match="a quote is not closed"):
        parse_filter("name~'a")
