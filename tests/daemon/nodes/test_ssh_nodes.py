"""A daemon with a server behind ssh: jobs there outlive the connection, the daemon, and a server that hangs."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gpq_agent.node.main import parse

from gpq.config import NodeConfig
from gpq.connectors.from_config import local_arguments, ssh_arguments
from gpq.errors import Refused
from gpq.rpc.job_answers import CancelResult, JobDetail, LogChunk
from gpq.rpc.node_answers import NodeList, NodeView, Reloaded
from gpq.rpc.requests import Cancel, Logs, Nodes, Reload, Show
from tests.daemon.daemons import QUICK, Daemon, daemon
from tests.support.figures import Figures
from tests.support.sshd import Sshd, clients
from tests.support.waiting import pid_in, wait_until

UNKNOWN_WITHIN = 15.0  # seconds after a server hangs
BACK_WITHIN = 5.0  # seconds after it continues

COUNT = "echo $$ > pid; i=0; while [ ! -e go ]; do echo line $i; i=$((i+1)); sleep 0.05; done; echo $i > count"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path / "sshd") as running:
        yield running


@contextmanager
def serving(server: Sshd, folder: Path, pace: float) -> Iterator[Daemon]:
    config = f'policy = "fifo"\ninterval = 5.0\n[nodes.far]\n{server.toml()}'
    with daemon(folder / "home", config, pace) as running:
        running.wait_for_nodes()
        yield running


@pytest.fixture
def served(server: Sshd, tmp_path: Path) -> Iterator[Daemon]:
    with serving(server, tmp_path, 1.0) as running:
        yield running


@pytest.fixture
def impatient(server: Sshd, tmp_path: Path) -> Iterator[Daemon]:
    """For tests that wait for its silence or its back-off."""
    with serving(server, tmp_path, QUICK) as running:
        yield running


def node(served: Daemon) -> NodeView:
    return served.call(Nodes(["far"]), NodeList).nodes[0]


def detail(served: Daemon, job: int) -> JobDetail:
    return served.call(Show(str(job)), JobDetail)


def ended(served: Daemon, job: int) -> JobDetail:
    wait_until(lambda: detail(served, job).job.state in ("completed", "failed"), "the job has ended")
    return detail(served, job)


def log(served: Daemon, job: int) -> str:
    return base64.b64decode(served.call(Logs(str(job), wait=5.0), LogChunk).data).decode()


def client(server: Sshd, but: Collection[int] = ()) -> int:
    """The daemon's ssh, if it is none of these. While it is being replaced there may be two, or none."""
    [ssh] = wait_until(lambda: len(found := set(clients(server.config)) - set(but)) == 1 and found, "one ssh runs")
    return ssh


def kill(ssh: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended on its own
        os.kill(ssh, signal.SIGKILL)


def counting(served: Daemon, work: Path) -> int:
    """A job that writes a line every 0.05 s until there is a file `go`, and then the number of lines."""
    return served.submit("sh", "-c", f"cd {work}; {COUNT}", max_gpus=1)


def counted(work: Path) -> str:
    """What the job has written."""
    return "".join(f"line {number}\n" for number in range(int((work / "count").read_text())))


def test_a_job_outlives_kill_9_of_the_connection_and_of_the_daemon(
    served: Daemon, server: Sshd, tmp_path: Path
) -> None:
    job = counting(served, tmp_path)
    pid = pid_in(tmp_path / "pid")
    seen: set[int] = set()
    for _ in range(3):
        ssh = client(server, seen)
        seen.add(ssh)
        kill(ssh)
    served.kill()
    wait_until(lambda: not clients(server.config), "ssh ends with its daemon")
    served.start()
    served.wait_for_nodes()
    os.kill(pid, 0)
    (tmp_path / "go").touch()
    found = ended(served, job)
    assert (found.job.state, found.job.exit_status, found.job.attempt) == ("completed", 0, 1)
    assert log(served, job) == counted(tmp_path)
    assert len(list((server.home / ".gpq" / "agent").iterdir())) == 1


def test_a_server_that_hangs_is_silent_soon_and_back_at_once_with_its_job_untouched(
    impatient: Daemon, server: Sshd, tmp_path: Path, figures: Figures
) -> None:
    job = counting(impatient, tmp_path)
    pid = pid_in(tmp_path / "pid")
    wait_until(lambda: detail(impatient, job).job.state == "running", "the job runs")
    server.signal(signal.SIGSTOP)
    began = time.monotonic()
    wait_until(lambda: node(impatient).state == "unreachable", "the node is unreachable")
    figures.at_most("unreachable after its sshd was stopped", time.monotonic() - began, UNKNOWN_WITHIN)
    assert detail(impatient, job).job.state == "running"
    server.signal(signal.SIGCONT)
    began = time.monotonic()
    wait_until(lambda: node(impatient).state == "up", "the node is up")
    figures.at_most("up after its sshd continues", time.monotonic() - began, BACK_WITHIN)
    os.kill(pid, 0)
    (tmp_path / "go").touch()
    found = ended(impatient, job)
    assert (found.job.exit_status, found.job.attempt) == (0, 1)
    assert log(impatient, job) == counted(tmp_path)


def test_an_unreachable_server_shows_its_reason_and_comes_back_on_its_own(impatient: Daemon, server: Sshd) -> None:
    known = server.known_hosts.read_text()
    server.stop()
    server.change_host_key()
    server.start()
    kill(client(server))
    wait_until(lambda: "the host key of" in node(impatient).reason, "the host key is refused")
    assert server.known_hosts.read_text() == known
    server.know()
    wait_until(lambda: node(impatient).state == "up", "the node is up")


def test_servers_come_and_go_while_the_daemon_runs_but_not_with_jobs(
    served: Daemon, server: Sshd, tmp_path: Path
) -> None:
    before = served.config.read_text()
    ssh = client(server)
    served.config.write_text(f"{before}[nodes.near]\nslots = 1\n")
    assert served.call(Reload(), Reloaded) == Reloaded(added=["near"], removed=[])
    wait_until(lambda: served.info().nodes == {"far": "up", "near": "up"}, "both are up")
    assert not served.info().config_changed
    assert clients(server.config) == [ssh]
    job = counting(served, tmp_path)
    [part] = wait_until(lambda: detail(served, job).job.placement, "the job has been placed")
    other = "near" if part.node == "far" else "far"
    tables = {"far": server.toml(), "near": "slots = 1\n"}
    served.config.write_text(f'policy = "fifo"\ninterval = 5.0\n[nodes.{other}]\n{tables[other]}')
    with pytest.raises(Refused, match=f"there are jobs on {part.node}: {job}"):
        served.call(Reload(), Reloaded)
    assert set(served.info().nodes) == {"far", "near"}
    served.config.write_text(f'policy = "fifo"\ninterval = 6.0\n[nodes.{part.node}]\n{tables[part.node]}')
    assert served.call(Reload(), Reloaded) == Reloaded(added=[], removed=[other], restart_needed=True)
    assert set(served.info().nodes) == {part.node}
    assert served.info().config_changed
    assert served.call(Cancel([str(job)]), CancelResult).cancelled == [job]


def test_servers_that_share_a_home_share_only_its_checkpoints() -> None:
    def asked(node: str) -> dict[str, str]:
        said = ssh_arguments(node, NodeConfig(connector="ssh", host=node), "/state")
        return dict(zip(said[::2], said[1::2], strict=True))

    one, other = asked("a"), asked("b")
    assert one["--checkpoints"] == other["--checkpoints"]
    assert one["--spool"] != other["--spool"]
    elsewhere = ssh_arguments("a", NodeConfig(connector="ssh", host="a"), "/another/state")
    assert one["--checkpoints"] not in elsewhere, "another daemon's jobs have the same numbers"


@pytest.mark.parametrize("lock", [False, True])
def test_an_agent_locks_its_slots_only_if_the_configuration_says_so(lock: bool) -> None:
    arguments = local_arguments(NodeConfig(slots=2, cores=[0, 1], lock=lock), "/state", "/state/spool")
    assert parse(arguments).lock_slots is lock
