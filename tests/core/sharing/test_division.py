"""How a round keeps floors under any policy: who is short, for how long, who may borrow, and what users owe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.core.feasibility.shapes import gpu_range, shape_on
from gpq.core.model.accounts import Standing
from gpq.core.model.jobs import Allotment, Job, JobSpec, Level
from gpq.core.model.nodes import Node, Reservation
from gpq.core.model.placements import Shape
from gpq.core.model.policy import Policy, shape_of
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.placement import place
from gpq.core.rounds.rounds import allocate_for
from gpq.core.sharing.division import HALF_LIFE, Division, divide
from gpq.core.sharing.floors import PERIOD
from gpq.policies.registry import POLICIES, policy
from tests.policies.test_house_rules import NOW, check_allowed, drawn, must_stay, on_every_policy, snapshots
from tests.support.builders import black_box, brief, job, node, on, running, snapshot, spec
from tests.support.examples import examples
from tests.support.teams import LIES, NUMBERS, ROUND, courses, equal_part, equals, random_team, trained, trio

FOUR = tuple(node(name) for name in "wxyz")
PATIENCE = Config().floor_patience
TYPES = ("A100", "T4")
BOTH = ("ana", "ana", "bob", "bob")


def training(number: int, user: str, **more: object) -> Job:
    """A waiting job that has been on every size."""
    return job(number, spec_=spec(user=user, **more), profile=trained())


def at_work(number: int, user: str, name: str, *devices: int, **more: object) -> Job:
    return running(number, on(name, *devices), spec_=spec(user=user, **more), profile=trained())


def here(*things: Job | Node, standings: dict[str, Standing] | None = None, **config: object) -> Snapshot:
    """A minute after the last round."""
    made = snapshot(*things, now=ROUND, **config)
    return replace(made, standings=standings or {}, standings_at=0.001)


def gpus(division: Division, at: Snapshot) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, placement in division.placements.items():
        counts[at.jobs[name].spec.user] += placement.replicas
    return counts


# -- who may borrow --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "borrows"),
    [
        (black_box(user="ana"), False),
        (black_box(user="ana", time_limit=3600.0), True),
        (black_box(user="ana", time_limit=10_000.0), False),
        (spec(user="ana"), False),  # a script that has not declared itself may never do so
        (spec(user="ana", level=Level.SIGNAL), True),
    ],
)
def test_beyond_the_floor_only_jobs_start_whose_gpus_come_back(own: JobSpec, borrows: bool) -> None:
    jobs = [job(number, spec_=own) for number in range(1, 13)]
    at = here(*FOUR, *jobs, job(20, spec_=black_box(user="bob")))
    expected = 12 if borrows else 8
    assert gpus(divide(at, policy("fifo")), at) == {"ana": expected, "bob": 1}
    alone = here(*FOUR, *jobs)
    assert gpus(divide(alone, policy("fifo")), alone) == {"ana": 12}


def test_what_is_reserved_for_a_user_is_not_borrowed() -> None:
    jobs = [job(number, spec_=black_box(user="ana")) for number in range(1, 13)]
    at = here(node("w"), node("x"), *jobs, job(20, spec_=black_box(user="bob")))
    at = replace(at, reservations={1: Reservation(1, NodeId("w"), 0.0, 1e6, user="ana")})
    assert gpus(divide(at, policy("fifo")), at) == {"ana": 6, "bob": 1}


def test_background_jobs_use_all_that_is_left() -> None:
    jobs = [job(number, spec_=black_box(user="ana", background=True)) for number in range(1, 13)]
    at = here(*FOUR, *jobs, job(19, spec_=black_box(user="ana")), job(20, spec_=black_box(user="bob")))
    assert gpus(allocate_for(at, policy("fifo")), at) == {"ana": 13, "bob": 1}


def test_what_is_left_of_a_time_limit_counts() -> None:
    resumed = job(1, spec_=black_box(3, user="ana", time_limit=10_000.0), run_seconds=3_000.0)
    at = here(node("w"), resumed, job(2, spec_=black_box(user="bob")))
    assert gpus(divide(at, policy("fifo")), at) == {"ana": 3, "bob": 1}


def test_a_job_in_the_way_of_a_floor_is_no_longer_in_it_once_it_runs() -> None:
    """What runs and cannot stop counts before what waits, whichever came first."""
    started = running(1, on("w", 0, 1), at=50.0, spec_=black_box(2, user="ana"))
    first = job(2, at=0.0, spec_=black_box(user="ana"))
    at = here(node("w"), started, first, job(3, spec_=black_box(user="bob")))
    assert set(divide(at, policy("fifo")).placements) == {1, 3}


def test_a_job_that_may_not_borrow_gets_the_type_of_which_its_users_floor_has_most() -> None:
    kept = running(1, on("w", 0, 1), spec_=black_box(2, user="ana"))
    rival = job(3, spec_=black_box(user="bob"))
    at = here(node("w"), node("t", type="T4"), kept, job(2, spec_=black_box(user="ana")), rival)
    assert divide(at, policy("goodput")).placements[JobId(2)].gpu_type == "T4"
    picky = job(2, spec_=black_box(user="ana", gpu_type="a100"))
    assert JobId(2) not in divide(here(*at.nodes.values(), kept, picky, rival), policy("goodput")).placements


# -- priorities ------------------------------------------------------------------------------------


def test_a_priority_orders_the_jobs_of_its_user_and_takes_nothing_from_others() -> None:
    def shares(priority: int, **config: object) -> Counter[str]:
        jobs = [training(number, user, priority=priority * (user == "bob")) for number, user in enumerate(BOTH, 1)]
        at = here(*FOUR, *jobs, **config)
        return gpus(divide(at, policy("goodput")), at)

    assert shares(10) == shares(1) == shares(0) == {"ana": 8, "bob": 8}
    assert shares(10, floors=False) == {"bob": 16}
    first = here(node("w", 2), *[job(n, spec_=black_box(user="ana", priority=n)) for n in (1, 2)], training(3, "bob"))
    assert set(divide(first, policy("fifo")).placements) == {2, 3}


# -- patience --------------------------------------------------------------------------------------


class Favours(Policy):
    """Bob's jobs get as many GPUs as they can use, but for `others`. The other jobs get the rest. For one server."""

    name = "favours"

    def __init__(self, others: int = 0) -> None:
        self.others = others

    def allocate(self, snapshot: Snapshot) -> dict[JobId, Shape]:
        left, allocation = sum(len(server.devices) for server in snapshot.nodes.values()), {}
        beside = any(each.spec.user != "bob" for each in snapshot.jobs.values())
        for each in sorted(snapshot.jobs.values(), key=lambda each: (each.spec.user != "bob", each.id)):
            spare = self.others if beside and each.spec.user == "bob" else 0
            fewest, most = gpu_range(each, max(left - spare, 0))
            if fewest <= min(most, left):
                allocation[each.id] = Shape(min(most, left))
                left -= min(most, left)
        return allocation


def favoured(others: int, short: float) -> tuple[Snapshot, Division]:
    """Ana and bob are due two GPUs each. The policy gives her `others`."""
    at = here(node("w"), training(1, "ana"), training(2, "bob"), standings={"ana": Standing(0.0, short)})
    return at, divide(at, Favours(others))


def test_who_is_short_waits_for_the_patience() -> None:
    at, division = favoured(1, PATIENCE - 2 * ROUND)
    assert gpus(division, at) == {"ana": 1, "bob": 3}
    assert division.standings["ana"].short == pytest.approx(PATIENCE - ROUND, abs=0.01)
    at, division = favoured(1, PATIENCE - ROUND)
    assert gpus(division, at) == {"ana": 1, "bob": 3}
    at, division = favoured(1, PATIENCE - ROUND + 0.01)
    assert gpus(division, at) == {"ana": 2, "bob": 2}
    assert division.standings["ana"].short == PATIENCE, "the policy would take it again"


def test_who_has_nothing_gets_a_part_at_once() -> None:
    at, division = favoured(0, 0.0)
    assert gpus(division, at) == {"ana": 2, "bob": 2}


def test_two_users_who_are_short_get_parts_of_their_own() -> None:
    at = here(node("w", 6), *[training(number, user) for number, user in enumerate(["ana", "bob", "cat"], 1)])
    division = divide(at, Favours())
    assert gpus(division, at) == {"ana": 2, "bob": 2, "cat": 2}
    assert len({device for placement in division.placements.values() for device in placement.devices}) == 6


def test_patience_is_whole_again_at_the_floor() -> None:
    at, division = favoured(2, PATIENCE)
    assert gpus(division, at) == {"ana": 2, "bob": 2}
    assert "ana" not in division.standings


def test_a_long_pause_between_rounds_counts_as_one_round() -> None:
    at = here(node("w"), training(1, "ana"), training(2, "bob"), standings={"ana": Standing(0.0, 60.0)})
    division = divide(replace(at, now=50_000.0), Favours(1))
    assert division.standings["ana"].short == pytest.approx(120.0)


def test_idle_gpus_go_to_other_jobs_of_who_was_given_a_part() -> None:
    large = training(1, "bob", gpus=3, up_to=3)  # does not fit beside ana's part
    own = [training(2, "ana", gpus=2, up_to=2), training(3, "ana", up_to=1)]
    at = here(node("w"), large, *own, standings={"ana": Standing(0.0, PATIENCE)})
    assert gpus(divide(at, Favours()), at) == {"ana": 3}


# -- one user --------------------------------------------------------------------------------------


class Observed(Policy):
    """Goodput, and the snapshots that it was asked about."""

    name = "observed"

    def __init__(self) -> None:
        self.questions: list[Snapshot] = []

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        self.questions.append(snapshot)
        return policy("goodput").allocate(snapshot)


@pytest.mark.parametrize("config", [{}, {"by_user": False}, {"floors": False}])
def test_without_floors_the_policy_is_asked_once_about_the_snapshot_itself(config: dict[str, bool]) -> None:
    others = [training(2, "bob" if config else "ana", priority=3), job(3, spec_=black_box(user="ana"))]
    at = here(*FOUR, training(1, "ana"), *others, **config)
    observed = Observed()
    division = divide(at, observed)
    assert [question is at for question in observed.questions] == [True]
    assert division.allotments == policy("goodput").allocate(at)
    assert division.placements == place(at, division.allotments)
    assert division.standings == {}


def test_what_a_policy_remembers_of_everybody_is_apart_from_what_it_remembers_of_parts() -> None:
    observed = Observed()
    for _ in range(2):
        divide(here(*FOUR, training(1, "ana"), training(2, "bob")), observed)
    assert [len(question.jobs) for question in observed.questions] == [2, 2]


# -- debts -----------------------------------------------------------------------------------------


def owed(ana: int, *jobs: Job, at: float = ROUND, debt: float = 0.0, since: float = 0.001) -> float:
    """Ana's debt at time `at` if she holds `ana` of the four GPUs of a server, two of which are due to her."""
    made = snapshot(node("w"), at_work(1, "ana", "w", *range(ana)), *jobs, now=at)
    made = replace(made, standings={"ana": Standing(debt)} if debt else {}, standings_at=since)
    return divide(made, policy("goodput")).standings.get("ana", Standing()).debt


def test_a_debt_grows_by_what_is_borrowed_while_another_could_use_more() -> None:
    waits, stuck = training(2, "bob"), at_work(2, "bob", "w", 3, up_to=1)
    assert owed(3, waits) == pytest.approx(ROUND, abs=0.01)
    assert owed(4, waits) == pytest.approx(2 * ROUND, abs=0.01)
    assert owed(2, waits) == 0
    assert owed(3, at_work(2, "bob", "w", 3)) == pytest.approx(ROUND, abs=0.01), "it could grow"
    assert owed(3, stuck) == 0, "bob can use no more"
    assert owed(3, job(2, spec_=spec(user="bob"), not_before=1e6)) == 0
    assert owed(3, waits, since=0.0) == 0, "nobody knows what was held before the first round"
    assert owed(3, waits, at=5_000.0) == pytest.approx(ROUND, abs=0.1), "nor in a long pause"


def test_who_is_the_only_one_to_want_more_owes_nothing() -> None:
    """Ana has less than is due to her of both types together, but more of one of them."""
    jobs = [at_work(1, "ana", "a", 0, 1, 2), at_work(2, "bob", "t", 0, up_to=1)]
    typed = [
        replace(each, placement=replace(each.placement, gpu_type=kind)) for each, kind in zip(jobs, TYPES, strict=True)
    ]  # type: ignore[type-var]
    at = here(node("a"), node("t", type="T4"), *typed, training(3, "ana"))
    assert "ana" not in divide(at, policy("goodput")).standings


def test_a_debt_halves_every_day_and_a_small_one_is_forgotten() -> None:
    nobody = at_work(2, "bob", "w", 2, 3)
    assert owed(2, nobody, at=HALF_LIFE, debt=5_000.0, since=0.001) == pytest.approx(2_500.0, rel=1e-3)
    assert owed(2, nobody, at=HALF_LIFE, debt=1.5) == 0
    away = replace(snapshot(node("w"), training(1, "bob"), now=ROUND), standings={"ana": Standing(5_000.0)})
    assert divide(replace(away, standings_at=0.001), policy("goodput")).standings["ana"].debt == pytest.approx(
        5_000, rel=1e-3
    )


@pytest.mark.parametrize(("users", "count", "gpus"), [(3, 4, 4), (5, 3, 4), (4, 2, 3)])
def test_equal_users_have_equal_gpu_hours_whatever_their_number(users: int, count: int, gpus: int) -> None:
    """The first hour begins without placements."""
    team = equals(users, 2, count, gpus)
    for _ in range(2):
        team.gpu_seconds.clear()
        for _ in range(int(PERIOD / ROUND)):
            team.round()
    assert max(team.gpu_seconds.values()) <= 1.05 * min(team.gpu_seconds.values())


# -- liars -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", [*LIES, *NUMBERS])
def test_no_lie_keeps_others_below_their_static_share_for_longer_than_the_patience(lie: str) -> None:
    for course in courses(trio(lie, Config()), {"ana": 5, "cat": 5}, 25).values():
        assert course.longest <= PATIENCE + ROUND


@given(st.integers(0, 10**6))
@settings(max_examples=examples(12), deadline=None, derandomize=True)
def test_a_truthful_user_among_liars_is_not_below_a_static_share_for_longer_than_the_patience(seed: int) -> None:
    team = random_team(seed, Config())
    assert courses(team, {"u0": equal_part(team)}, 25)["u0"].longest <= PATIENCE + ROUND


# -- any policy ------------------------------------------------------------------------------------


@st.composite
def disputes(draw: st.DrawFn) -> Snapshot:
    """Any snapshot, whose users have waited and owe."""
    debts, waits = st.sampled_from([0.0, 1_800.0, 50_000.0]), st.sampled_from([0.0, 300.0, PATIENCE])
    standings = {user: Standing(draw(debts), draw(waits)) for user in ("ana", "bo")}
    return replace(draw(snapshots()), standings=standings, standings_at=NOW - ROUND)


@on_every_policy
@drawn
@given(at=disputes())
def test_divided_gpus_go_to_one_job_each_which_may_have_them(name: str, at: Snapshot) -> None:
    division = divide(at, brief(name))
    devices = [device for placement in division.placements.values() for device in placement.devices]
    assert len(devices) == len(set(devices))
    assert division.placements.keys() <= division.allotments.keys()
    for number, placement in division.placements.items():
        assert shape_of(division.allotments[number]).replicas == placement.replicas
        check_allowed(at, number, placement, gang=POLICIES[name].gang)
    for number, each in at.jobs.items():
        if must_stay(each, at):
            assert division.placements[number] == each.placement


@on_every_policy
@drawn
@given(at=disputes())
def test_the_order_of_a_snapshot_and_a_second_call_do_not_change_a_division(name: str, at: Snapshot) -> None:
    first = divide(at, brief(name))
    assert divide(at, brief(name)) == first
    backwards = replace(
        at,
        nodes=dict(reversed(at.nodes.items())),
        jobs=dict(reversed(at.jobs.items())),
        oracles=dict(reversed(at.oracles.items())),
        standings=dict(reversed(at.standings.items())),
    )
    assert divide(backwards, brief(name)) == first


class Withholds(Policy):
    """Gives nothing to ana unless she is alone, and does not name jobs that must stay."""

    name = "withholds"

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        answer = policy("goodput").allocate(snapshot)
        users = {asked.spec.user for asked in snapshot.jobs.values()}
        return {
            name: allotment
            for name, allotment in answer.items()
            if (users == {"ana"} or snapshot.jobs[name].spec.user != "ana")
            and not must_stay(snapshot.jobs[name], snapshot)
        }


def test_shapes_name_their_type_also_on_a_part_that_has_one_type() -> None:
    at = here(
        node("a", 2),
        node("t", 2, type="T4"),
        training(1, "ana", gpu_type="a100"),
        training(2, "bob"),
        training(3, "bob"),
    )
    division = divide(at, Withholds())
    assert division.secured.keys() == {"ana"}
    assert all(shape_of(division.allotments[name]) == shape_on(p, at) for name, p in division.placements.items())


def test_a_secured_user_also_gets_what_nobody_else_can_use() -> None:
    """Bob's job needs three GPUs, and two are left."""
    at = here(
        node("w"),
        training(1, "ana"),
        training(2, "ana"),
        training(3, "bob", gpus=3, up_to=3),
        standings={"ana": Standing(0.0, PATIENCE)},
    )
    division = divide(at, policy("goodput"))
    assert division.secured.keys() == {"ana"}
    assert gpus(division, at) == {"ana": 4}


def test_a_user_to_whom_others_left_their_part_in_pieces_chooses_first() -> None:
    """Three users need five GPUs or more on two servers of eight, and one of them has a job in the way of another."""
    team = random_team(428, Config())
    course = courses(team, {"u0": equal_part(team)}, 30)["u0"]
    assert course.longest <= PATIENCE + ROUND


def test_who_borrows_gives_way_and_not_who_has_just_their_floor() -> None:
    """Bob's jobs pretend to scale perfectly."""
    least = [
        min(course.ratio for course in courses(trio("quick", Config(floors=on)), {"ana": 5, "cat": 5}, 60).values())
        for on in (False, True)
    ]
    assert least[0] < 0.85
    assert least[1] > 0.9


def test_a_policy_need_not_name_a_job_that_it_may_not_move() -> None:
    fixed = running(4, on("w", 0), spec_=black_box(user="ana"))
    standings = {"ana": Standing(0.0, PATIENCE)}
    at = here(node("w"), fixed, training(1, "ana"), training(3, "bob", gpus=3, up_to=3), standings=standings)
    division = divide(at, Withholds())
    assert division.secured.keys() == {"ana"}
    assert division.placements[fixed.id] == fixed.placement
    assert gpus(division, at) == {"ana": 4}
