"""`gpq nodes reserve` on a daemon with two servers, over a kill of the daemon."""

from __future__ import annotations

import json
from pathlib import Path

from gpq.rpc.job_answers import Explanation, JobList
from gpq.rpc.node_answers import NodeList
from gpq.rpc.requests import Nodes, Status, Why
from tests.daemon.daemons import daemon
from tests.daemon.placing.test_draining import CONFIG, gpq, home_of
from tests.support.waiting import wait_until


def test_reserved_gpus_are_emptied_and_kept_through_a_kill_of_the_daemon(tmp_path: Path) -> None:
    with daemon(tmp_path / "home", CONFIG) as served:
        served.wait_for_nodes()
        moves = served.submit("sh", "-c", "trap 'kill $!; exit 143' TERM; sleep 300 & wait", level="signal")
        wait_until(lambda: home_of(served, moves), "it runs")
        [here] = home_of(served, moves)
        [there] = {"a", "b"} - {here}
        told = gpq(served, "nodes", "reserve", here, "--for", "bo", "--for-duration", "1h", "--json")
        answer = json.loads(told.stdout)
        assert (answer["leaving"], answer["staying"], answer["reservation"]["user"]) == ([moves], [], "bo")
        wait_until(lambda: home_of(served, moves) == [there], "it continued elsewhere")
        served.kill()
        served.start()
        wait_until(lambda: home_of(served, moves) == [there], "it runs on")
        [held] = served.call(Nodes([here]), NodeList).reservations
        assert (held.id, held.node, held.begins_in_seconds, held.by != "") == (1, here, 0.0, True)
        assert not served.call(Nodes([there]), NodeList).reservations
        listed = gpq(served, "nodes").stdout
        assert "RESERVATION" in listed
        assert "bo" in listed
        waits = served.submit("sleep", "300", min_gpus=1 if here == "b" else 3)

        def said(words: str) -> bool:
            return any(words in line for line in served.call(Why(str(waits)), Explanation).reasons)

        wait_until(lambda: said(f"server {here} is reserved for bo for another" if here == "a" else ""), "it says why")
        undone = gpq(served, "nodes", "unreserve", "1")
        assert (undone.returncode, "reservation 1 is cancelled" in undone.stdout) == (0, True)
        wait_until(lambda: served.call(Status([str(waits)]), JobList).jobs[0].state == "running", "its turn")
        again = gpq(served, "nodes", "reserve", f"{there}:0", "--for-duration", "400d", "--for", "bo")
        assert again.returncode == 2  # more than a year
        short = gpq(served, "nodes", "reserve", f"{there}:0", "--from", "+1h", "--for-duration", "2d")
        assert short.returncode == 0
        assert f"reserved  {there}:0 for nobody (gpq leaves it alone)" in short.stdout
        assert f"leave it  job {moves}" in short.stdout
        for words, code in (
            ((there,), 2),
            ((there, "--for-duration", "2"), 2),
            ((there, "--from", "soon", "--for-duration", "2h"), 2),
            ((f"{there}:", "--for-duration", "2h"), 2),
            ((f"{there}:9", "--for-duration", "2h"), 4),
            (("nowhere", "--for-duration", "2h"), 4),
            ((f"{there}:0", "--from", "+2h", "--for-duration", "2h"), 5),
        ):
            refused = gpq(served, "nodes", "reserve", *words)
            assert (refused.returncode, refused.stdout) == (code, ""), words
            assert "Traceback" not in refused.stderr
        assert gpq(served, "nodes", "unreserve", "9").returncode == 4
