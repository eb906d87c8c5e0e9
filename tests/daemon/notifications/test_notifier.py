"""A real daemon tells people about their jobs, through real services that accept it, refuse it, or never answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpq.core.model.events import Event, Failed, Launched, Submitted
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import BatchOrder, Exit
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.errors import NodeSilent, UsageError
from gpq.notify.notifier import Notifier
from gpq.notify.worker_pool import Courier
from gpq.rpc.job_answers import CancelResult, JobDetail, JobList
from gpq.rpc.requests import Cancel, Show, Status, Wait
from gpq.store.sqlite import SqliteStore
from tests.daemon.daemons import Daemon, daemon
from tests.support import commands
from tests.support.builders import job, on, spec
from tests.support.figures import Figures
from tests.support.waiting import wait_until
from tests.support.webhook import Webhook, webhook

SECRET = "geheim7f3a9c"  # in every URL
BASE = 'policy = "fifo"\ninterval = 5.0\n[nodes.here]\nslots = 2\n[notify]\n'


def config(*targets: str, **services: Webhook) -> str:
    return (
        BASE
        + "".join(f"{line}\n" for line in targets)
        + "".join(f'{name} = "{service.url(SECRET)}"\n' for name, service in services.items())
    )


def gpq(served: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(words, served.environment)


def waiting(home: Path) -> set[str]:
    """Targets that still wait for a message."""
    return {each["target"] for each in json.loads((home / "notifications.json").read_text())["waiting"]}


def notices(served: Daemon, number: int) -> str:
    return "\n".join(served.call(Show(str(number)), JobDetail).notices)


def test_an_end_is_reported_with_the_last_lines_and_no_secrets(tmp_path: Path) -> None:
    with webhook() as slack, daemon(tmp_path / "home", config("lines = 3", slack=slack)) as served:
        script = "seq 1 50; echo MY_KEY=$MY_KEY; printf '\\033[31mboom\\033[0m\\n'; exit 3"
        env = {"MY_KEY": "v3rborgen", "PATH": "/bin:/usr/bin"}
        number = served.submit("sh", "-c", script, name="train", notify=["slack"], env=env)
        wait_until(lambda: slack.told, "the end is reported")
        [told] = slack.told
        assert told["title"] == f"gpq: job {number} train failed: exit 3"
        assert "50\n[gpq removed a line that may contain a secret]\nboom\n" in told["message"]
        assert "\n47\n" not in told["message"]
        assert "v3rborgen" not in json.dumps(told)
        assert "printf" not in told["message"]
        quiet = served.submit("true")
        served.call(Wait([str(quiet)]), JobList)
        started = served.submit("true", notify=["slack"], notify_on=["start"])
        wait_until(lambda: len(slack.told) == 2, "the start is reported")
        assert slack.titles()[1] == f"gpq: job {started} is running"
        assert notices(served, number) == ""


def test_the_default_in_the_file_applies_unless_a_job_says_otherwise(tmp_path: Path) -> None:
    with (
        webhook() as slack,
        daemon(tmp_path / "home", config('default = "slack"', 'on = ["fail"]', slack=slack)) as served,
    ):
        for words, more in ((("true",), {}), (("false",), {"notify": []}), (("false",), {"name": "told"})):
            served.call(Wait([str(served.submit(*words, **more))]), JobList)
        wait_until(lambda: slack.told, "the failure is reported")
        assert [title.split(":")[1] for title in slack.titles()] == [" job 3 told failed"]


def test_the_targets_of_a_job_can_change_while_it_waits_or_runs(tmp_path: Path) -> None:
    with webhook() as slack, webhook() as late, daemon(tmp_path / "home", config(slack=slack)) as served:
        runs = served.submit("sh", "-c", f"while ! test -e {tmp_path}/gate; do sleep 0.1; done", name="runs")
        waits = served.submit("true", name="waits", after=[f"{runs}:any"], notify=["slack"], notify_on=["start"])
        wait_until(lambda: served.call(Status([str(runs)]), JobList).jobs[0].state == "running", "it runs")
        with served.config.open("a") as stream:  # known too, although it was added after the daemon's start
            stream.write(f'late = "{late.url(SECRET)}"\n')
        said = gpq(served, "edit", "runs", "--notify", "late", "--notify", "slack", "--notify-on", "fail,end")
        assert said.stdout == f"job {runs}: notify none -> late,slack, notify on none -> fail,end\n", said.stderr
        assert gpq(served, "edit", "waits", "--priority", "1").returncode == 0
        assert "-> none" in gpq(served, "edit", "waits", "--notify", "none").stdout
        refused = gpq(served, "edit", "waits", "--notify-on", "end")
        assert (refused.returncode, refused.stderr.splitlines()[0]) == (2, f"gpq: job {waits} notifies nobody")
        assert f'late = "{late.url(SECRET)}' not in gpq(served, "show", "runs").stdout
        (tmp_path / "gate").touch()
        served.call(Wait([str(runs), str(waits)]), JobList)
        last = served.submit("true", name="last", notify=["slack"])
        wait_until(lambda: any("last" in title for title in slack.titles()) and late.told, "both get a message")
        told = [f"gpq: job {runs} runs completed"]
        assert (late.titles(), slack.titles()) == (told, [*told, f"gpq: job {last} last completed"])


def test_a_service_that_never_answers_delays_nobody_and_the_next_daemon_tries_again(tmp_path: Path) -> None:
    with webhook("hangs") as dead, webhook() as well, daemon(tmp_path / "home", config(dead=dead, well=well)) as served:
        number = served.submit("true", notify=["dead", "well"])
        wait_until(lambda: dead.asked, "gpq calls the dead service")
        assert served.call(Status([str(number)]), JobList).jobs[0].state == "completed"
        assert served.call(Cancel([str(served.submit("sleep", "600"))]), CancelResult).remaining == []
        wait_until(lambda: waiting(served.home) == {"dead"}, "the other one gets its message")
        assert dead.told == []
        arguments = b"".join(_read(Path(f"/proc/{pid}/cmdline")) for pid in os.listdir("/proc") if pid.isdigit())
        assert SECRET.encode() not in arguments
        served.kill()  # during the delivery
        dead.manner = "takes"
        served.start()
        wait_until(lambda: waiting(served.home) == set(), "the next daemon sends the message")
        assert (len(dead.told), len(well.told)) == (1, 1)
        assert served.stop() == 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_gpq_show_reports_a_refusal_and_no_output_contains_the_url(tmp_path: Path) -> None:
    with webhook("refuses") as broken, daemon(tmp_path / "home", config(broken=broken)) as served:
        number = served.submit("sh", "-c", "exit 1", notify=["broken"])
        wait_until(lambda: "the service answered 500, next try in" in notices(served, number), "gpq show reports it")
        assert "the notification of its fail was not sent to broken yet" in notices(served, number)
        words = [
            f"show {number}",
            f"show {number} --json",
            "status --json",
            "daemon logs",
            "config show",
            "config check",
        ]
        words += [
            "config show --json",
            "notify list",
            "notify list --json",
            "notify test --json broken",
        ]
        said = [gpq(served, *each.split()) for each in words]
        assert "not sent to broken yet" in said[0].stdout
        assert said[-1].returncode == 1
        assert all(SECRET not in each.stdout + each.stderr for each in said)
        files = [path for path in served.home.rglob("*") if path.is_file()]
        assert {"gpq.db", "notifications.json", "daemon.log"} <= {path.name for path in files}
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]
        broken.manner = "takes"
        assert gpq(served, "notify", "test", "broken").stdout == "broken: sent\n"


def test_unknown_names_and_urls_are_refused_without_being_repeated(tmp_path: Path) -> None:
    with webhook() as slack, daemon(tmp_path / "home", config(slack=slack)) as served:
        with pytest.raises(UsageError, match=r"has no target `slak` in \[notify\]") as refusal:
            served.submit("true", notify=["slak"])
        assert refusal.value.hint.startswith("known targets: slack. desktop and mailto:ADDRESS")
        for url in (slack.url(SECRET), f"mailto://ana:{SECRET}@h", f"slack:{SECRET}/x"):
            said = gpq(served, "submit", "--notify", url, "--", "true")
            assert (said.returncode, SECRET in said.stderr, "[notify]" in said.stderr) == (2, False, True)
        said = gpq(served, "submit", "--notify-on", "end,soon", "--", "true")
        assert (said.returncode, "`soon` is nothing to be notified of" in said.stderr) == (2, True)
        said = gpq(served, "submit", "--notify", "slack", "--notify", "desktop", "--notify-on", "fail", "--", "true")
        assert said.returncode == 0, said.stderr
        shown = served.call(Show("@"), JobDetail).spec
        assert (shown.notify, shown.notify_on) == (["slack", "desktop"], ["fail"])
        served.config.write_text(served.config.read_text() + 'later = "json://127.0.0.1:1/x"\n')
        assert served.submit("true", notify=["later"]) > 0  # the daemon reads the file when a job names the target


# -- the parts, without a daemon ---------------------------------------------------------------------------------------


class Desk:
    """A database, a view of it, and a notifier that gives up quickly."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(str(folder / "gpq.db"))
        self.path = str(folder / "notifications.json")
        self.snapshot = Snapshot()
        self.changed = threading.Condition()
        self.silent = False
        self.notifier = self.begin()

    def begin(self, *backoff: float) -> Notifier:
        view, patience = (lambda: self.snapshot), backoff or (0.1, 0.1)
        return Notifier(self.store, view, self.changed, self.tail, time.time, self.path, 20, patience)

    def tail(self, node: str, name: JobId, attempt: int, offset: int, limit: int) -> dict[str, object]:
        raise NodeSilent(f"node {node} does not answer")

    def commit(self, events: Sequence[Event], *jobs: Job, ended: Sequence[Job] = ()) -> None:
        live = {each.id: each for each in jobs}
        self.store.commit(
            events, Snapshot(jobs=live, next_id=self.store.load().next_id + len(ended) + len(jobs)), ended
        )
        with self.changed:
            self.snapshot = self.store.load()
            self.changed.notify_all()

    def fail(self, *numbers: int) -> None:
        asked = spec(notify=("hook",), notify_on=("end",))
        over = [
            job(each, state=JobState.FAILED, spec_=asked, exit=Exit(code=1), ended_at=time.time()) for each in numbers
        ]
        now = time.time()
        self.commit(
            [Submitted(now, one.id, asked) for one in over]
            + [Launched(now, one.id, 1, on("a", 0), BatchOrder()) for one in over]
            + [Failed(now, one.id, Exit(code=1)) for one in over],
            ended=over,
        )  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.notifier.close()
    made.store.close()


def point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: Webhook) -> None:
    (tmp_path / "config.toml").write_text(f'[notify]\nhook = "{hook.url(SECRET)}"\n')
    monkeypatch.setenv("GPQ_CONFIG", str(tmp_path / "config.toml"))


def test_after_the_last_try_a_notification_is_given_up_with_a_notice(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook("refuses") as hook:
        point(tmp_path, monkeypatch, hook)
        desk.notifier.start()
        desk.fail(1)
        wait_until(lambda: "given up" in str(desk.notifier.notes(JobId(1))), "the message is given up")
        said = "the notification of its fail was not sent to hook: the service answered 500, given up after 3 tries"
        assert desk.notifier.notes(JobId(1)) == [said]
        assert hook.asked == 3
        again = desk.begin()
        assert again.notes(JobId(1)) == [said]  # remembered


def test_each_notification_is_sent_once_even_after_a_restart(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook() as hook:
        point(tmp_path, monkeypatch, hook)
        desk.fail(1)  # before the notifier looked
        desk.notifier.start()
        wait_until(lambda: hook.titles() == ["gpq: job 1 failed: exit 1"], "the first is sent")
        assert "Cannot read its log now: node a does not answer" in hook.told[0]["message"]
        wait_until(lambda: waiting(tmp_path) == set(), "gpq has recorded that")
        desk.notifier.close()
        desk.fail(2)  # while no daemon runs
        desk.notifier = desk.begin()
        desk.notifier.start()
        wait_until(lambda: len(hook.told) == 2, "the second is sent")
        assert hook.titles()[1] == "gpq: job 2 failed: exit 1"


def test_many_ends_are_one_message(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as hook:
        point(tmp_path, monkeypatch, hook)
        desk.fail(*range(1, 1201))  # more than it reads at once
        desk.notifier.look()
        desk.notifier.start()
        wait_until(lambda: hook.told, "they are sent")
        assert hook.titles() == ["gpq: 1200 messages about jobs"]
        wait_until(lambda: waiting(tmp_path) == set(), "gpq has recorded that")


def test_with_another_database_nothing_old_is_sent(desk: Desk, tmp_path: Path) -> None:
    desk.fail(1)
    kept = json.loads(Path(desk.path).read_text())
    Path(desk.path).write_text(json.dumps({**kept, "store": "another", "seq": 0}))
    fresh = desk.begin()
    fresh.look()
    assert json.loads(Path(desk.path).read_text())["waiting"] == []
    Path(desk.path).write_text("{")  # damaged
    desk.begin().look()
    assert json.loads(Path(desk.path).read_text())["store"] == desk.store.id


def test_an_unpublished_fact_is_sent_after_the_next_look(desk: Desk) -> None:
    asked = spec(notify=("hook",), notify_on=("end",))
    over = job(1, state=JobState.FAILED, spec_=asked, exit=Exit(code=1), ended_at=time.time())
    desk.store.commit([Failed(time.time(), JobId(9), Exit(code=1))], Snapshot(next_id=2), [])
    desk.notifier.look()
    assert json.loads(Path(desk.path).read_text())["waiting"] == []
    desk.store.commit([], Snapshot(next_id=10), [job(9, state=JobState.FAILED, spec_=asked, ended_at=over.ended_at)])
    desk.notifier.look()
    [waits] = json.loads(Path(desk.path).read_text())["waiting"]
    assert (waits["job"], waits["target"], waits["word"]) == (9, "hook", "fail")


@pytest.mark.parametrize("manner", ["drips", "hangs"])
def test_a_service_that_never_ends_is_given_up_and_its_process_is_gone(
    manner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    with webhook(manner) as hook:
        point(tmp_path, monkeypatch, hook)
        began = time.monotonic()
        said = Courier().deliver("hook", "title", "body", limit=3.0)
        assert said in ("no answer within 3 s", "cannot reach the service, or it does not answer")
        figures.at_most("a service that never ends is given up after 3 s", time.monotonic() - began, 30.0)
        assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_child(pid)]


def _is_child(pid: str) -> bool:
    stat = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return len(stat) > 1 and int(stat[1]) == os.getpid() and b"gpq.notify.worker" in _read(Path(f"/proc/{pid}/cmdline"))


def test_a_target_that_cannot_be_reached_gives_the_reason_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text('[notify]\nodd = "nosuchservice://x"\n')
    monkeypatch.setenv("GPQ_CONFIG", str(tmp_path / "config.toml"))
    assert Courier().deliver("odd", "t", "b").startswith("apprise does not know this kind of URL")
    assert Courier().deliver("gone", "t", "b") == "config.toml has no target `gone` in [notify]"
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    assert Courier().deliver("desktop", "t", "b").startswith("cannot reach a desktop from here")
    assert "\n" not in Courier().deliver("mailto:ana@localhost", "t", "b")  # no mail server listens here


def test_no_notification_library_is_imported_until_something_is_sent() -> None:
    code = "import sys, gpq.daemon.main; print({'apprise', 'requests', 'prometheus_client'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
