"""Why a job gets other GPUs: the line names the true cause, and its numbers are those of the placements."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.core.feasibility.mobility import is_fixed
from gpq.core.model.accounts import Standing
from gpq.core.model.jobs import Job, Level, StopReason
from gpq.core.model.nodes import DeviceProcess, DeviceState, Node, Reservation
from gpq.core.model.placements import Exit, Placement
from gpq.core.model.profile import Noise, Profile, ProfileRow
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.motives import motives, own_wish, reallocations
from gpq.core.rounds.rounds import decide
from gpq.policies.registry import policy
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot, spec
from tests.support.examples import examples
from tests.support.explanations import explain


def measured(scale: float = 0.9, up_to: int = 3) -> Profile:
    rows = tuple(ProfileRow(1, k, 64, 0.08, 0.1 * k ** (1 - scale), 100.0) for k in range(1, up_to + 1))
    return Profile(
        declared=DECLARED, rows=rows, noise=Noise(1.0, 4000.0, 100), atomic_batch=64, samples_per_second=640.0
    )


def train(number: int, placement: Placement, *, low: int = 1, up_to: int = 0, **more: object) -> Job:
    fields = {"spec_": spec(gpus=low, up_to=up_to), "profile": measured(), **more}
    return running(number, placement, **fields)  # type: ignore[arg-type]


def stopped(number: int, had: int, **more: object) -> Job:
    """Ran on `had` GPUs and is queued again."""
    fields = {"attempt": 1, "last_replicas": had, "profile": measured(), "spec_": spec(up_to=4), **more}
    return job(number, **fields)  # type: ignore[arg-type]


def motive(here: Snapshot, wanted: dict[int, Placement], number: int = 1) -> str:
    return motives(here, {JobId(name): placement for name, placement in wanted.items()})[JobId(number)]


# -- its user's own doing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("had", "low", "up_to", "gets", "said"),
    [
        (3, 1, 1, 1, "3 -> 1 GPU: its user asked for 1 GPU"),
        (1, 2, 2, 2, "1 -> 2 GPUs: its user asked for 2 GPUs"),
        (1, 2, 4, 3, "1 -> 3 GPUs: its user asked for 2 to 4 GPUs"),
        (1, 2, 0, 4, "1 -> 4 GPUs: its user asked for 2 GPUs or more"),
        (2, 4, 4, 0, "stops and waits for 4 GPUs: its user asked for 4 GPUs"),
    ],
)
def test_a_jobs_own_edit_is_named_even_if_other_things_happen(
    had: int, low: int, up_to: int, gets: int, said: str
) -> None:
    mine = train(1, on("a", *range(had)), low=low, up_to=up_to)
    here = snapshot(node("a", 8), mine, job(2))  # another job waits and gets what is free
    wanted = {2: on("a", 7), **({1: on("a", *range(gets))} if gets else {})}
    assert motive(here, wanted) == said


def test_the_resume_after_an_edit_names_the_edit() -> None:
    here = snapshot(node("a", 4), stopped(1, 1, spec_=spec(gpus=2, up_to=2), stop=StopReason.RESIZE))
    assert motive(here, {1: on("a", 0, 1)}) == "resumes with 2 GPUs instead of 1: its user asked for 2 GPUs"


def test_a_job_that_makes_way_for_an_edited_job_says_so() -> None:
    here = snapshot(node("a", 4), train(1, on("a", 0, 1, 2)), train(2, on("a", 3), low=3, up_to=3))
    told = motive(here, {1: on("a", 0), 2: on("a", 1, 2, 3)})
    assert told == "3 -> 1 GPU: job 2 must have more: its user asked for 3 GPUs"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({"stop": StopReason.HOLD, "exit": Exit(0, stopped=True)}, "resumes with 2 GPUs after its user held it"),
        ({"stop": StopReason.REQUEUE, "exit": Exit(0, stopped=True)}, "resumes with 2 GPUs after `gpq requeue`"),
        ({"stop": StopReason.PREEMPT, "exit": Exit(0, stopped=True)}, "resumes with 2 GPUs"),
        ({"exit": Exit(1)}, "resumes with 2 GPUs after a failure"),
        ({"exit": Exit(None, lost=True)}, "resumes with 2 GPUs after it was lost with its server"),
        ({"exit": Exit(126, unlaunched="port")}, "resumes with 2 GPUs"),
        ({"exit": Exit(1), "spec_": black_box(2), "profile": Profile()}, "restarts with 2 GPUs after a failure"),
    ],
)
def test_a_launch_names_what_came_before_it(before: dict[str, object], said: str) -> None:
    assert motive(snapshot(node("a", 4), stopped(1, 2, **before)), {1: on("a", 0, 1)}) == said


# -- what drives it away -----------------------------------------------------------------------------------------------


def test_a_drain_a_reservation_an_owner_or_a_broken_gpu_is_named_as_the_cause() -> None:
    here = snapshot(node("a", 2), node("b", 2), train(1, on("a", 0)), job(2), now=100.0)
    there = {1: on("b", 0), 2: on("b", 1)}
    drained = replace(here, drained={NodeId("a"): "new driver"})
    assert motive(drained, there) == "moves to b:b-0: server a is drained: new driver"
    held = Reservation(3, NodeId("a"), 0.0, 1000.0, (), "bob", "bob")
    assert "moves to b:b-0: server a is reserved for bob" in motive(replace(here, reservations={3: held}), there)
    there_now = replace(node("a", 2), owner="eva", yields=("eva",))
    owners = Reservation(-1, NodeId("a"), 0.0, 1e11, (), "eva", "its owner")
    yielded = replace(here, nodes={**here.nodes, NodeId("a"): there_now}, reservations={-1: owners})
    assert "server a belongs to eva, who asked for it with `gpq yield`" in motive(yielded, {2: on("b", 1)})
    assert motive(yielded, {2: on("b", 1)}).startswith("stops and waits for 1 GPU elsewhere: ")
    lost = replace(here.nodes[NodeId("a")].devices[0], state=DeviceState.LOST, reason="it fell off the bus")
    broken = replace(here.nodes[NodeId("a")], devices=(lost, *here.nodes[NodeId("a")].devices[1:]))
    said = motive(replace(here, nodes={**here.nodes, NodeId("a"): broken}), there)
    assert said == "moves to b:b-0: GPU 0 of a is lost: it fell off the bus"


def test_unused_gpus_are_named_as_the_cause() -> None:
    here = snapshot(node("a", 4), train(1, on("a", 0, 1), idle=True), job(2))
    assert motive(here, {1: on("a", 0), 2: on("a", 2)}) == "2 -> 1 GPU: it left GPUs unused"


def test_the_job_that_gets_them_is_named_and_not_the_first_one() -> None:
    grows, waits = train(2, on("a", 3)), job(3)
    here = snapshot(node("a", 4), node("b", 1), train(1, on("a", 0, 1, 2)), grows, waits)
    wanted = {1: on("a", 0), 2: on("a", 1, 2, 3), 3: on("b", 0)}  # the waiting job gets another server's GPUs
    assert motive(here, wanted) == "3 -> 1 GPU: job 2 gains more from them"
    pushed = {1: on("a", 0), 2: on("a", 1), 3: on("a", 3)}  # the two swap places, for the third one
    assert motive(here, pushed) == "3 -> 1 GPU: job 3 needs room"
    assert motive(here, {1: on("a", 0)}) == "3 -> 1 GPU: the policy goodput keeps them free"


def test_a_stop_and_its_launch_count_from_the_former_gpus() -> None:
    asked = {"spec_": spec(gpus=2, up_to=2), "stop": StopReason.RESIZE, "target": on("a", 0, 1).shape}
    here = snapshot(node("a", 4), stopped(1, 1, **asked))
    wanted = {JobId(1): on("a", 0, 1)}
    [told] = reallocations(here, wanted, motives(here, wanted))
    assert (told.before, told.after) == (1, 2)


# -- whatever a round decides ------------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Jobs on one or two servers: some edited since, waiting, idle, in the background, drained, or undeclared."""
    nodes: list[Node] = [node("a", draw(st.integers(1, 6))), node("b", draw(st.integers(0, 3)))]
    free = [(each, index) for each in nodes for index in range(len(each.devices))]
    jobs: list[Job] = []
    for number in range(1, draw(st.integers(1, 5)) + 1):
        low = draw(st.integers(1, 4))
        up_to = draw(st.sampled_from([0, low, low + 2]))
        level = draw(st.sampled_from([Level.SCRIPT, Level.SCRIPT, Level.SCRIPT, Level.SIGNAL, Level.BLACK_BOX]))
        most = up_to if level is Level.SCRIPT else low
        asked = spec(level=level, gpus=low, up_to=most, background=draw(st.booleans()))
        count = draw(st.integers(0, 4))
        home = draw(st.sampled_from(["a", "b"]))
        there = [item for item in free if item[0].id == home][:count]
        told = draw(st.booleans())
        profile = measured(draw(st.sampled_from([0.1, 0.9])), draw(st.integers(1, 3))) if told else Profile()
        if there:
            free = [item for item in free if item not in there]
            place = on(there[0][0].id, *(index for _, index in there))
            since = draw(st.sampled_from([-1000.0, -1.0]))
            idle = draw(st.booleans())
            jobs.append(running(number, place, since=since, spec_=asked, profile=profile, idle=idle))
        else:
            jobs.append(job(number, spec_=asked, profile=profile))
    name = draw(st.sampled_from(["goodput", "optimus", "fifo"]))
    here = snapshot(*nodes, *jobs, policy=name, gang=policy(name).gang, settle_seconds=15.0)
    drained = {NodeId("a"): "repair"} if draw(st.sampled_from([False, False, True])) else {}
    return replace(here, drained=drained)


@given(clusters())
@settings(max_examples=examples(300), deadline=None)
def test_each_motive_of_any_round_agrees_with_the_decision(here: Snapshot) -> None:
    made = decide(here, [], policy(here.config.policy), allocate=True).round
    assert made is not None
    for name, said in made.motives.items():
        one, wanted = here.jobs[name], made.placements.get(name)
        gets = wanted.replicas if wanted is not None else 0
        if found := re.match(r"(\d+) -> (\d+) GPU", said):
            assert (int(found[1]), int(found[2])) == (one.replicas, gets), said
        if found := re.match(r"(?:starts|resumes|restarts) with (\d+) GPU", said):
            assert int(found[1]) == gets, said
        if found := re.search(r"stops to free its (\d+) GPU", said):
            assert (int(found[1]), gets) == (one.replicas, 0), said
        if found := re.search(r"job (\d+) (needs room|gains more|must have more)", said):
            other = here.jobs[JobId(int(found[1]))]
            given_to = made.placements[other.id].replicas
            assert given_to > other.replicas, said
            assert (other.placement is None) is (found[2] == "needs room"), said
            assert not own_wish(one.spec, one.replicas), said
        if one.placement is not None and one.elastic and own_wish(one.spec, one.replicas) and not here.drained:
            assert "its user asked for" in said, said
    for change in made.changes:
        wanted = made.placements.get(change.job)
        assert change.after == (wanted.replicas if wanted is not None else 0)
        assert change.before == here.jobs[change.job].replicas


NUMBERS: dict[str, Callable[[Snapshot, Job], int]] = {
    r"runs on (\d+) GPU": lambda here, one: one.replicas,
    r"it has (\d+) GPUs?, but": lambda here, one: one.replicas,
    r"as many GPUs as it may have \((\d+)\)": lambda here, one: one.replicas,
    r"all the GPUs that there are \((\d+)\)": lambda here, one: one.replicas,
    r"the fewest GPUs that it may have \((\d+)\)": lambda here, one: one.replicas,
    r"so it keeps only (\d+) GPU": lambda here, one: one.replicas,
    r"so gpq reduces it to (\d+) GPU": lambda here, one: one.spec.min_gpus,
    r"^it needs (\d+) GPU": lambda here, one: one.spec.min_gpus,
}


@given(clusters())
@settings(max_examples=examples(300), deadline=None)
def test_each_number_in_an_explanation_is_that_of_the_placement(here: Snapshot) -> None:
    held = {device for each in here.jobs.values() if each.placement for device in each.placement.devices}
    usable = {
        (each.id, device.id) for each in here.nodes.values() for device in each.devices if each.id not in here.drained
    }
    for one in here.jobs.values():
        answer = explain(here, None, one)
        for line in (answer.headline, *answer.reasons):
            for pattern, expected in NUMBERS.items():
                if found := re.search(pattern, line):
                    assert int(found[1]) == expected(here, one), line
            if found := re.search(r"(\d+) (?:of \d+ )?(?:is|are) free", line):
                assert int(found[1]) == len(usable - held), line
            if found := re.search(r"its user asked for (\d+) GPUs?(?:\.|$)", line):
                assert int(found[1]) == one.spec.min_gpus == one.spec.max_gpus
            if "the fewest GPUs that it may have" in line:
                assert one.spec.min_gpus == one.replicas, line
            if "was not worth a restart" in line:
                assert not is_fixed(one, here), line
                assert here.config.policy != "fifo", line


def test_a_job_with_fewer_gpus_than_its_new_minimum_says_both() -> None:
    mine = train(1, on("a", 0), low=2, up_to=2)
    reasons = explain(snapshot(node("a", 4), mine), None, mine).reasons
    assert not any("fewest" in line for line in reasons)
    assert any(line.startswith("it has 1 GPU, but its user asked for 2 GPUs") for line in reasons)


def test_a_gpu_that_others_use_is_not_free_for_it() -> None:
    machine = node("a", 3)
    taken = replace(machine.devices[2], state=DeviceState.FOREIGN, processes=(DeviceProcess(7, "bob", "python"),))
    mine = train(1, on("a", 0), up_to=2, profile=measured(0.0))
    here = snapshot(replace(machine, devices=(*machine.devices[:2], taken)), mine, now=1000.0)
    assert any("1 is free, but that was not worth a restart" in line for line in explain(here, None, mine).reasons)


# -- floors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
def test_who_gives_gpus_for_a_floor_hears_whose_it_is(background: bool) -> None:
    bob = spec(user="bob", gpus=7, up_to=7)
    jobs = [train(1, on("a", 0, 1, 2, 3, 4, 5, 6), spec_=bob), train(2, on("a", 7)), job(3)]
    if background:
        jobs.append(job(4, spec_=spec(background=True)))
    here = snapshot(node("a", 8), *jobs, now=1000.0)
    patient = replace(here, standings={"ana": Standing(short=0.0)}, standings_at=1000.0)
    impatient = replace(here, standings={"ana": Standing(short=600.0)}, standings_at=1000.0)

    def lines(state: Snapshot) -> dict[JobId, str]:
        outcome = decide(state, [], policy("fifo"), allocate=True).round
        assert outcome is not None
        return dict(outcome.motives)

    assert lines(patient) == {}
    assert lines(impatient)[JobId(1)] == "stops to free its 7 GPUs: user ana gets their floor of 4 GPUs"


def test_a_job_that_moves_or_stops_for_a_floor_says_so() -> None:
    bob = spec(user="bob", gpus=2)
    here = snapshot(node("a", 2), node("b", 2), train(1, on("a", 0, 1), spec_=bob), job(2, spec_=spec(gpus=2)))
    placements = {JobId(2): on("a", 0, 1)}
    stops = motives(here, placements, {"ana": 2})[JobId(1)]
    assert stops == "stops to free its 2 GPUs: user ana gets their floor of 2 GPUs"
    moves = motives(here, {**placements, JobId(1): on("b", 0, 1)}, {"ana": 2})[JobId(1)]
    assert moves == "moves to b:b-0,b-1: user ana gets their floor of 2 GPUs"
    own = replace(here.jobs[JobId(1)], spec=spec(gpus=2))
    ours = replace(here, jobs={**here.jobs, JobId(1): own})
    assert motives(ours, placements, {"ana": 2})[JobId(1)] == "stops to free its 2 GPUs: job 2 needs room"
