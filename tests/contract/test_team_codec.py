"""The lines between a member's daemon and an arbiter. They arrive unchanged, and what is out of bounds does not
arrive."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.core.model.nodes import NodeState
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.team.claims import Claim, DeviceView, ServerView, Statement
from gpq.errors import DaemonUnreachable, UsageError
from gpq.rpc import codec
from gpq.rpc.team_codec import MOST, decode_team_request, within_bounds
from gpq.rpc.team_messages import MAX_DEPTH, Amend, Hello, Take, TeamRequest, Tell, View

words = st.text(alphabet=st.characters(exclude_categories=["C", "Z"]), max_size=20)
numbers = st.floats(-MOST, MOST)
devices = st.builds(DeviceView, words.map(DeviceId), st.integers(0, 9), words, words)
servers = st.builds(
    ServerView, words.map(NodeId), words, st.sampled_from(NodeState), st.lists(devices, max_size=2).map(tuple)
)
claims = st.builds(Claim, st.integers(1, MOST).map(JobId), numbers, words, time_limit=st.none() | numbers)
statements = st.builds(
    Statement, numbers, st.lists(servers, max_size=2).map(tuple), st.lists(claims, max_size=2).map(tuple)
)
requests = st.one_of(
    st.builds(Hello, team=words),
    st.builds(Tell, seq=st.integers(0, MOST), statement=statements),
    st.builds(Take, round=st.integers(-1, MOST)),
    st.builds(View, kind=words),
    st.builds(Amend, action=words, member=words, value=numbers),
)


@given(requests)
def test_a_request_comes_out_as_it_went_in(request: TeamRequest) -> None:
    assert decode_team_request(codec.encode_request(request)) == request


@given(st.binary(max_size=200))
def test_invalid_bytes_give_a_usage_error_or_another_version(line: bytes) -> None:
    with pytest.raises((UsageError, DaemonUnreachable)):
        decode_team_request(line)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "value",
    [
        nested(MAX_DEPTH), nested(100_000), '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH, "NaN", "Infinity", "1e400",
        "-1e17", str(MOST + 1), str(-MOST - 1), "1" + "0" * 400, '"\\u001b[2J"', '"a\\nb"', '"\\ud800"', '"\\u202e"',
        f'"{"x" * 1001}"', '{"\\u0000": 1}',
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused_in_any_field(value: str) -> None:
    for field in ("team", "unknown"):
        with pytest.raises(UsageError):
            decode_team_request(f'{{"v":1,"op":"hello","team":"lab","{field}":{value}}}'.encode())


trees = st.recursive(
    st.none() | st.booleans() | st.integers(-MOST, MOST) | numbers | words,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(words, parts, max_size=3),
)


@given(trees, st.sampled_from([float("nan"), float("inf"), MOST + 1, "\x1b", "x" * 1001]))
def test_a_tree_is_within_bounds_as_long_as_each_of_its_values_is(tree: object, wrong: object) -> None:
    assert within_bounds(json.loads(json.dumps(tree)), depth=100)
    assert not within_bounds([tree, {"a": [wrong]}], depth=100)


def test_containers_may_be_as_deep_as_allowed_and_no_deeper() -> None:
    assert within_bounds(json.loads(nested(MAX_DEPTH)))
    assert not within_bounds(json.loads(nested(MAX_DEPTH + 1)))
