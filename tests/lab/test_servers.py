"""gpq with the servers of a laboratory while their network and their sshd fail: rows 12 to 19 and 41 of the table of
faults."""

from __future__ import annotations

import contextlib
import random
import statistics
import time

import psutil
import pytest
from gpq_agent import wire

from gpq.rpc.job_answers import CancelResult, LogChunk
from gpq.rpc.requests import Cancel, Logs
from tests.daemon.daemons import QUICK
from tests.lab.daemons import LabDaemon, took, watch
from tests.lab.lab import Lab
from tests.support.figures import Figures
from tests.support.waiting import wait_until

UNKNOWN = 15.0  # seconds after which a silent server is reported
BACK = 5.0  # seconds after which a server that is reachable again is used again
# Runs until it gets the word, then ends with 7. Notes in its own file that it ran.
WAITS = "echo run >>ran-$GPQ_JOB_ID; echo here; while ! test -e go; do sleep 0.1; done; exit 7"
# Prints a line now and then until it gets the word. Notes in its own file how many.
TICKS = "i=0; while ! test -e go; do i=$((i+1)); echo line $i; sleep 0.1; done; echo $i >count"


def ticks(count: int) -> str:
    return f"i=0; while test $i -lt {count}; do i=$((i+1)); echo line $i; sleep 0.1; done"


def lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(1, count + 1))


@pytest.mark.row("12")
def test_a_short_cut_goes_unnoticed(lab: Lab, figures: Figures) -> None:
    with LabDaemon(lab, {"srv-a": 1}) as daemon:
        job = daemon.run(ticks(100))
        wait_until(lambda: "line 5\n" in daemon.log(job), "its first lines")
        lab["srv-a"].link.cut()
        seen = watch(5.0, lambda: (daemon.state(job), daemon.node("srv-a").state))
        lab["srv-a"].link.heal()
        seen += watch(2.0, lambda: (daemon.state(job), daemon.node("srv-a").state))
        figures.exactly("changes caused by a cut of 5 s", len(set(seen)) - 1, 0)
        assert daemon.ended(job) == {job: ("completed", 0)}
        assert daemon.log(job) == lines(100)


@pytest.mark.row("13, 14")
def test_silence_of_every_kind_changes_the_server_and_never_the_job(lab: Lab, figures: Figures) -> None:
    faults = {"srv-a": lab["srv-a"].link.cut, "srv-b": lab["srv-b"].link.drop_in, "srv-c": lab["srv-c"].link.drop_out}
    with LabDaemon(lab, dict.fromkeys(faults, 1)) as daemon:
        daemon.up()
        jobs = {job: daemon.place(job) for job in [daemon.run(WAITS) for _ in faults]}
        assert set(jobs.values()) == set(faults)
        began = time.monotonic()
        for fault in faults.values():
            fault()
        silent: dict[str, float] = {}

        def all_silent() -> bool:
            for node in daemon.nodes().nodes:
                if node.state != "up":
                    silent.setdefault(node.name, time.monotonic() - began)
            return len(silent) == len(faults)

        wait_until(all_silent, "all are unknown")
        for name, fault in faults.items():
            figures.at_most(f"unknown after {fault.__name__}", silent[name], UNKNOWN)
        for job, name in jobs.items():
            assert daemon.state(job) in ("running", "unknown")
            assert lab[name].inside("pgrep", "-f", "test -e go")
            (lab[name].home / "go").touch()  # it ends while nobody can hear it
        for job, name in jobs.items():
            wait_until(lambda name=name: not lab[name].inside("pgrep", "-f", "test -e go", check=False), "it has ended")  # type: ignore[misc]
            assert daemon.state(job) in ("running", "unknown")
        began = time.monotonic()
        for name in faults:
            lab[name].link.heal()
        for job, name in jobs.items():
            daemon.up(name)
            figures.at_most(f"back after {faults[name].__name__}", time.monotonic() - began, BACK)
            assert daemon.ended(job) == {job: ("failed", 7)}
            assert (lab[name].home / f"ran-{job}").read_text() == "run\n"
            (lab[name].home / "go").unlink()


@pytest.mark.row("15")
def test_losing_a_fifth_of_the_packets_only_makes_it_slower(lab: Lab, figures: Figures) -> None:
    with LabDaemon(lab, {"srv-a": 2}) as daemon:
        daemon.up()
        lab["srv-a"].link.loss(5)
        long = daemon.run(ticks(100))
        short = [daemon.run(f"echo {number}") for number in range(5)]
        seen = watch(20.0, lambda: daemon.node("srv-a").state)
        figures.exactly("changes of the node in 20 s of 20 % loss each way", len(seen) - 1, 0)
        assert daemon.ended(long, *short) == dict.fromkeys((long, *short), ("completed", 0))
        assert daemon.log(long) == lines(100)


@pytest.mark.row("16")
def test_a_huge_log_over_a_slow_link_keeps_nobody_waiting(lab: Lab, figures: Figures) -> None:
    with LabDaemon(lab, {"srv-a": 2}) as daemon:
        daemon.up()
        lab["srv-a"].link.slow("256kbit")
        huge = daemon.run(
            "yes 'a line of a log that is far too long' | head -c 30000000; while ! test -e go; do sleep 0.1; done"
        )
        daemon.until(huge, "running")
        with daemon.follow(huge) as follower:
            try:
                assert follower.stdout is not None
                assert len(follower.stdout.read(100_000)) == 100_000  # data flows
                delays = []
                for number in range(5):
                    job = daemon.run(f"date +%s.%N >ended-{number}")
                    daemon.ended(job)
                    delays.append(time.time() - float((lab["srv-a"].home / f"ended-{number}").read_text()))
                assert daemon.node("srv-a").state == "up"
                assert follower.poll() is None
            finally:
                follower.kill()
        figures.at_most("the end of a job is noticed, next to a log at 256 kbit/s", max(delays), 5.0)
        lab["srv-a"].link.heal()
        (lab["srv-a"].home / "go").touch()
        assert daemon.ended(huge) == {huge: ("completed", 0)}
        (lab["srv-a"].home / "go").unlink()


@pytest.mark.row("17")
def test_a_server_is_back_at_once_after_resets_and_restarts_of_sshd(lab: Lab, figures: Figures) -> None:
    server = lab["srv-a"]

    def works() -> bool:
        return daemon.ended(daemon.run("true")) != {}

    with LabDaemon(lab, {"srv-a": 2}) as daemon:
        daemon.up()
        job = daemon.run(TICKS)
        daemon.until(job, "running")
        server.link.reject()
        time.sleep(2.0)  # as long as the fault lasts
        server.link.undrop()
        figures.at_most("a job runs after 2 s of resets", took(works, "a job"), BACK)
        server.kill_sshd()
        time.sleep(2.0)
        server.start_sshd()
        figures.at_most("a job runs after a restart of sshd", took(works, "a job"), BACK)
        (server.home / "go").touch()
        assert daemon.ended(job) == {job: ("completed", 0)}
        assert daemon.log(job) == lines(int((server.home / "count").read_text()))


@pytest.mark.row("18")
def test_a_frozen_sshd_delays_nobody_else(lab: Lab, figures: Figures) -> None:
    def latencies() -> list[float]:
        """Delays of the newest log of a job on the healthy server, by its own clock. Both servers share that clock."""
        found = []
        for _ in range(60):
            began = time.monotonic()
            daemon.log(healthy)
            found.append(time.monotonic() - began)
        return sorted(found)

    with LabDaemon(lab, {"srv-a": 1, "srv-b": 1}, pace=QUICK) as daemon:
        daemon.up()
        jobs = {daemon.place(job): job for job in [daemon.run(WAITS) for _ in range(2)]}
        healthy = jobs["srv-b"]
        wait_until(lambda: daemon.log(healthy), "its first line")
        before = latencies()
        lab["srv-a"].freeze_sshd()
        during = latencies()
        wait_until(lambda: daemon.node("srv-a").state != "up", "the frozen one is unknown")
        during = sorted(during + latencies())
        figures.note("median of a log's latency on another server", f"{statistics.median(before) * 1000:.1f} ms")
        slowest = during[int(0.99 * len(during))]
        figures.at_most(
            "p99 of the latency while a server hangs", slowest, max(2 * before[int(0.99 * len(before))], 0.1)
        )
        assert daemon.node("srv-b").state == "up"
        lab["srv-a"].thaw_sshd()
        figures.at_most("the frozen one is back", took(lambda: daemon.node("srv-a").state == "up", "back"), BACK)
        for name, job in jobs.items():
            (lab[name].home / "go").touch()
            assert daemon.ended(job) == {job: ("failed", 7)}
            (lab[name].home / "go").unlink()


@pytest.mark.row("19")
def test_an_order_stuck_in_an_old_connection_is_not_obeyed(lab: Lab, figures: Figures) -> None:
    server = lab["srv-a"]
    with LabDaemon(lab, {"srv-a": 2}, pace=QUICK) as daemon:
        daemon.up()
        daemon.ended(daemon.run("true"))  # the server has answered the check of such jobs' environment
        server.link.drop_in()
        stale, cancelled = daemon.run("echo run >>stale"), daemon.run("echo run >>cancelled")
        for job in (stale, cancelled):
            daemon.until(job, "starting")  # the order to start it is in a connection that nobody reads
        ordered = time.monotonic()
        daemon.call(Cancel([str(cancelled)], wait=0.0), CancelResult)
        wait_until(lambda: daemon.node("srv-a").state != "up", "unknown", 2 * UNKNOWN)
        wait_until(lambda: time.monotonic() > ordered + wire.START_EXPIRY, "the order is older than allowed")
        server.link.undrop()
        daemon.up()
        ended = daemon.ended(stale, cancelled)
        assert ended[stale] == ("completed", 0)
        assert ended[cancelled][0] == "cancelled"
        assert not (server.home / "cancelled").exists()
        ran = (server.home / "stale").read_text().count("run")
        figures.exactly("runs of a job whose order hung in a half-open connection", ran, 1)


def connections(daemon: LabDaemon) -> set[int]:
    """The ssh processes of the daemon, by pid."""
    assert daemon.process is not None
    children = psutil.Process(daemon.process.pid).children(recursive=True)
    found: set[int] = set()
    for one in children:
        with contextlib.suppress(psutil.Error):
            if one.name() == "ssh" and one.status() != psutil.STATUS_ZOMBIE:
                found.add(one.pid)
    return found


@pytest.mark.row("41")
def test_a_follower_gets_every_byte_over_many_cuts(lab: Lab, figures: Figures) -> None:
    server = lab["srv-a"]
    code = (
        "import os, random, sys, time; luck, pieces = random.Random(7), 0\n"
        "while not os.path.exists('go'): sys.stdout.buffer.write(luck.randbytes(luck.randrange(2000)));"
        " sys.stdout.flush(); pieces += 1; time.sleep(0.1)\n"
        "open('pieces', 'w').write(str(pieces))"
    )
    with LabDaemon(lab, {"srv-a": 1}, pace=QUICK) as daemon:
        daemon.up()
        job = daemon.submit("python3", "-c", code, cwd="/home/ada", python="")
        daemon.until(job, "running")
        with daemon.follow(job, "--raw") as follower:
            for number in range(20):
                if number % 2:
                    wait_until(lambda: not daemon.call(Logs(str(job)), LogChunk).silent, "it is connected again")
                    before = connections(daemon)
                    server.link.reject()  # the connection breaks
                    wait_until(lambda before=before: not connections(daemon) & before, "the connection is lost")  # type: ignore[misc]
                else:
                    server.link.cut()  # it hangs
                    time.sleep(0.5)
                server.link.heal()
                time.sleep(0.7)
            (server.home / "go").touch()
            said, complaints = follower.communicate(timeout=90)
        assert daemon.ended(job) == {job: ("completed", 0)}, complaints
        lost = (daemon.home / "daemon.log").read_text().count("Next try")
        figures.note("connections lost or refused in the meantime", str(lost))
        assert lost >= 10
        luck = random.Random(7)
        pieces = int((server.home / "pieces").read_text())
        written = b"".join(luck.randbytes(luck.randrange(2000)) for _ in range(pieces))
        differs = sum(a != b for a, b in zip(said, written, strict=False)) + abs(len(said) - len(written))
        figures.exactly(f"bytes of {len(written)} that differ after 20 cuts", differs, 0)
