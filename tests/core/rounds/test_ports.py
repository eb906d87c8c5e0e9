"""Master ports: outside the ephemeral range of the server, one per attempt, and nobody foresees them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from gpq.core.model.actions import Launch
from gpq.core.model.events import Launched
from gpq.core.model.placements import BatchOrder
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.planning import FIRST_PORT, WELL_KNOWN_PORTS, lease_port, leased_ports, plan, repeat, usable_ports
from gpq.core.state.apply_events import fold
from tests.support.builders import job, node, on, snapshot

HERE = on("a", 0)


def port(number: int, attempt: int, given: Snapshot | None = None) -> int:
    return lease_port(given or snapshot(node("a")), JobId(number), attempt, HERE, set())


def test_the_ports_of_earlier_attempts_do_not_tell_the_next_one() -> None:
    ports = [port(number, attempt) for number in range(1, 100) for attempt in range(1, 9)]
    steps = [later - earlier for earlier, later in pairwise(ports)]
    assert max(map(steps.count, steps)) <= 3
    assert all(FIRST_PORT <= number < 32_768 and number not in WELL_KNOWN_PORTS for number in ports)


def test_two_daemons_on_one_machine_give_the_same_job_other_ports() -> None:
    here = snapshot(node("a"), job(1))
    ports = set()
    for salt in (0, 1_234_567, 987_654_321):
        [launch] = plan(replace(here, config=replace(here.config, port_salt=salt)), {JobId(1): HERE})
        assert isinstance(launch, Launch)
        ports.add(launch.port)
    assert len(ports) == 3


@pytest.mark.parametrize(
    ("ephemeral", "first", "last"),
    [
        ((32_768, 60_999), 20_000, 32_767),
        ((15_000, 64_000), 64_001, 65_535),
        ((20_000, 65_535), 10_000, 19_999),
        ((1_024, 65_535), 20_000, 32_767),  # none is left: the server has to find out which is free
    ],
)
def test_ports_are_outside_the_servers_ephemeral_range(ephemeral: tuple[int, int], first: int, last: int) -> None:
    span = usable_ports(*ephemeral)
    assert (span[0], span[-1]) == (first, last)
    assert first <= port(1, 1, snapshot(replace(node("a"), ephemeral=ephemeral))) <= last


def test_a_port_that_a_living_attempt_has_is_not_leased_again_on_that_server() -> None:
    here = snapshot(node("a"), node("b"))
    mine = port(1, 1)
    taken = {(NodeId("a"), mine)}
    assert lease_port(here, JobId(1), 1, HERE, taken) == mine + 1
    assert lease_port(here, JobId(1), 1, on("b", 0), taken) == mine
    assert taken == {(NodeId("a"), mine), (NodeId("a"), mine + 1), (NodeId("b"), mine)}


def test_the_lease_is_kept_with_the_job_and_repeated_unchanged() -> None:
    before = snapshot(node("a"), job(1))
    event = Launched(1.0, JobId(1), 1, HERE, BatchOrder(), port=20_123)
    after = fold(before, [event]).snapshot
    assert leased_ports(after) == {(NodeId("a"), 20_123)}
    [again] = repeat(after, NodeId("a"))
    assert isinstance(again, Launch)
    assert again.port == 20_123
