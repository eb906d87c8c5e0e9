"""Where the last lines of a log begin. The test compares with what `tail -n` prints for the whole log, for any size of
pieces."""

from __future__ import annotations

import base64
import random

import pytest
from msgspec import structs

from gpq.cli import output
from gpq.cli.jobs.logs import Transcript
from gpq.client import job_logs
from gpq.rpc.job_answers import LogChunk


class Written:
    """The logs of a job's attempts, in pieces of `most` bytes as a daemon sends them. `given` counts the bytes."""

    def __init__(self, attempts: list[bytes], most: int, silent: int = 0) -> None:
        self.attempts, self.most, self.silent, self.given = attempts, most, silent, 0

    def read(self, attempt: int, offset: int, tail: int) -> LogChunk:
        numbers = list(range(1, len(self.attempts) + 1))
        if not numbers or attempt == self.silent != 0:
            return LogChunk(attempt, "a", "", 0, False, numbers, ["a"], "running", "node a does not answer")
        whole = self.attempts[(attempt or 1) - 1]
        offset = max(len(whole) - tail, 0) if tail else offset
        data = whole[offset : offset + self.most]
        self.given += len(data)
        encoded = base64.b64encode(data).decode()
        return LogChunk(attempt or 1, "a", encoded, offset + len(data), False, numbers, ["a"], "running")


def from_there(written: Written, only: int, lines: int) -> list[bytes]:
    attempt, offset = job_logs.tail_start(written.read, only, lines)
    last = attempt if only else len(written.attempts)
    return [written.attempts[number - 1][offset if number == attempt else 0 :] for number in range(attempt, last + 1)]


def lines_of(logs: list[bytes]) -> list[bytes]:
    return [line for log in logs for line in log.splitlines(keepends=True)]


@pytest.mark.parametrize("seed", range(200))
def test_the_last_lines_are_what_tail_prints(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(job_logs, "FIRST_WINDOW", chance.choice([1, 2, 7, 64]))
    attempts = [
        b"".join(b"x" * chance.choice([0, 0, 1, 5, 40]) + b"\n" for _ in range(chance.randrange(8)))
        + chance.choice([b"", b"y"])
        for _ in range(chance.randint(1, 4))
    ]
    written = Written(attempts, chance.choice([1, 3, 1000]))
    for count in range(12):
        shown = lines_of(from_there(written, 0, count))
        assert shown == lines_of(attempts)[len(lines_of(attempts)) - min(count, len(lines_of(attempts))) :]
        only = chance.randint(1, len(attempts))
        mine = lines_of([attempts[only - 1]])
        assert lines_of(from_there(written, only, count)) == mine[len(mine) - min(count, len(mine)) :]


def test_only_the_end_of_a_long_log_is_read() -> None:
    written = Written([b"line of the log\n" * 1_000_000], 32 << 10)
    assert from_there(written, 0, 100) == [b"line of the log\n" * 100]
    assert written.given <= 2 * job_logs.FIRST_WINDOW


def test_a_job_without_attempts_and_a_silent_attempt_begin_at_their_start() -> None:
    assert job_logs.tail_start(Written([], 10).read, 0, 5) == (0, 0)
    assert job_logs.tail_start(Written([b"1\n2\n", b"3\n"], 10, silent=1).read, 0, 1) == (2, 0)
    assert job_logs.tail_start(Written([b"1\n2\n", b"3\n"], 10, silent=1).read, 0, 2) == (1, 0)
    assert job_logs.tail_start(Written([b"1\n2\n", b"3\n"], 10, silent=2).read, 0, 2) == (2, 0)


def test_what_a_server_says_of_a_log_cannot_control_the_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\n$ \u202e"
    piece = LogChunk(1, evil, "", 0, False, [1, 2], ["a"], "running", evil)
    Transcript(filtered=True).write(piece)
    Transcript(filtered=False).write(structs.replace(piece, silent=""))
    output.text(lambda *_: [evil], None, "never")
    written = capfdbinary.readouterr().out
    assert not set(b"\x1b\x07") & set(written)
    assert written.count(b"\n") == 3


def test_the_gap_that_the_log_limit_leaves_does_not_count_as_a_line() -> None:
    """Bytes 4 to 99 are missing, in the middle of a line."""
    pieces = {0: (b"a\nb\n", 4, 0), 4: (b"c\nd\n", 104, 96), 104: (b"", 104, 0)}

    def read(attempt: int, offset: int, tail: int) -> LogChunk:
        data, after, skipped = pieces[offset]
        return LogChunk(1, "a", base64.b64encode(data).decode(), after, False, [1], ["a"], "running", skipped=skipped)

    assert job_logs.tail_start(read, 0, 2) == (1, 100)
    assert job_logs.tail_start(read, 0, 3) == (1, 2)
