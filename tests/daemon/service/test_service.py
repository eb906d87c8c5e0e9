"""Every request against a real daemon with a real server: the answers, and that bad input changes nothing."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpq.errors import GpqError, NotFound, Refused, UsageError
from gpq.rpc import account_answers, job_answers, requests
from gpq.rpc.daemon_answers import TopLook, TopView, Words
from gpq.rpc.job_answers import CancelResult, Changed, DryRun, Explanation, JobDetail, JobList, JobView, LogChunk
from gpq.rpc.node_answers import Cleaned, NodeList
from gpq.rpc.requests import (
    Cancel,
    Clean,
    Complete,
    Edit,
    Hold,
    Logs,
    Nodes,
    Release,
    Requeue,
    Show,
    SpecMessage,
    Status,
    Submit,
    Top,
    Wait,
    Why,
)
from tests.daemon.daemons import Daemon, daemon
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("service") / "home") as running:
        running.wait_for_nodes()
        yield running


@pytest.fixture(autouse=True)
def nothing_left(served: Daemon) -> Iterator[None]:
    yield
    assert served.call(Cancel(["all"]), CancelResult).remaining == []


def row(served: Daemon, job: int) -> JobView:
    [found] = served.call(Status([str(job)]), JobList).jobs
    return found


def test_a_job_runs_and_shows_its_end_log_and_history(served: Daemon) -> None:
    job = served.submit("sh", "-c", "echo out; echo err >&2; exit 3", name="fails")
    [ended] = served.call(Wait([str(job)]), JobList).jobs
    assert (ended.state, ended.exit_status, ended.name, ended.gpus) == ("failed", 3, "fails", 0)
    assert ended.reason.startswith("exit 3")
    chunk = served.call(Logs(str(job), wait=10), LogChunk)
    assert sorted(base64.b64decode(chunk.data).split()) == [b"err", b"out"]
    assert (chunk.ended, chunk.attempts, chunk.nodes) == (True, [1], ["here"])
    detail = served.call(Show("fails"), JobDetail)
    assert detail.job == ended
    assert [attempt.outcome for attempt in detail.attempts] == ["failed"]
    assert detail.history[0].kind == "Submitted"
    assert detail.history[-1].kind == "Failed"
    assert served.call(Why(str(job)), Explanation).headline.startswith("failed: exit 3")


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_run_ends_with_the_code_of_a_shell(served: Daemon, command: str, code: int) -> None:
    job = served.submit(command)
    [ended] = served.call(Wait([str(job)]), JobList).jobs
    assert (ended.state, ended.exit_status) == ("failed", code)
    assert ended.reason.startswith(f"exit {code}: ")
    assert command in ended.reason


def test_a_log_is_read_while_the_job_writes_it(served: Daemon) -> None:
    job = served.submit("sh", "-c", "echo first; sleep 1; echo second")
    said, offset = b"", 0
    while True:
        chunk = served.call(Logs(str(job), offset=offset, wait=20), LogChunk)
        said, offset = said + base64.b64decode(chunk.data), chunk.offset
        if chunk.ended:
            break
    assert said == b"first\nsecond\n"


def test_cancel_of_an_ended_job_is_reported_without_an_error(served: Daemon) -> None:
    job = served.submit("true")
    served.call(Wait([str(job)]), JobList)
    assert served.call(Cancel([str(job)]), CancelResult) == CancelResult([], [job], [])


def test_a_cancel_without_waiting_says_what_is_still_running(served: Daemon) -> None:
    job = served.submit("sh", "-c", "trap '' TERM; while :; do sleep 1; done", grace=60.0)
    wait_until(lambda: row(served, job).state == "running", "it runs")
    assert served.call(Cancel([str(job)], wait=0.0), CancelResult).remaining == [job]


def test_a_held_job_waits_until_it_is_released(served: Daemon) -> None:
    spec = SpecMessage(["true"], "/tmp", "black-box", name="patient")
    job = served.call(Submit(spec, held=True), job_answers.Submitted)
    assert job.state == "held"
    assert row(served, job.id).state == "held"
    assert served.call(Hold(["patient"]), Changed).unchanged == [f"job {job.id} is already held"]
    assert served.call(Release(["patient"]), Changed).jobs == [job.id]
    [ended] = served.call(Wait([str(job.id)]), JobList).jobs
    assert ended.state == "completed"


def test_hold_of_a_running_black_box_is_refused_with_a_hint(served: Daemon) -> None:
    job = served.submit("sleep", "600")
    wait_until(lambda: row(served, job).state == "running", "it runs")
    for request in (Hold([str(job)]), Requeue([str(job)])):
        with pytest.raises(Refused, match=f"job {job} is running") as refusal:
            served.call(request, Changed)
        assert refusal.value.hint
    assert row(served, job).state == "running"


def test_an_ended_job_goes_on_in_its_folder_with_a_longer_limit_and_its_chain_follows(served: Daemon) -> None:
    script = (
        'cd "$GPQ_CHECKPOINT_DIR"; echo "$GPQ_RESUME" >> starts; cat starts; [ $(wc -l < starts) -gt 1 ] || sleep 600'
    )
    job = served.submit("sh", "-c", script, name="slow", time_limit=1.0)
    after = served.submit("true", after=[str(job)])
    [ended] = served.call(Wait([str(job)], wait=60), JobList).jobs
    assert ended.state == "timeout"
    wait_until(lambda: row(served, after).state == "held", "what waits for it is held")
    assert row(served, after).halted == f"job {job} reached its time limit"
    edited = served.call(Edit(["slow"], {"time_limit": 3600.0}), Changed)
    assert (edited.jobs, served.call(Show(str(job)), JobDetail).spec.time_limit) == ([job], 3600.0)
    assert row(served, job).reason.startswith("reached the time limit that it had")
    assert served.call(Requeue(["slow"]), Changed).jobs == [job]
    [again, follower] = served.call(Wait([str(job), str(after)], wait=60), JobList).jobs
    assert (again.state, again.attempt, follower.state) == ("completed", 2, "completed")
    chunk = served.call(Logs(str(job), attempt=2, wait=10), LogChunk)
    assert base64.b64decode(chunk.data) == b"\n1\n"
    history = served.call(requests.History([str(job)]), account_answers.HistoryList)
    assert [one.id for one in history.jobs] == [job]


def test_an_edit_of_something_else_keeps_what_a_job_waits_for(served: Daemon) -> None:
    job = served.submit("sleep", "600")
    after = served.submit("true", after=[f"{job}:any"])
    awaits = row(served, after).after
    assert served.call(Edit([str(after)], {"priority": 3}), Changed).jobs == [after]
    assert (row(served, after).priority, row(served, after).after, len(awaits)) == (3, awaits, 1)
    served.call(Edit([str(after)], {"after": []}), Changed)
    assert row(served, after).after == []
    served.call(Cancel([str(job)]), CancelResult)


def test_what_waited_for_a_removed_job_runs_again_once_it_no_longer_names_it(served: Daemon) -> None:
    first = served.submit("true")
    served.call(Wait([str(first)]), JobList)
    time.sleep(0.5)
    middle = time.monotonic()
    second = served.submit("true", after=[str(first)])
    served.call(Wait([str(second)]), JobList)
    assert served.call(Clean(time.monotonic() - middle), Cleaned).removed
    with pytest.raises(Refused, match=f"job {first} ended long ago and was removed") as refusal:
        served.call(Requeue([str(second)]), Changed)
    assert refusal.value.hint == "first change what it waits for: `gpq edit JOB --after none`"
    served.call(Edit([str(second)], {"after": []}), Changed)
    assert served.call(Requeue([str(second)]), Changed).jobs == [second]
    served.call(Wait([str(second)]), JobList)


def test_of_an_array_only_what_did_not_complete_runs_again_in_its_place(served: Daemon, tmp_path: Path) -> None:
    script = f"echo $GPQ_ARRAY_ID $GPQ_ARRAY_INDEX; [ -e {tmp_path}/ok ] || [ $GPQ_ARRAY_INDEX = 1 ]"
    spec = SpecMessage(["sh", "-c", script], "/tmp", "black-box")
    array = served.call(Submit(spec, array=requests.ArrayMessage([0, 1, 2], limit=1)), job_answers.Submitted).id
    served.call(Wait([str(array)], wait=60), JobList)
    (tmp_path / "ok").touch()
    answer = served.call(Requeue([str(array)]), Changed)
    assert answer.jobs == [array + 1, array + 3]
    assert answer.unchanged == ["completed and left out: 1. To run one again, name it alone"]
    rows = served.call(Wait([str(array)], wait=60), JobList).jobs
    assert [(one.state, one.attempt, one.index) for one in rows] == [
        ("completed", 2, 0), ("completed", 1, 1), ("completed", 2, 2),
    ]  # fmt: skip
    chunk = served.call(Logs(f"{array}_2", attempt=2, wait=10), LogChunk)
    assert base64.b64decode(chunk.data) == f"{array} 2\n".encode()
    [alone] = served.call(Requeue([f"{array}_1"]), Changed).messages
    assert "it had completed, so it starts from the beginning" in alone


def test_a_job_that_checkpoints_on_a_signal_can_be_requeued_while_it_runs(served: Daemon, tmp_path: Path) -> None:
    mark = tmp_path / "second"
    up = tmp_path / "up"
    script = f"test -e {mark} && exit 0; trap 'touch {mark}; exit 75' USR1; touch {up}; while :; do sleep 0.1; done"
    job = served.submit("sh", "-c", script, level="signal", signal="USR1")
    wait_until(lambda: up.exists() and row(served, job).state == "running", "it runs, and its trap is set")
    assert served.call(Requeue([str(job)]), Changed).jobs == [job]
    [ended] = served.call(Wait([str(job)], wait=60), JobList).jobs
    assert (ended.state, ended.attempt, ended.restarts) == ("completed", 2, 1)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"argv": []}, UsageError, "no command"),
        ({"cwd": "relative"}, UsageError, "not absolute"),
        ({"level": "magic"}, UsageError, "unknown level `magic`"),
        ({"name": "\x1b[31mred"}, UsageError, "invalid job name"),
        ({"name": "all"}, UsageError, "gpq would read the name"),
        ({"name": "3-7"}, UsageError, "gpq would read the name"),
        ({"min_gpus": 0}, UsageError, "at least 1 GPU"),
        ({"level": "script", "min_gpus": 4, "max_gpus": 2}, UsageError, "range end is below its start"),
        ({"min_gpus": 1, "max_gpus": 2}, UsageError, "fixed number of GPUs"),
        ({"min_gpus": 3}, Refused, "there are fewer than 3 GPUs"),
        ({"level": "script", "min_gpus": 3, "max_gpus": 9}, Refused, "there are fewer than 3 GPUs"),
        ({"gpu_type": "H100"}, Refused, "of type 'H100'"),
        ({"signal": "NOPE"}, UsageError, "unknown signal"),
        ({"time_limit": -1.0}, UsageError, "--time"),
        ({"retries": -1}, UsageError, "--retries"),
        ({"requeue_on_lost": 0.5}, UsageError, "--requeue-on-lost"),
        ({"requeue_on_lost": 1e9}, UsageError, "--requeue-on-lost"),
        ({"env": {"A=B": "c"}}, UsageError, "environment variable"),
        ({"argv": ["a\0b"]}, UsageError, "NUL"),
        ({"done_file": "a\0b"}, UsageError, "NUL"),
        ({"done_file": "a" * 5000}, UsageError, "--done-file has 5000 characters"),
        ({"batch_size": 64, "max_batch_size": 32}, UsageError, "--max-batch-size"),
    ],
)
def test_a_bad_submission_is_refused_in_one_line_and_changes_nothing(
    served: Daemon, change: dict[str, object], error: type[GpqError], said: str
) -> None:
    before = served.info().jobs_total
    fields: dict[str, object] = {"argv": ["true"], "cwd": "/tmp", "level": "black-box"} | change
    with pytest.raises(error, match=said) as refusal:
        served.call(Submit(SpecMessage(**fields)), job_answers.Submitted)  # type: ignore[arg-type]
    assert "\n" not in refusal.value.message
    assert refusal.value.hint
    assert served.info().jobs_total == before


def test_a_refusal_for_lack_of_gpus_says_what_the_servers_have(served: Daemon) -> None:
    with pytest.raises(Refused) as refusal:
        served.submit("true", min_gpus=100)
    assert refusal.value.hint == "here has 2 x cpu slot"


@pytest.mark.parametrize("request_", [Show("99999"), Why("99999"), Logs("99999")])
def test_an_unknown_id_is_not_found(served: Daemon, request_: requests.Request) -> None:
    with pytest.raises(NotFound, match="no job 99999") as refusal:
        served.call(request_, JobDetail)
    assert refusal.value.hint


def test_a_misspelt_name_is_not_found_and_similar_ones_are_named(served: Daemon) -> None:
    served.call(Wait([str(served.submit("true", name="cifar-resnet"))]), JobList)
    with pytest.raises(NotFound, match="`cifar-resnt`") as refusal:
        served.call(Show("cifar-resnt"), JobDetail)
    assert "cifar-resnet" in refusal.value.hint


def test_selectors_name_jobs_in_every_way(served: Daemon) -> None:
    first = served.submit("true", name="one")
    second = served.submit("true", name="two")

    def found(*selectors: str) -> list[int]:
        return [job.id for job in served.call(Status(list(selectors)), JobList).jobs]

    served.call(Wait([f"{first}-{second}"]), JobList)
    assert found("@") == [second]
    assert found("@~1") == [first]
    assert found(f"{first}-{second}") == [first, second]
    assert found(f"{second},{first}") == [second, first]
    assert found("two", "one", "@") == [second, first]
    with pytest.raises(UsageError, match="range end is below its start"):
        found(f"{second}-{first}")


def test_a_dry_run_says_what_would_happen_and_keeps_nothing(served: Daemon) -> None:
    before = served.info().jobs_total
    spec = SpecMessage(["true"], "/tmp", "black-box", min_gpus=2)
    answer = served.call(Submit(spec, dry_run=True), DryRun)
    assert (answer.state, [part.node for part in answer.placement]) == ("starting", ["here"])
    blocker = served.submit("sleep", "600")
    wait_until(lambda: row(served, blocker).state == "running", "it runs")
    waits = served.call(Submit(spec, dry_run=True), DryRun)
    assert waits.state == "pending"
    assert waits.reasons
    assert served.info().jobs_total == before + 1


def test_status_lists_live_jobs_and_the_latest_ended_ones(served: Daemon) -> None:
    done = [served.submit("true") for _ in range(3)]
    served.call(Wait([f"{done[0]}-{done[-1]}"]), JobList)
    blocker = served.submit("sleep", "600", min_gpus=2)
    waits = served.submit("true", min_gpus=2)
    wait_until(lambda: row(served, blocker).state == "running", "it runs")
    listed = served.call(Status(recent=2), JobList)
    assert [job.id for job in listed.jobs][-2:] == [blocker, waits]
    assert len(listed.jobs) == 4
    assert listed.total == served.info().jobs_total
    assert listed.hidden == listed.total - 4
    assert next(job for job in listed.jobs if job.id == waits).reason
    only = served.call(Status(states=["pending"]), JobList)
    assert [job.id for job in only.jobs] == [waits]
    assert served.call(Status(user="nobody-here"), JobList).jobs == []
    with pytest.raises(UsageError, match="unknown state"):
        served.call(Status(states=["asleep"]), JobList)


def test_nodes_and_top_show_devices_holders_users_and_changes(served: Daemon) -> None:
    job = served.submit("sleep", "600")
    wait_until(lambda: row(served, job).state == "running", "it runs")
    [node] = served.call(Nodes(), NodeList).nodes
    assert (node.name, node.state, len(node.devices)) == ("here", "up", 2)
    assert [device.job for device in node.devices].count(job) == 1
    with pytest.raises(NotFound, match="no server `there`"):
        served.call(Nodes(["there"]), NodeList)
    top = served.call(Top(), TopLook)
    assert top.states == {"running": 1}
    assert served.call(Top(query=["user=nobody"]), TopLook).states == {"running": 1}, "also what a filter hides"
    assert job in [each.id for each in top.jobs]
    assert [user.gpus for user in top.users] == [1]
    assert (top.changes[0].kind, top.changes[0].job) == ("Launched", job)
    assert top.round_age is not None


def test_top_takes_selectors_and_queries_as_status_does(served: Daemon) -> None:
    [ended] = served.call(Wait([str(served.submit("false", name="over"))]), JobList).jobs
    runs, waits = served.submit("sleep", "600", name="runs"), served.submit("sleep", "600", min_gpus=2, name="waits")
    wait_until(lambda: row(served, runs).state == "running", "it runs")

    def found(*query: str, jobs: tuple[str, ...] = ()) -> list[int]:
        return [each.id for each in served.call(Top(list(jobs), list(query)), TopView).jobs]

    assert {ended.id, runs, waits} <= set(found())
    assert found("state=running,pending sort=-id") == [waits, runs]
    assert found("state=failed", "name=over") == [ended.id]
    assert found("name~wait") == [waits]
    assert found("state=running", jobs=("runs", str(ended.id))) == [runs]
    assert len(served.call(Top(query=["name=nobody"]), TopView).nodes) == 1
    with pytest.raises(UsageError, match="jobs have no `usr`"):
        found("usr=ana")
    with pytest.raises(NotFound):
        found(jobs=("nobody",))


def test_completion_offers_ids_names_nodes_and_users(served: Daemon) -> None:
    job = served.submit("sleep", "600", name="unmistakable")

    def offered(kind: str, prefix: str = "") -> list[str]:
        return [word for word, _ in served.call(Complete(kind, prefix), Words).words]

    assert str(job) in offered("jobs", str(job))
    assert offered("jobs", "unmis") == ["unmistakable"]
    assert offered("names", "unm") == ["unmistakable"]
    assert offered("nodes") == ["here"]
    assert offered("users") == [row(served, job).user]

    def acted_on(command: str, *given: str) -> list[str]:
        return [word for word, _ in served.call(Complete("jobs", str(job), command, list(given)), Words).words]

    assert acted_on("cancel") == [str(job)]
    assert acted_on("cancel", "unmistakable") == acted_on("release") == acted_on("history") == []
    served.call(Cancel([str(job)], wait=30.0), CancelResult)
    assert acted_on("cancel") == []
    assert acted_on("logs") == acted_on("requeue") == [str(job)]
