"""`gpq nodes drain` on a daemon with two servers, over a kill of the daemon."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from gpq.rpc.job_answers import Explanation, JobList
from gpq.rpc.node_answers import NodeList
from gpq.rpc.requests import Nodes, Status, Wait, Why
from tests.daemon.daemons import Daemon, daemon
from tests.support import commands
from tests.support.waiting import wait_until

CONFIG = """\
policy = "fifo"
interval = 1.0
[nodes.a]
slots = 3
[nodes.b]
slots = 1
"""


def gpq(served: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(words, served.environment)


def states(served: Daemon) -> dict[str, tuple[str, str]]:
    return {node.name: (node.state, node.reason) for node in served.call(Nodes(), NodeList).nodes}


def home_of(served: Daemon, job: int) -> list[str]:
    [row] = served.call(Status([str(job)]), JobList).jobs
    return [part.node for part in row.placement] if row.state == "running" else []


def test_a_drained_server_is_emptied_and_stays_drained_after_a_kill_of_the_daemon(tmp_path: Path) -> None:
    with daemon(tmp_path / "home", CONFIG) as served:
        served.wait_for_nodes()
        stays = served.submit("sleep", "300", min_gpus=2)  # fits only on `a`
        wait_until(lambda: home_of(served, stays) == ["a"], "it runs on a, so gpq knows what jobs find there")
        moves = served.submit("sh", "-c", "trap 'kill $!; exit 143' TERM; sleep 300 & wait", level="signal")
        wait_until(lambda: (home_of(served, stays), home_of(served, moves)) == (["a"], ["a"]), "both run on a")
        told = json.loads(gpq(served, "nodes", "drain", "a", "--reason", "new driver", "--json").stdout)
        assert (told["changed"], told["leaving"], told["staying"]) == (True, [moves], [stays])
        wait_until(lambda: home_of(served, moves) == ["b"], "it continued elsewhere")
        waits = served.submit("true", min_gpus=2)
        served.kill()
        served.start()
        wait_until(lambda: states(served).get("a") == ("drained", "new driver"), "it is still drained")
        wait_until(lambda: (home_of(served, stays), home_of(served, moves)) == (["a"], ["b"]), "both run on")
        assert "server a is drained: new driver" in served.call(Why(str(waits)), Explanation).reasons
        again = gpq(served, "nodes", "drain", "a")
        assert (again.returncode, "already" in again.stdout) == (0, True)
        assert gpq(served, "nodes", "drain", "nowhere").returncode == 4
        assert gpq(served, "cancel", str(stays)).returncode == 0
        wait_until(lambda: home_of(served, stays) == [], "it is over")
        [row] = served.call(Status([str(waits)]), JobList).jobs
        assert row.state == "pending"
        assert gpq(served, "nodes", "undrain", "a").returncode == 0
        [ended] = served.call(Wait([str(waits)]), JobList).jobs
        assert ended.state == "completed"
        assert states(served)["a"] == ("up", "")
