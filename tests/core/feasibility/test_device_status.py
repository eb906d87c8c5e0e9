"""What gpq says about devices that somebody else uses or that are out of use."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.feasibility.device_status import condition, intruders, out_of_use
from gpq.core.model.nodes import DeviceState, Node, NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from tests.support.builders import black_box, job, node, on, running, snapshot
from tests.support.explanations import explain

CARL = "used by carl (python, 11 GiB, since 14:02)"


def with_device(machine: Node, index: int, **changes: object) -> Node:
    devices = list(machine.devices)
    devices[index] = replace(devices[index], **changes)  # type: ignore[arg-type]
    return replace(machine, devices=tuple(devices))


def test_a_sentence_says_which_gpu_whose_since_when_and_until_when() -> None:
    ada = node("ada", 4)
    foreign = with_device(ada, 2, state=DeviceState.FOREIGN, reason=CARL).devices[2]
    assert condition(NodeId("ada"), foreign, 0.0) == f"GPU 2 of ada is {CARL}"
    sick = with_device(
        ada, 1, state=DeviceState.QUARANTINED, reason="NVML: Unknown Error", since=100.0, next_probe=430.0
    )
    said = "GPU 1 of ada is quarantined: NVML: Unknown Error, for 5 m, next check in 30 s"
    assert condition(NodeId("ada"), sick.devices[1], 400.0) == said
    assert condition(NodeId("ada"), ada.devices[0], 0.0) == ""


def test_why_names_them_for_waiting_jobs() -> None:
    ada = with_device(node("ada", 4), 2, state=DeviceState.FOREIGN, reason=CARL)
    never = job(1, spec_=black_box(4))
    assert explain(snapshot(ada, never), None, never).reasons == (
        "it needs 4 GPUs, but some are out of use",
        f"GPU 2 of ada is {CARL}",
    )
    waits = job(1, spec_=black_box(3))
    busy = running(2, on("ada", 0), spec_=black_box())
    assert f"GPU 2 of ada is {CARL}" in explain(snapshot(ada, waits, busy), None, waits).reasons


def test_a_foreign_process_next_to_a_job_is_a_warning() -> None:
    ada = with_device(node("ada", 4), 2, reason=f"also {CARL}")
    here, there = running(1, on("ada", 2), spec_=black_box()), running(2, on("ada", 3), spec_=black_box())
    shared = snapshot(ada, here, there)
    line = f"GPU 2 of ada, where job 1 runs, is also {CARL}"
    assert intruders(shared) == [(line, JobId(1))]
    assert f"warning: {line}" in explain(shared, None, here).reasons
    assert not intruders(shared, there)
    assert not intruders(snapshot(ada, there))


def test_only_a_few_are_listed_and_none_of_servers_that_do_not_answer() -> None:
    many = Snapshot(nodes={NodeId("a"): node("a", 9)})
    bad = replace(
        many.nodes[NodeId("a")],
        devices=tuple(replace(one, state=DeviceState.LOST) for one in many.nodes[NodeId("a")].devices),
    )
    found = out_of_use(replace(many, nodes={NodeId("a"): bad}), black_box())
    assert (len(found), found[-1]) == (7, "and 3 more GPUs are out of use")
    silent = replace(bad, state=NodeState.UNREACHABLE)
    assert not out_of_use(replace(many, nodes={NodeId("a"): silent}), black_box())
    assert not out_of_use(replace(many, nodes={NodeId("a"): bad}), black_box(gpu_type="H100"))
