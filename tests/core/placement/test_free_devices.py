"""The board: own devices first, then idle ones, then the fullest server that still fits."""

from __future__ import annotations

from gpq.core.model.placements import Layout, Placement, Shape
from gpq.core.model.units import NodeId
from gpq.core.placement import FreeDevices
from tests.support.builders import job, node, on, running, snapshot, spec


def test_a_job_finds_its_own_devices_again_and_others_the_fullest_node_that_fits() -> None:
    mine = running(1, on("b", 2, 3))
    here = snapshot(node("a", 4), node("b", 4), node("c", 2), mine)
    board = FreeDevices(here)
    assert board.find(mine, Shape(2)) == on("b", 2, 3)
    assert board.find(job(2), Shape(2)) == on("c", 0, 1), "smallest idle node"
    board.take(on("c", 0, 1))
    board.take(on("b", 2, 3))
    assert board.find(job(2), Shape(2)) == on("b", 0, 1), "idle ones on a node that is in use before an empty node"
    assert board.find(job(2), Shape(5)) is None


def test_idle_devices_come_before_those_that_must_be_waited_for() -> None:
    other = running(1, on("a", 0, 1))
    board = FreeDevices(snapshot(node("a", 2), node("b", 4), other))
    assert board.find(job(2), Shape(2)) == on("b", 0, 1)
    board.take(on("b", 0, 1, 2))
    assert board.find(job(2), Shape(2)) == on("a", 0, 1), "rather wait than not run"


def test_taken_devices_are_gone_and_returned_ones_are_back() -> None:
    board = FreeDevices(snapshot(node("a", 2)))
    board.take(on("a", 0, 1))
    assert board.find(job(1), Shape(1)) is None
    board.give(on("a", 1))
    assert board.find(job(1), Shape(1)) == on("a", 1)


def test_a_second_job_over_several_nodes_stays_off_the_nodes_of_the_first_unless_it_named_them() -> None:
    board = FreeDevices(snapshot(node("a", 2), node("b", 2)))
    board.take(Placement((on("a", 0).parts[0], on("b", 0).parts[0])))
    assert board.find(job(1), Shape(2, 2)) is None
    named = board.find(job(1), Layout(((NodeId("a"), 1), (NodeId("b"), 1))))
    assert named == Placement((on("a", 1).parts[0], on("b", 1).parts[0]))
    assert board.find(job(1), Layout(((NodeId("a"), 2),))) is None
    assert board.find(job(1), Layout(((NodeId("nowhere"), 1),))) is None


def test_only_devices_of_the_type_that_is_named_or_asked_for_are_given() -> None:
    here = snapshot(node("a", 2, type="T4"), node("b", 2, type="A100"))
    board = FreeDevices(here)
    assert board.find(job(1), Shape(2, 1, "A100")) == on("b", 0, 1)
    assert board.find(job(1), Shape(3, 1, "A100")) is None
    assert board.find(job(1, spec_=spec(gpu_type="t4")), Shape(1)) == on("a", 0)
    found = board.find(job(1), Shape(1, 1, "T4"))
    assert found is not None
    assert found.gpu_type == "T4"
