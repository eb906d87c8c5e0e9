"""What reserve and unreserve ask of the loop, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.control import node_requests
from gpq.core.model.events import Event, NodeReserved, NodeUnreserved
from gpq.core.model.nodes import Reservation
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, NodeId
from gpq.core.state.apply_events import fold
from gpq.errors import NotFound, Refused, UsageError
from gpq.rpc import node_answers, requests
from tests.support.builders import black_box, node, on, running, snapshot

HERE = snapshot(
    node("a", 4),
    node("b"),
    running(1, on("a", 0)),
    running(2, on("a", 1), spec_=black_box()),
    running(3, on("a", 2), spec_=black_box(user="bo")),
)
A = NodeId("a")


def reserve(
    state: Snapshot, name: str, gpus: list[str], user: str, start: float, end: float, now: float, by: str
) -> tuple[list[Event], node_answers.Reserved]:
    return node_requests.reserve(state, requests.Reserve(name, start, end, gpus, user), now, by)


def test_a_reservation_names_its_gpus_and_the_jobs_that_leave_and_stay() -> None:
    events, answer = reserve(HERE, "a", ["0", "a-1"], "bo", 50.0, 100.0, 7.0, "ada")
    held = Reservation(1, A, 50.0, 100.0, (DeviceId("a-0"), DeviceId("a-1")), "bo", "ada")
    assert events == [NodeReserved(7.0, held)]
    assert (answer.leaving, answer.staying) == ([1], [2])
    view = answer.reservation
    assert (view.indices, view.begins_in_seconds, view.ends_in_seconds) == ([0, 1], 43.0, 93.0)
    assert view.start == "1970-01-01T00:00:50.000Z"


def test_a_whole_server_and_a_start_in_the_past() -> None:
    events, answer = reserve(HERE, "a", [], "", 1.0, 100.0, 7.0, "ada")
    assert events == [NodeReserved(7.0, Reservation(1, A, 7.0, 100.0, (), "", "ada"))]
    assert (answer.leaving, answer.staying, answer.reservation.begins_in_seconds) == ([1], [2, 3], 0.0)


def test_one_gpu_is_reserved_once_at_a_time() -> None:
    [first], _ = reserve(HERE, "a", ["0"], "bo", 50.0, 100.0, 7.0, "ada")
    here = fold(HERE, [first]).snapshot
    for gpus in (["0"], ["1", "0"], []):
        with pytest.raises(Refused, match=r"is already reserved at that time for bo \(reservation 1\)"):
            reserve(here, "a", gpus, "ana", 99.0, 200.0, 8.0, "ada")
    assert reserve(here, "a", ["1"], "ana", 99.0, 200.0, 8.0, "ada")[0]
    [second], _ = reserve(here, "a", ["0"], "ana", 100.0, 200.0, 8.0, "ada")
    assert isinstance(second, NodeReserved)
    assert second.reservation.id == 2
    assert reserve(replace(here, now=100.0), "a", ["0"], "", 90.0, 200.0, 101.0, "ada")[0]  # the first one is over


@pytest.mark.parametrize(
    ("name", "gpus", "user", "span", "error"),
    [
        ("c", [], "", (0.0, 9.0), NotFound),
        ("a", ["4"], "", (0.0, 9.0), NotFound),
        ("a", ["0", "a-0"], "", (0.0, 9.0), UsageError),
        ("a", [], "x y", (0.0, 9.0), UsageError),
        ("a", [], "\x1b[2J", (0.0, 9.0), UsageError),
        ("a", [], "", (9.0, 9.0), UsageError),
        ("a", [], "", (0.0, 1e9), UsageError),
        ("a", [], "", (0.0, float("nan")), UsageError),
    ],
)
def test_an_invalid_reservation_is_refused(
    name: str, gpus: list[str], user: str, span: tuple[float, float], error: type[Exception]
) -> None:
    with pytest.raises(error):
        reserve(HERE, name, gpus, user, *span, 7.0, "")


def test_only_existing_reservations_can_be_removed() -> None:
    [event], _ = reserve(HERE, "a", ["0"], "bo", 50.0, 100.0, 7.0, "ada")
    here = fold(HERE, [event]).snapshot
    assert node_requests.unreserve(here, requests.Unreserve(1), 8.0, "ada")[0] == [NodeUnreserved(8.0, 1, "ada")]
    for number, now in ((2, 8.0), (1, 100.0)):
        with pytest.raises(NotFound, match=f"no reservation {number}"):
            node_requests.unreserve(here, requests.Unreserve(number), now, "ada")
