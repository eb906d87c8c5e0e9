from __future__ import annotations

import pytest

from gpq.core.model.nodes import Device, NodeState
from gpq.errors import UsageError
from gpq.lab.simulator.rules import parse_cluster


def test_servers_of_one_kind() -> None:
    nodes = parse_cluster("16x4")
    assert [node.id for node in nodes] == [f"n{i:02}" for i in range(16)]
    assert {node.state for node in nodes} == {NodeState.UP}
    assert nodes[15].devices[3] == Device("n15:3", 3, "cuda", "", 16_000)  # type: ignore[arg-type]
    assert sum(len(node.devices) for node in nodes) == 64


def test_types_keep_their_spelling_and_order() -> None:
    nodes = parse_cluster("6x4:t4, 3x8:RTX,2x8:dgx-ext")
    assert [node.devices[0].type for node in nodes] == ["t4"] * 6 + ["RTX"] * 3 + ["dgx-ext"] * 2
    assert [len(node.devices) for node in nodes] == [4] * 6 + [8] * 5
    assert [node.id for node in nodes] == sorted(node.id for node in nodes)


def test_names_sort_like_numbers() -> None:
    names = [node.id for node in parse_cluster("101x1")]
    assert (names[0], names[100]) == ("n000", "n100")
    assert names == sorted(names)
    assert parse_cluster("100x1")[99].id == "n99"


@pytest.mark.parametrize(
    "text", ["", "4", "4x", "x4", "4x4x4", "4x-1", "4x4:", "4x4:a b", "4x4,", "4X4", "٤x4", "99999999x1"]
)
def test_unreadable_clusters_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read") as caught:
        parse_cluster(text)
    assert "16x4" in caught.value.hint


@pytest.mark.parametrize(("text", "problem"), [("0x4", "no nodes"), ("2x4,3x0", "3x0 has no GPUs")])
def test_an_empty_text_is_not_a_cluster(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_cluster(text)


def test_the_largest_cluster() -> None:
    assert len(parse_cluster("12500x8")) == 12500
    with pytest.raises(UsageError, match="has 100001 GPUs, at most 100000"):
        parse_cluster("12500x8,1x1")
    with pytest.raises(UsageError, match="at most 100000"):
        parse_cluster("9999999x9999999")
