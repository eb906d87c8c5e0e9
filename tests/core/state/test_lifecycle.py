"""Every cell of state x event, and how to read the end of an attempt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpq.core.model import events as facts
from gpq.core.model.events import RequeueAsked
from gpq.core.model.jobs import TERMINAL, JobState, Level, StopReason
from gpq.core.model.placements import BatchOrder, Exit, FilesAt, Placement
from gpq.core.model.snapshot import Config
from gpq.core.model.units import JobId, NodeId
from gpq.core.state.apply_events import fold
from gpq.core.state.attempt_end import conclude, joint_exit
from gpq.core.state.lifecycle import TRANSITIONS, InvalidTransition, advance
from gpq.daemon.nodes.decode import exit_of
from tests.support.builders import black_box, node, on, running, snapshot, spec

ONE = JobId(1)
NOWHERE = Placement(())
EVENTS = [
    facts.Launched(0, ONE, 1, NOWHERE, BatchOrder()),
    facts.StopSent(0, ONE, 1, StopReason.RESIZE),
    facts.Held(0, ONE),
    facts.Released(0, ONE),
    facts.Started(0, ONE, 1, NodeId("a")),
    facts.Succeeded(0, ONE, Exit(0)),
    facts.Failed(0, ONE, Exit(1)),
    facts.Stopped(0, ONE, Exit(0)),
    facts.Cancelled(0, ONE),
    facts.TimeLimitReached(0, ONE),
]


@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_cell_is_in_the_table_or_refused(state: JobState, event: facts.Event) -> None:
    if type(event) in TRANSITIONS[state]:
        assert advance(state, event) is TRANSITIONS[state][type(event)]
    else:
        with pytest.raises(InvalidTransition, match=str(state)):
            advance(state, event)


def test_only_a_requeue_leads_out_of_an_end() -> None:
    assert all(TRANSITIONS[state] == {RequeueAsked: JobState.PENDING} for state in TERMINAL)
    assert all(RequeueAsked not in TRANSITIONS[state] for state in set(JobState) - TERMINAL)


def test_every_state_can_be_reached_from_pending() -> None:
    reached, todo = {JobState.PENDING}, [JobState.PENDING]
    while todo:
        for after in TRANSITIONS[todo.pop()].values():
            if after not in reached:
                reached.add(after)
                todo.append(after)
    assert reached == set(JobState)


def test_the_diagram_of_the_documents_is_the_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "internals" / "index.md"
    lines = ["stateDiagram-v2", "    [*] --> pending"]
    for state, row in TRANSITIONS.items():
        lines += [f"    {state} --> {after}: {event.__name__}" for event, after in row.items()]
        lines += [f"    {state} --> [*]"] if state in TERMINAL else []
    diagram = "\n".join(lines)
    assert diagram in page.read_text(), f"it should have\n{diagram}"


def ended(exit_: Exit, *, stop: StopReason | None = None, level: Level = Level.SCRIPT, **more: object) -> facts.Event:
    """The meaning of an attempt that ended like this, 100 s after its launch at 0."""
    what = black_box() if level is Level.BLACK_BOX else spec(level=level, **more)
    job = running(1, on("a", 0), since=0.0, spec_=what, stop=stop, exits=((NodeId("a"), exit_),))
    return conclude(job, 100.0, Config())


@pytest.mark.parametrize(
    ("exit_", "stop", "kind"),
    [
        (Exit(0), None, facts.Succeeded),
        (Exit(1), None, facts.Failed),
        (Exit(None, signal=9), None, facts.Failed),
        (Exit(0, stopped=True, asked="checkpoint"), StopReason.RESIZE, facts.Stopped),
        (Exit(0), StopReason.RESIZE, facts.Succeeded),  # it ended before it saw the order
        (Exit(None, signal=9, asked="checkpoint"), StopReason.RESIZE, facts.Stopped),  # hung at its checkpoint
        (Exit(None, signal=15, asked="kill"), StopReason.CANCEL, facts.Cancelled),
        (Exit(0, stopped=True, asked="kill"), StopReason.CANCEL, facts.Cancelled),
        (Exit(0), StopReason.CANCEL, facts.Succeeded),  # it ended on its own before the order came
        (Exit(None, signal=15, asked="checkpoint"), StopReason.TIME, facts.TimeLimitReached),
        (Exit(0, asked="checkpoint", finished=True), StopReason.TIME, facts.Succeeded),  # it managed to save
        (Exit(0, asked="checkpoint"), StopReason.TIME, facts.TimeLimitReached),  # or saved half way, as many do
        (Exit(0, asked="kill"), StopReason.TIME, facts.TimeLimitReached),  # it only leaves politely
        (Exit(None, lost=True), None, facts.Stopped),  # the server rebooted: the job resumes from its checkpoint
    ],
)
def test_the_end_of_a_resizable_attempt(exit_: Exit, stop: StopReason | None, kind: type) -> None:
    assert type(ended(exit_, stop=stop)) is kind


QUEUED = (StopReason.RESIZE, StopReason.PREEMPT, StopReason.HOLD, StopReason.REQUEUE)
# (reason of the stop, proof that it had finished, code) -> what it means for a job that checkpoints on a signal.
CELLS: dict[tuple[StopReason | None, bool, int], type] = {
    **{(reason, True, 0): facts.Succeeded for reason in QUEUED},
    **{(reason, False, 0): facts.Stopped for reason in QUEUED},
    **{(reason, said, code): facts.Stopped for reason in QUEUED for said in (True, False) for code in (1, 75)},
    (StopReason.TIME, True, 0): facts.Succeeded,
    (StopReason.TIME, False, 0): facts.TimeLimitReached,
    **{(StopReason.TIME, said, code): facts.TimeLimitReached for said in (True, False) for code in (1, 75)},
    **{(StopReason.CANCEL, said, code): facts.Cancelled for said in (True, False) for code in (0, 1, 75)},
    **{(None, said, 0): facts.Succeeded for said in (True, False)},
    **{(None, said, 1): facts.Failed for said in (True, False)},
    **{(None, said, 75): facts.Stopped for said in (True, False)},
}


@pytest.mark.parametrize("reason", [None, *StopReason])
@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("code", [0, 1, 75])
@pytest.mark.parametrize("level", list(Level))
def test_every_cell_of_stop_reason_statement_and_code(
    reason: StopReason | None, said: bool, code: int, level: Level
) -> None:
    mode = {Level.BLACK_BOX: "kill", Level.SIGNAL: "signal", Level.SCRIPT: "checkpoint"}[level]
    asked = "" if reason is None else "kill" if reason is StopReason.CANCEL else mode
    end = Exit(
        code, stopped=code == 75, asked=asked, finished=said, evidence="its done file was written" if said else ""
    )
    event = ended(end, stop=reason, level=level)
    assert type(event) is CELLS[reason, said, code]
    if isinstance(event, facts.Stopped):
        # A black box that is queued again may stop with any code. So may a job that saves on a signal: the code may be
        # that of a launcher, which says nothing about what was saved.
        asked_for = level is Level.SIGNAL or (level is Level.BLACK_BOX and reason is not StopReason.HOLD)
        failed = code == 1 and not asked_for
        unproven = code == 1 and level is Level.SIGNAL
        assert ("without proof of a checkpoint" in event.exit.note) == unproven
        assert (event.failed, event.quick, event.not_before) == (failed, False, 105.0 if failed else 0.0)
    doubted = code == 0 and not said and asked != "" and reason is not StopReason.CANCEL
    note = event.exit.note  # type: ignore[attr-defined]
    assert ("without proof that it had finished" in note and "--done-file" in note) == doubted
    assert ("gpq queues it again" in note) == (doubted and reason is not StopReason.TIME)
    assert note.endswith("its done file was written") == (code == 0 and said and asked != "")


def test_a_job_with_an_unwritten_done_file_is_not_asked_to_name_one() -> None:
    event = ended(Exit(0, asked="signal"), stop=StopReason.PREEMPT, level=Level.SIGNAL, done_file="out/done")
    assert isinstance(event, facts.Stopped)
    assert "saw nothing written to its done file out/done" in event.exit.note
    assert "--done-file" not in event.exit.note


def test_an_older_agents_record_of_a_stop_proves_nothing_and_is_queued_again() -> None:
    record = {"job": 1, "attempt": 1, "code": 0, "signal": None, "stopped": False, "asked": "signal"}
    assert type(ended(exit_of(record, is_lost=False), stop=StopReason.PREEMPT, level=Level.SIGNAL)) is facts.Stopped
    assert type(ended(exit_of({**record, "asked": None}, is_lost=False), level=Level.SIGNAL)) is facts.Succeeded


@pytest.mark.parametrize("said", [0, 1])
def test_with_several_servers_that_of_rank_0_says_whether_it_had_finished(said: int) -> None:
    both = Placement((*on("a", 0).parts, *on("b", 0).parts))
    nodes = (NodeId("b"), NodeId("a"))  # b reported first
    exits = tuple((name, Exit(0, asked="checkpoint", finished=name == nodes[said])) for name in nodes)
    event = conclude(running(1, both, stop=StopReason.RESIZE, exits=exits), 100.0, Config())
    assert type(event) is (facts.Stopped, facts.Succeeded)[said]


def test_a_job_that_ends_with_0_when_asked_to_save_counts_as_saved() -> None:
    for asked, proved in (("signal", True), ("checkpoint", True), ("kill", False)):
        end = Exit(0, asked=asked)
        job = running(1, on("a", 0), stop=StopReason.REQUEUE, exits=((NodeId("a"), end),), files=FilesAt(NodeId("a")))
        after = fold(snapshot(node("a"), job), [conclude(job, 100.0, Config())]).snapshot.jobs[ONE]
        assert after.state is JobState.PENDING
        assert after.files is not None
        assert after.files.proved is proved
        assert "without proof that it had finished" in after.notices[-1]


def test_a_lost_black_box_is_not_run_a_second_time() -> None:
    assert type(ended(Exit(None, lost=True), level=Level.BLACK_BOX)) is facts.Failed


def test_an_attempt_refused_for_a_temporary_reason_is_tried_again() -> None:
    exits = ((NodeId("a"), Exit(code=None, lost=True, note="port 20000 is busy on this server")),)
    refused = running(1, on("a", 0), spec_=black_box(), started_nodes=(), exits=exits)
    event = conclude(refused, 10.0, Config())
    assert isinstance(event, facts.Stopped)
    assert not event.failed


@pytest.mark.parametrize(("kind", "counts"), [("port", False), ("network", True)])
def test_a_launch_that_ran_nothing_is_retried_and_not_a_failure(kind: str, counts: bool) -> None:
    event = ended(Exit(1, unlaunched=kind, note="why"), level=Level.BLACK_BOX)
    assert isinstance(event, facts.Stopped)
    assert (event.failed, event.quick, event.exit.note) == (False, counts, "why")
    assert type(ended(Exit(1, unlaunched=kind), stop=StopReason.CANCEL)) is facts.Cancelled


def test_an_end_caused_by_gpq_is_not_a_failure_and_costs_no_wait() -> None:
    event = ended(Exit(1, excused="out of memory with 48 examples", cause="rank 0: OutOfMemoryError"))
    assert isinstance(event, facts.Stopped)
    assert (event.failed, event.quick, event.not_before) == (False, False, 0.0)
    assert event.exit.note == "out of memory with 48 examples"
    assert type(ended(Exit(1, excused="why"), stop=StopReason.CANCEL)) is facts.Cancelled


def test_the_first_failure_is_the_reason_and_not_what_peers_say() -> None:
    both = Placement((*on("a", 0).parts, *on("b", 0).parts))
    lost = Exit(1, cause="rank 0 ended with exit code 1", victim=True)
    for first in (
        Exit(1, cause="rank 3 was killed by SIGKILL"),
        Exit(None, 15, asked="kill", cause="rank 3 was killed by SIGKILL"),
    ):
        job = running(1, both, exits=((NodeId("a"), lost), (NodeId("b"), first)))
        event = conclude(job, 100.0, Config())
        assert isinstance(event, facts.Failed)
        assert event.exit.note == "rank 3 was killed by SIGKILL (server b)"
    alone = ended(Exit(2, cause="rank 1 ended with exit code 2"))
    assert isinstance(alone, facts.Failed)
    assert alone.exit.note == "rank 1 ended with exit code 2"


def test_an_attempt_whose_part_never_started_is_not_a_failure() -> None:
    both = Placement((*on("a", 0).parts, *on("b", 0).parts))
    exits = ((NodeId("b"), Exit(None, lost=True)), (NodeId("a"), Exit(None, signal=15)))
    half = running(1, both, declared=False, started_nodes=(NodeId("a"),), exits=exits)
    assert type(conclude(half, 10.0, Config())) is facts.Stopped
    assert type(conclude(replace(half, started_nodes=(NodeId("a"), NodeId("b"))), 10.0, Config())) is facts.Failed


@pytest.mark.parametrize("exit_", [Exit(75, stopped=True), Exit(None, lost=True)])
def test_a_job_that_ends_at_once_again_and_again_waits_longer_and_is_held(exit_: Exit) -> None:
    def end(ran: float, failures: int, stop: StopReason | None = None) -> facts.Stopped:
        mine = running(
            1, on("a", 0), since=0.0, spec_=spec(level=Level.SIGNAL), stop=stop, exits=((NodeId("a"), exit_),),
            quick_failures=failures,
        )  # fmt: skip
        event = conclude(mine, ran, Config())
        assert isinstance(event, facts.Stopped)
        return event

    assert [(end(2.0, n).quick, end(2.0, n).not_before) for n in (0, 1)] == [(True, 7.0), (True, 12.0)]
    assert not end(100.0, 0).quick
    asked = end(2.0, 0, StopReason.PREEMPT)
    assert (asked.quick, asked.not_before) == (False, 0.0)


def test_a_retry_waits_longer_each_time_and_only_failures_count() -> None:
    first = ended(Exit(1), retries=3)
    assert isinstance(first, facts.Stopped)
    assert first.failed
    assert not first.quick  # it ran for 100 s
    assert first.not_before == pytest.approx(105.0)
    stopped = ended(Exit(0, stopped=True), stop=StopReason.RESIZE)
    assert isinstance(stopped, facts.Stopped)
    assert not stopped.failed


def test_on_several_servers_a_failure_counts_and_a_lost_part_before_it() -> None:
    assert joint_exit([Exit(0), Exit(3), Exit(None, signal=15)]).code == 3
    assert joint_exit([Exit(0, stopped=True), Exit(0)]).stopped
    assert joint_exit([Exit(1), Exit(None, lost=True)]).lost
    assert joint_exit([Exit(0), Exit(0)]).code == 0
