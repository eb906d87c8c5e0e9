"""Master ports: below the ephemeral range, another one for each attempt, other ones for another daemon."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.actions import FIRST_PORT, LAST_PORT, Launch
from gpq.core.models import BatchOrder
from gpq.core.planning import plan
from gpq.core.units import JobId
from tests.builders import job, node, on, snapshot, spec


def port(number: int, attempt: int, salt: int = 0) -> int:
    return Launch(JobId(number), attempt, spec(), on("a", 0), BatchOrder(), salt=salt).port


def test_no_port_is_used_twice_within_many_attempts_of_many_jobs() -> None:
    near = [port(number, attempt) for number in range(1, 100) for attempt in range(1, 9)]
    assert len(set(near)) == len(near)
    assert all(FIRST_PORT <= each < LAST_PORT for each in near)


def test_two_daemons_on_one_machine_give_the_same_job_other_ports() -> None:
    here = snapshot(node("a"), job(1))
    ports = set()
    for salt in (0, 1_234_567, 987_654_321):
        [launch] = plan(replace(here, config=replace(here.config, port_salt=salt)), {JobId(1): on("a", 0)})
        assert isinstance(launch, Launch)
        assert FIRST_PORT <= launch.port < LAST_PORT
        ports.add(launch.port)
    assert len(ports) == 3
