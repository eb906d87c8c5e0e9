"""What a loop does is kept once for each code, takes its freedoms permanently, and is lent to the next job of the
program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpq_agent import wire

from gpq.core.feasibility import owners
from gpq.core.freedoms import (
    MAX_HABITS,
    MEANING,
    MENDED_AFTER,
    bind,
    blame,
    cures,
    gpus_kept,
    lend,
    merge_habits,
    with_habits,
)
from gpq.core.goodput.priors import program_of
from gpq.core.model import events as facts
from gpq.core.model.events import Event
from gpq.core.model.jobs import Job, JobState, Level, StopReason
from gpq.core.model.placements import Shape
from gpq.core.model.profile import ACCUMULATE, FREEDOMS, RESIZE, RETUNE, SPLIT, Habit, Profile, Progress
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.rounds import due
from gpq.core.state.apply_events import fold
from tests.support.builders import DECLARED, job, node, on, running, snapshot, spec
from tests.support.explanations import explain

SAM = Habit("two-passes", (ACCUMULATE, SPLIT), "two passes", "none is needed")
OWN_EPOCHS = Habit("own-epochs", (RESIZE,), "its own epochs", "for epoch in job.epochs(count):")
DECLARES = replace(DECLARED, parameters=5)


def report(here: Snapshot, number: int, offset: int, **said: object) -> Snapshot:
    one = here.jobs[JobId(number)]
    return fold(here, [facts.Profiled(here.now, one.id, one.attempt, offset, **said)]).snapshot  # type: ignore[arg-type]


def profile_of(here: Snapshot, number: int) -> Profile:
    return here.jobs[JobId(number)].profile


def at_step(step: int) -> Progress:
    return Progress(0, 10, 0, step, float(step), 0.1)


def test_the_names_match_the_wire() -> None:
    assert FREEDOMS == wire.FREEDOMS == tuple(MEANING)


def test_one_habit_is_kept_per_code_and_a_lost_freedom_stays_lost() -> None:
    once = merge_habits((), [SAM])
    assert merge_habits(once, [SAM]) is once
    [both] = merge_habits(once, [replace(SAM, freedoms=(RETUNE,), message="other words")])
    assert (both.freedoms, both.message) == ((ACCUMULATE, SPLIT, RETUNE), "other words")


def test_an_accepted_suspicion_takes_nothing_but_an_observation_does() -> None:
    suspected = Habit("token-loss", (RESIZE,), "a mean over tokens", "job.weigh(tokens)", suspected=True)
    here = report(
        snapshot(running(1, on("a", 0), declared=False), node("a", 2)),
        1,
        10,
        declared=DECLARES,
        habits=(SAM, suspected),
    )
    one = here.jobs[JobId(1)]
    assert one.profile.lost == {ACCUMULATE, SPLIT, RESIZE}
    assert "(token-loss, suspected)" in blame(one, RESIZE)
    assert "gpq edit 1 --accept token-loss" in cures(one, RESIZE)[0]
    accepted = one.spec.having(accept=("token-loss", "two-passes"))
    here = fold(here, [facts.Edited(here.now, one.id, accepted, one.awaits, "me", "")]).snapshot
    assert profile_of(here, 1).lost == {ACCUMULATE, SPLIT}
    here = report(here, 1, 20, habits=(suspected,))
    assert profile_of(here, 1).habits == (SAM,)
    borrower = job(2, spec_=spec(accept=("token-loss",)))
    assert lend(borrower, [SAM, suspected]).profile.lost == {ACCUMULATE, SPLIT}


def test_a_result_of_gpq_check_is_not_lent_to_other_jobs() -> None:
    here = snapshot(running(1, on("a", 0), declared=False), job(2), node("a", 2))
    here = report(here, 1, 10, declared=DECLARES, habits=(Habit("proven", (SPLIT,), "two replicas: differs"), SAM))
    assert profile_of(here, 1).lost == {ACCUMULATE, SPLIT}
    [prior] = here.priors.values()
    assert prior.habits == (SAM,)


def test_the_freedoms_of_habits_beyond_the_limit_still_count() -> None:
    many = merge_habits((), [Habit(f"code-{number}", (SPLIT,)) for number in range(500)] + [OWN_EPOCHS])
    assert len(many) == MAX_HABITS
    assert Profile(habits=many).lost == {SPLIT, RESIZE}


def test_a_declaration_is_reduced_by_habits_in_any_order() -> None:
    for reports in ([{"declared": DECLARES}, {"habits": (SAM,)}], [{"habits": (SAM,)}, {"declared": DECLARES}]):
        here = snapshot(running(1, on("a", 0), declared=False), node("a"))
        for offset, said in enumerate(reports, 1):
            here = report(here, 1, offset, **said)
        declared = profile_of(here, 1).declared
        assert declared == replace(DECLARES, accumulation=False)
        assert declared is profile_of(report(here, 1, 9, metrics=(("x", 1.0),)), 1).declared, "no new model for it"
        again = report(here, 1, 10, declared=DECLARES)
        assert profile_of(again, 1).declared == declared, "the next attempt declares the same"


def test_a_job_that_lost_retune_counts_as_not_adaptive() -> None:
    kept = with_habits(Profile(declared=DECLARED), (Habit("closure", (ACCUMULATE, SPLIT, RETUNE)),))
    assert kept.declared == replace(DECLARED, accumulation=False, adaptive=False)
    assert with_habits(kept, ()).declared == DECLARED


def test_a_job_that_lost_resize_can_be_stopped_but_not_moved() -> None:
    one = running(1, on("a", 0))
    strict = replace(one, profile=with_habits(one.profile, (OWN_EPOCHS,)))
    assert (one.elastic, one.movable, one.resumable) == (True, True, True)
    assert (strict.elastic, strict.movable, strict.resumable) == (False, False, True)
    signal = replace(strict, spec=spec(level=Level.SIGNAL))
    assert (signal.movable, signal.resumable) == (True, True), "its loop is none of ours"


@pytest.mark.parametrize(
    ("asked", "last", "kept"), [((1, 8), 3, 3), ((1, 2), 3, 2), ((4, 0), 3, 4), ((1, 0), 5, 5), ((2, 4), 0, 2)]
)
def test_it_resumes_with_its_old_number_of_gpus_within_the_present_request(
    asked: tuple[int, int], last: int, kept: int
) -> None:
    profile = with_habits(Profile(declared=DECLARED), (OWN_EPOCHS,))
    waits = job(1, spec_=spec(gpus=asked[0], up_to=asked[1]), profile=profile, last_replicas=last, attempt=1)
    here = snapshot(node("a", 8), waits)
    assert gpus_kept(waits) == kept
    narrow = bind(waits, here)
    assert (narrow.spec.min_gpus, narrow.spec.max_gpus) == (kept, kept)
    assert bind(narrow, here) == narrow


def test_a_target_that_is_no_longer_allowed_is_forgotten() -> None:
    profile = with_habits(Profile(declared=DECLARED), (OWN_EPOCHS,))
    leaving = running(1, on("a", 0), profile=profile, state=JobState.STOPPING, target=Shape(4))
    assert bind(leaving, snapshot(node("a", 8), leaving)).target is None


def test_a_new_habit_triggers_a_round_but_an_old_one_does_not() -> None:
    here = replace(snapshot(running(1, on("a", 0)), node("a"), interval=1e9), round_at=0.0)
    told = facts.Profiled(0.0, JobId(1), 1, 5, habits=(SAM,))
    assert due(here, [told])
    assert not due(fold(here, [told]).snapshot, [replace(told, offset=6)])


def test_a_stop_by_its_user_says_what_is_lost() -> None:
    one = running(1, on("a", 0))
    strict = replace(one, profile=with_habits(one.profile, (OWN_EPOCHS,)))

    def told(each: Job, reason: StopReason) -> tuple[str, ...]:
        sent: Event = facts.StopSent(1.0, each.id, 1, reason)
        return fold(snapshot(each, node("a")), [sent]).snapshot.jobs[each.id].notices

    assert "does not resume exactly after a restart: its own epochs (own-epochs)" in told(strict, StopReason.REQUEUE)[0]
    assert told(strict, StopReason.CANCEL) == told(one, StopReason.REQUEUE) == ()


# -- the next job of the program ---------------------------------------------------------------------------------------


def with_two_jobs() -> Snapshot:
    """The first has shown a habit. The second has just declared itself."""
    here = snapshot(running(1, on("a", 0), declared=False), running(2, on("a", 1), declared=False), node("a"))
    here = report(here, 1, 1, declared=DECLARES, habits=(SAM,))
    return report(here, 2, 1, declared=DECLARES)


def test_the_next_job_of_the_program_begins_with_its_habits() -> None:
    here = with_two_jobs()
    assert here.priors[program_of(here.jobs[JobId(1)])].habits == (SAM,)
    [lend] = profile_of(here, 2).habits
    assert lend == replace(SAM, until=MENDED_AFTER)
    assert profile_of(here, 2).declared == replace(DECLARES, accumulation=False)
    other = report(
        snapshot(running(3, on("a", 0), declared=False, spec_=spec(user="ben")), node("a")), 3, 1, declared=DECLARES
    )
    assert profile_of(other, 3).habits == ()


def test_a_habit_that_shows_again_stays_with_the_job() -> None:
    here = report(with_two_jobs(), 2, 2, habits=(SAM,))
    later = report(here, 2, 3, progress=at_step(100_000))
    assert profile_of(later, 2).habits == (SAM,)


def test_a_habit_that_does_not_show_for_long_counts_as_fixed() -> None:
    here = report(with_two_jobs(), 2, 2, progress=at_step(MENDED_AFTER - 1))
    assert profile_of(here, 2).lost == {ACCUMULATE, SPLIT}
    here = report(here, 2, 3, progress=at_step(MENDED_AFTER))
    assert profile_of(here, 2).habits == ()
    assert profile_of(here, 2).declared == DECLARES
    assert profile_of(here, 1).habits == (SAM,), "the one that did so keeps it"
    assert here.priors[program_of(here.jobs[JobId(2)])].habits == ()
    again = report(here, 2, 4, declared=DECLARES)
    assert profile_of(again, 2).habits == ()


def test_the_steps_count_from_where_it_was_lent() -> None:
    here = snapshot(running(1, on("a", 0), declared=False), running(2, on("a", 1), declared=False), node("a"))
    here = report(here, 1, 1, declared=DECLARES, habits=(SAM,))
    here = report(here, 2, 1, declared=DECLARES, progress=at_step(5_000))
    assert profile_of(report(here, 2, 2, progress=at_step(5_100)), 2).lost == {ACCUMULATE, SPLIT}


def test_a_prior_of_measurements_keeps_its_habits_when_a_job_ends() -> None:
    here = with_two_jobs()
    here = report(here, 2, 2, timings=(facts.TimingSums(1, 1, 32, 0, 0, 0.0, 10, 1.0),))
    done = fold(here, [facts.Succeeded(9.0, JobId(2), facts.Exit(0))]).snapshot
    [prior] = done.priors.values()
    assert prior.habits == (SAM,)
    assert prior.rows


# -- what is said ------------------------------------------------------------------------------------------------------


def told(here: Snapshot, number: int = 1) -> tuple[str, str]:
    """(reasons, remedies), as text."""
    said = explain(here, {}, here.jobs[JobId(number)])
    return "; ".join(said.reasons), "; ".join(said.remedies)


def strict(habit: Habit, **more: object) -> Profile:
    return with_habits(replace(Profile(declared=DECLARED), **more), (habit,))  # type: ignore[arg-type]


def test_why_says_that_a_running_job_is_not_moved_and_how_to_fix_it() -> None:
    reasons, remedies = told(snapshot(node("a"), running(1, on("a", 0), profile=strict(OWN_EPOCHS))))
    assert (
        "gpq neither resizes nor moves it. It would not resume exactly after a restart, because its own epochs"
        in reasons
    )
    assert "rigid" not in reasons
    assert "fix for own-epochs (which takes away resize): for epoch in job.epochs(count):" in remedies


def test_why_explains_a_job_that_cannot_resume_with_another_number() -> None:
    waits = job(1, profile=strict(OWN_EPOCHS), attempt=1, last_replicas=3)
    reasons, remedies = told(snapshot(node("a"), running(2, on("a", 0, 1), spec_=spec(rigid=True)), waits))
    assert "it needs 3 GPUs, and 2 of 4 are free" in reasons
    assert "it resumes with 3 GPUs or not at all" in reasons
    assert "`gpq edit 1 --gpus N` lets it resume with another number anyway, but not exactly" in remedies
    reasons, remedies = told(snapshot(node("a", 2), waits))
    assert "it asks for 3 GPUs" in reasons
    assert "`gpq edit 1 --gpus N`" in remedies


def test_why_says_why_a_job_gets_no_fewer_gpus_or_no_more_than_it_has() -> None:
    small = replace(DECLARED, max_atomic_batch=32)
    cramped = running(1, on("a", 0), profile=strict(SAM, declared=small, atomic_batch=32))
    reasons, _ = told(snapshot(node("a"), cramped))
    assert "it moves to 2 GPUs or more when they are free" in reasons
    assert "gpq splits no step into several micro-batches, because two passes (two-passes)" in reasons
    assert "as many GPUs as it may have" not in reasons
    reasons, _ = told(snapshot(node("a", 1), cramped))
    assert "no number of GPUs that it may have can hold its base batch at once. Each GPU runs its" in reasons
    reasons, _ = told(snapshot(node("a"), running(1, on("a", 0, 1), profile=strict(SAM, declared=small))))
    assert "it gets at least 2 GPUs, which hold its base batch at once" in reasons
    assert "it has the fewest GPUs that it may have (2)" in reasons
    waits = job(1, profile=strict(SAM, declared=small))
    assert "it needs 2 GPUs, and 1 of 2 are free" in told(snapshot(node("a", 2), running(2, on("a", 0)), waits))[0]


def test_why_says_why_the_batch_stays() -> None:
    closure = Habit("closure", (ACCUMULATE, SPLIT, RETUNE), "a closure", "another optimizer")
    reasons, remedies = told(snapshot(node("a"), running(1, on("a", 0), profile=strict(closure, atomic_batch=64))))
    assert "gpq keeps its base batch size, because a closure (closure)" in reasons
    assert "It lets gpq change its GPUs, but not its batch size" not in reasons
    assert "gpq splits no step to measure its noise scale" in reasons
    assert "fix for closure (which takes away accumulate, split, retune): another optimizer" in remedies


def test_a_job_without_habits_gets_no_sentence_about_them() -> None:
    reasons, remedies = told(snapshot(node("a"), running(1, on("a", 0))))
    assert "because" not in reasons
    assert remedies == ""


def test_a_habit_keeps_a_job_off_owned_servers_and_owners_come_first_anyway() -> None:
    hers = replace(node("a"), owner="zoe")
    strict_one = running(1, on("a", 0), profile=strict(OWN_EPOCHS))
    assert owners.leaves(strict_one)
    assert not owners.suits(strict_one, hers)
    assert owners.suits(replace(strict_one, profile=Profile(declared=DECLARED)), hers)
