"""The part of a log that leaves the lab: its end, readable, and without anything that looks like a secret."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.notify.announcement import LEFT_OUT, last_lines, looks_secret, plain

AWS = "AKIA" + "IOSFODNN7EXAMPLE"
GIVEN_AWAY = [
    "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",
    "api_key: 'abcd-efgh'",
    '{"access_token": "s3cr3tvalue"}',
    "password is hunter22",
    "using token hf_" + "abcdefghijklmnop",
    f"found {AWS} in the environment",
    "Authorization: Basic YWxhZGRpbjpvcGVuc2VzYW1l",
    "header Bearer abcdef0123456789",
    "connecting to postgres://ana:geheim@db/lab",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
    "https://hooks.slack.com/services/T000/B000/XXXX",
    "login ok: aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3h",
]
HARMLESS = [
    "epoch 3/90 loss 0.1234 lr 1e-3",
    "tokens: 1,024,000 tokens/s=35000.5",
    "num_keys = 12, key=3",
    "commit 0123456789abcdef0123456789abcdef01234567",
    "saved /home/ana/runs/2026-11-22/checkpoints/model_0000123456.pt",
    "KeyError: 'x'",
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "tokenizer loaded",
]


@pytest.mark.parametrize("line", GIVEN_AWAY)
def test_a_line_with_a_secret_is_left_out(line: str) -> None:
    assert last_lines(f"before\n{line}\nafter\n", 20) == ["before", LEFT_OUT, "after"]


@pytest.mark.parametrize("line", HARMLESS)
def test_a_line_of_a_training_job_stays(line: str) -> None:
    assert last_lines(line, 20) == [line]


def test_the_environment_of_the_job_never_goes_out() -> None:
    env = [("MY_TOKEN", "q1w2"), ("DATA_DIR", "/data/of/ana"), ("N", "3")]
    text = "using q1w2 here\nDATA_DIR=/data/of/ana\n{'DATA_DIR': '/data/of/ana'}\nreading /data/of/ana\nN=3"
    assert last_lines(text, 20, env) == [LEFT_OUT, LEFT_OUT, LEFT_OUT, "reading /data/of/ana", "N=3"]


def test_only_the_last_lines_are_kept_as_a_terminal_shows_them() -> None:
    text = (
        "".join(f"line {number}\n" for number in range(100))
        + "\n 10%\r 50%\r100%\n\x1b[31mred\x1b[0m\x1b]0;title\x07 end\u202e\n"
    )
    assert last_lines(text, 3) == ["line 99", "100%", "red end"]
    assert last_lines(text, 0) == []
    [long] = last_lines("x " * 1000, 1)
    assert len(long) == 300
    assert long.endswith("...")


def test_a_log_mentions_nobody_in_a_chat() -> None:
    assert last_lines("<!channel> @everyone look, ana@here.org", 1) == ["<! channel> @ everyone look, ana@ here.org"]


@given(st.text())
def test_no_control_sequence_comes_through(text: str) -> None:
    for line in last_lines(text, 20):
        assert plain(line) == line.rstrip()
        assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or char in "\u202e\u2066" for char in line)
        assert len(line) <= 310


@pytest.mark.parametrize(
    "piece", ["key", "key.", "token-", "is key ", "key   ", "eyJ-", "basic ", "://a:", "-----BEGIN ", "1,"]
)
def test_a_line_made_of_anything_that_begins_a_secret_takes_no_time(piece: str) -> None:
    """Other threads wait meanwhile. The time of this one thread counts, so a busy machine does not matter."""
    line = (piece * 600)[:600]
    began = time.thread_time()
    looks_secret(line)
    assert time.thread_time() - began < 0.1


def test_an_endless_line_is_checked_in_no_time() -> None:
    [shown] = last_lines("a.b-" * 50_000 + "\x1b]" * 10_000, 1)
    assert len(shown) == 300
