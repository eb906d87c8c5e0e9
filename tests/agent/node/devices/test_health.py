"""The verdict on a GPU after several looks. No driver, no processes, no clock."""

from __future__ import annotations

from typing import Any

import pytest
from gpq_agent.node.devices.health import LONGEST_WAIT, DeviceHealth, HealthState, strangers

KEY = "3.1"


def process(memory: int = 11264, user: str = "carl", name: str = "python", attempt: str = "") -> dict[str, Any]:
    return {"pid": 7, "user": user, "name": name, "memory_mib": memory, "attempt": attempt, "since": 0.0}


@pytest.mark.parametrize(
    ("processes", "used", "holder", "said", "ghost"),
    [
        ([], 500, "", "", False),
        ([], 12288, "", "used by somebody: 12 GiB are in use, but by no visible process", True),
        ([], 12288, KEY, "", False),  # a driver that shows no processes: all of it may be our job's
        ([process()], 11264, "", "used by carl (python, 11 GiB)", False),
        ([process()] * 4, 11264, "", "used by" + " carl (python, 11 GiB)," * 2 + " carl (python, 11 GiB) and 1 more", False),
        ([process(attempt=KEY)], 12000, KEY, "", False),
        ([process(attempt=KEY)], 20480, KEY, "used by somebody: 9.0 GiB are in use, but by no visible process", True),
        ([process(0, attempt=KEY)], 20480, KEY, "", False),  # it does not report its memory
        ([process(attempt=KEY), process(300)], 12000, KEY, "used by carl (python, 300 MiB)", False),
        ([process(700, attempt="4.1")], 700, KEY, "used by attempt 4.1 (700 MiB, not assigned to it)", False),
        ([process(700, user="")], 700, "", "used by pid 7 (not visible from here, 700 MiB)", False),
    ],
)  # fmt: skip
def test_who_else_uses_it(processes: list[dict[str, Any]], used: int, holder: str, said: str, ghost: bool) -> None:
    assert strangers(processes, used, holder) == (said, ghost)


def test_a_blip_changes_nothing_but_a_lasting_use_does() -> None:
    gpu = DeviceHealth()

    def state(now: float, who: str) -> str:
        gpu.look(now, strangers=who)
        return gpu.verdict(now, "", "", "", None)[0]

    seen = [state(float(now), who) for now, who in enumerate(["", "carl", "", "carl", "carl", "", "carl", "", "", ""])]
    assert seen == ["ok", "ok", "ok", "ok", "foreign", "foreign", "foreign", "foreign", "ok", "ok"]
    first = DeviceHealth()
    first.look(0.0, strangers="carl")
    assert first.verdict(0.0, "", "", "", None) == ("foreign", "carl")  # nothing is known yet that it could contradict


def test_next_to_our_own_job_it_is_a_warning() -> None:
    gpu = DeviceHealth()
    gpu.look(0.0, strangers="used by carl (python)")
    assert gpu.verdict(0.0, KEY, "", "", None) == ("ok", "also used by carl (python)")
    assert gpu.verdict(0.0, "", "", "", None) == ("foreign", "used by carl (python)")
    assert gpu.verdict(0.0, "", "held by bo's gpq", "", None) == ("foreign", "held by bo's gpq")
    assert gpu.verdict(0.0, KEY, "", "pid 4 cannot be killed", None) == ("quarantined", "pid 4 cannot be killed")


def test_a_gpu_out_of_use_is_checked_less_and_less_often_and_comes_back_after_a_good_look_that_counts() -> None:
    course = HealthState(10.0, 100.0)
    course.ill("quarantined", "sick", 0.0)
    dues = []
    now = 0.0
    for _ in range(5):
        assert course.now is not None
        course.well(now + 1.0)  # too early to be believed
        course.ill("quarantined", "sick", now + 1.0)  # too early to count
        dues.append(course.now.due - now)
        now = course.now.due
        course.ill("quarantined", "still", now)
    assert dues == [10.0, 20.0, 40.0, 80.0, 100.0]
    assert course.now is not None
    assert (course.now.since, course.now.reason) == (0.0, "still")
    course.well(course.now.due)
    assert course.now is None


def test_a_fault_that_returns_soon_is_the_same_one_and_later_a_new_one() -> None:
    course = HealthState(10.0)
    course.ill("quarantined", "", 0.0)
    course.well(10.0)
    course.ill("quarantined", "", 15.0)
    assert course.now is not None
    assert course.now.due == 35.0
    course.well(35.0)
    course.ill("quarantined", "", 1000.0)
    assert course.now is not None
    assert course.now.due == 1010.0
    assert LONGEST_WAIT >= 600


def test_memory_errors_count_from_the_first_look_and_only_while_they_grow() -> None:
    gpu = DeviceHealth(10.0)
    seen = []
    for now, ecc in ((0.0, 3), (5.0, 3), (6.0, 5), (7.0, 5), (16.0, 5), (17.0, None)):
        gpu.look(now, ecc=ecc)
        seen.append(gpu.verdict(now, "", "", "", None))
    bad = ("quarantined", "2 uncorrectable memory errors (ECC)")
    assert seen == [("ok", ""), ("ok", ""), bad, bad, ("ok", ""), ("ok", "")]


def test_memory_that_our_own_job_left_quarantines_the_gpu_until_it_is_gone() -> None:
    gpu = DeviceHealth(10.0)
    gpu.look(0.0)
    gpu.left = KEY
    gpu.look(1.0, strangers="used by somebody: 9 GiB", ghost=True)
    state, reason = gpu.verdict(1.0, "", "", "", None)
    assert (state, reason) == ("quarantined", "attempt 3.1 has ended, but the GPU is used by somebody: 9 GiB")
    assert gpu.age(4.0) == 3.0
    for now in (11.0, 12.0):
        gpu.look(now)
    assert gpu.verdict(12.0, "", "", "", None) == ("ok", "")
    gpu.look(13.0, strangers="x", ghost=True)  # somebody else's by now
    gpu.look(14.0, strangers="x", ghost=True)
    assert gpu.verdict(14.0, "", "", "", None) == ("foreign", "x")
