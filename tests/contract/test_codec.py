"""The lines between command and daemon. They arrive unchanged, and foreign ones are not trusted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.errors import BY_CODE, DaemonUnreachable, GpqError, NotFound, UsageError
from gpq.rpc import codec, requests
from gpq.rpc.job_answers import Submitted
from gpq.rpc.protocol import MAX_LINE, VERSION
from gpq.rpc.requests import ArrayMessage, Logs, SpecMessage, Status, Submit, Wait

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
specs = st.builds(
    SpecMessage,
    argv=st.lists(texts, max_size=4),
    cwd=texts,
    level=texts,
    env=st.dictionaries(texts, texts, max_size=3),
    min_gpus=st.integers(-9, 9),
    grace=st.floats(allow_nan=False, allow_infinity=False),
)
arrays = st.builds(
    ArrayMessage,
    st.lists(st.integers(0, 99), max_size=3),
    st.lists(st.dictionaries(texts, texts, max_size=2), max_size=2),
    st.integers(0, 9),
)
any_request = st.one_of(
    st.builds(Submit, specs, st.booleans(), st.booleans(), st.none() | arrays),
    st.builds(Status, st.lists(texts, max_size=3), st.integers(0, 100), query=st.lists(texts, max_size=2)),
    st.builds(Wait, st.lists(texts, max_size=3), st.floats(0, 1e6)),
    st.builds(Logs, texts),
)


@given(any_request)
def test_a_request_comes_out_as_it_went_in(request: requests.Request) -> None:
    line = codec.encode_request(request)
    assert line.count(b"\n") == 1
    assert codec.decode_request(line) == request


def test_the_envelope_is_as_documented() -> None:
    assert json.loads(codec.encode_request(Status(recent=3))) == {
        "v": VERSION, "op": "status", "jobs": [], "recent": 3, "user": "", "states": [], "query": [], "waiting": 0,
    }  # fmt: skip
    answer = json.loads(codec.encode_result(Submitted(7, "x", "pending")))
    assert answer.pop("program")
    assert answer == {
        "v": VERSION, "ok": True, "result": {"id": 7, "name": "x", "state": "pending", "warnings": [], "jobs": [], "schema": 2},
    }  # fmt: skip
    refusal = json.loads(codec.encode_error(NotFound("no such job", "look again")))
    assert refusal.pop("program")
    assert refusal == {"v": VERSION, "ok": False, "code": 4, "error": "no such job", "hint": "look again"}


@pytest.mark.parametrize("kind", sorted(BY_CODE.values(), key=lambda kind: kind.code), ids=lambda kind: kind.__name__)
def test_an_error_arrives_unchanged(kind: type[GpqError]) -> None:
    with pytest.raises(kind) as raised:
        codec.decode_answer(codec.encode_error(kind("what is so", "what to do")), Submitted)
    assert (raised.value.message, raised.value.hint) == ("what is so", "what to do")


@given(st.binary(max_size=200))
def test_invalid_bytes_give_a_usage_error_or_another_version(line: bytes) -> None:
    with pytest.raises((UsageError, DaemonUnreachable)):
        codec.decode_request(line)


@given(st.binary(max_size=200))
def test_an_invalid_answer_means_the_daemon_is_not_gpq(line: bytes) -> None:
    with pytest.raises(DaemonUnreachable):
        codec.decode_answer(line, Submitted)


def test_a_daemon_of_another_version_is_named_with_a_hint() -> None:
    line = json.dumps({"v": 2, "program": "9.9.9", "ok": True, "result": {"shape": "unknown"}}).encode()
    with pytest.raises(DaemonUnreachable, match=r"gpq 9\.9\.9, protocol 2") as raised:
        codec.decode_answer(line, Submitted)
    assert "gpq daemon stop" in raised.value.hint


def test_a_request_that_is_too_long_or_not_text_is_refused_before_sending() -> None:
    with pytest.raises(UsageError, match="bytes"):
        codec.encode_request(Submit(SpecMessage(["x" * MAX_LINE], "/", "black-box")))
    with pytest.raises(UsageError, match="UTF-8"):
        codec.encode_request(Submit(SpecMessage(["\udcff"], "/", "black-box")))
