"""What `gpq nodes` shows about reservations and about GPUs that are in use by others or out of use."""

from __future__ import annotations

from gpq.rpc.node_answers import DeviceView, NodeList, NodeView, ProcessView, ReservationView
from gpq.views.nodes import lines, occupant

CARL = ProcessView(7, "carl", "python", 11264, None, "python train.py", "2026-03-01T14:02:00.000Z")
NOW = "2026-03-01T12:00:00.000Z"


def gpu(state: str = "ok", reason: str = "", job: int | None = None, *on_it: ProcessView, **more: object) -> DeviceView:
    fields = {"id": "GPU-0", "index": 0, "kind": "cuda", "type": "A100", "memory_mib": 1, "used_mib": 0}
    return DeviceView(**fields, utilisation=None, state=state, reason=reason, job=job, processes=list(on_it), **more)  # type: ignore[arg-type]


def test_the_holder_of_a_gpu_is_named_once() -> None:
    used = "used by carl (python, 11 GiB, since 14:02)"
    assert occupant(gpu("foreign", used, None, CARL)) == used
    assert occupant(gpu("ok", f"also {used}", 3, CARL)) == f"job 3, also {used}"
    held = "held by bo's gpq (job 7, since 14:02)"
    assert occupant(gpu("foreign", held, None, CARL)) == f"carl: python (pid 7), {held}"
    sick = gpu("quarantined", "NVML: Unknown Error", None, age_seconds=192.0, next_probe_seconds=25.0)
    assert occupant(sick) == "NVML: Unknown Error, for 3m12s, next check in 25s"
    assert occupant(gpu()) == "-"


def test_reservations_are_listed_below() -> None:
    node = NodeView("a", "up", "", 8, 0, 1.0, [gpu()])
    held = [
        ReservationView(3, "a", ["GPU-0"], [0], "ana", NOW, NOW, 3900.0, 90000.0, "bo"),
        ReservationView(4, "b\x1b[2J", [], [], "", NOW, NOW, 0.0, 60.0),
    ]
    rows = [line.split("  ") for line in lines(NodeList([node], held), 0)[-3:]]
    cells = [[cell.strip() for cell in row if cell] for row in rows]
    assert cells[0] == ["RESERVATION", "SERVER", "GPUS", "FOR", "BEGINS", "ENDS", "BY"]
    assert cells[1] == ["3", "a", "0", "ana", "in 1h05m", "in 1d01h", "bo"]
    assert cells[2] == ["4", "b\\x1b[2J", "all", "nobody", "now", "in 1m00s", "-"]
    assert "RESERVATION" not in "\n".join(lines(NodeList([node]), 0))


def test_a_gpu_reserved_now_says_so_in_its_row() -> None:
    node = NodeView("a", "up", "", 8, 0, 1.0, [gpu()])

    def shown(*held: ReservationView) -> str:
        return "\n".join(lines(NodeList([node], list(held)), 0)[:5])

    assert "reserved for ana" in shown(ReservationView(3, "a", [], [], "ana", NOW, NOW, 0.0, 60.0))
    assert "reserved for nobody" in shown(ReservationView(3, "a", [gpu().id], [0], "", NOW, NOW, 0.0, 60.0))
    assert "reserved" not in shown(ReservationView(3, "a", [], [], "ana", NOW, NOW, 5.0, 60.0))
    assert "reserved" not in shown(ReservationView(3, "b", [], [], "ana", NOW, NOW, 0.0, 60.0))
    assert "reserved" not in shown(ReservationView(3, "a", ["other"], [1], "ana", NOW, NOW, 0.0, 60.0))
