"""Servers of an attempt meet, and say why if they do not: real sockets on this machine's own addresses."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node.host import network
from gpq_agent.node.shim import rendezvous
from gpq_agent.node.shim.exit_record import Verdict, verdict
from gpq_agent.node.shim.launch import with_address
from gpq_agent.node.shim.rendezvous import Rendezvous, RendezvousFailed

from tests.agent.node.harness import NodeAgent, sweep
from tests.support.ports import free_port
from tests.support.waiting import wait_until

NOBODY = "255.255.255.255"  # no connection leads there, which is known at once


def order(rank: int, port: int, masters: list[str], count: int = 2, **more: object) -> wire.StartOrder:
    fields: dict[str, object] = {
        "port": port,
        "node_rank": rank,
        "node_count": count,
        "masters": masters,
        "secret": "s",
        "servers": ["a", "b", "c"],
    }
    return wire.StartOrder(7, 1, ["true"], "/", {}, [f"slot-{rank}"], "adaptive", **{**fields, **more})  # type: ignore[arg-type]


def all_meet(*orders: wire.StartOrder, patience: float = 20.0) -> list[Future[Rendezvous]]:
    with ThreadPoolExecutor(len(orders)) as pool:
        return [pool.submit(rendezvous.meet, one, patience) for one in orders]


def test_the_first_address_that_answers_is_taken_and_both_know_their_interface() -> None:
    port = free_port()
    masters = [NOBODY, "127.0.0.1"]
    found = all_meet(*(order(rank, port, masters) for rank in (1, 0)))
    assert [one.result() for one in found] == [Rendezvous("127.0.0.1", "lo"), Rendezvous("127.0.0.1", "lo")]


def test_three_servers_take_an_address_that_all_of_them_reach() -> None:
    port = free_port()
    ways = {0: ["127.0.0.3", "127.0.0.1", "127.0.0.2"], 1: ["127.0.0.3", "127.0.0.2"], 2: ["127.0.0.1", "127.0.0.2"]}
    found = all_meet(*(order(rank, port, ways[rank], 3) for rank in ways))
    assert {one.result().address for one in found} == {"127.0.0.2"}
    apart = all_meet(
        order(0, port, ["127.0.0.1", "127.0.0.2"], 3), *(order(r, port, [f"127.0.0.{r}"], 3) for r in (1, 2))
    )
    for one in apart:
        with pytest.raises(RendezvousFailed, match=r"no address of a is .*: b by 127.0.0.1; c by 127.0.0.2") as caught:
            one.result()
        assert caught.value.kind == "network"


def test_an_unreachable_server_is_reported_with_every_address_that_was_tried() -> None:
    [alone] = all_meet(order(1, free_port(), ["127.0.0.1", NOBODY]), patience=0.5)
    with pytest.raises(RendezvousFailed, match=r"127.0.0.1: connection refused; 255.255.255.255: "):
        alone.result()


def test_a_server_that_does_not_come_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "KNOCK", 1.0)
    port = free_port()
    # Of another attempt: not one of ours.
    found = all_meet(order(0, port, ["127.0.0.1"]), order(1, port, ["127.0.0.1"], secret="t"), patience=1.0)
    for one, said in zip(
        found, ("port [0-9]+ of a heard nothing from b", "127.0.0.1: another program answers there"), strict=True
    ):
        with pytest.raises(RendezvousFailed, match=said):
            one.result()


def test_a_connection_in_one_direction_only_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "reachable", lambda *_: "no answer within 3 s")
    port = free_port()
    for one in all_meet(*(order(rank, port, ["127.0.0.1"]) for rank in (0, 1))):
        with pytest.raises(
            RendezvousFailed,
            match=r"b reaches a, but not the other way round.*no answer within 3 s\. Is there a firewall",
        ):
            one.result()


def test_a_port_that_was_taken_in_the_meantime_is_told_apart() -> None:
    with socket.create_server(("", 0)) as other:
        with pytest.raises(RendezvousFailed, match="was taken") as caught:
            rendezvous.meet(order(0, other.getsockname()[1], ["127.0.0.1"]), 1.0)
        assert caught.value.kind == "port"


def test_a_stranger_on_the_port_of_rank_0_learns_nothing_that_lets_it_be_rank_0() -> None:
    """It repeats every line that the visitor sends."""
    with socket.create_server(("127.0.0.1", 0)) as stranger, ThreadPoolExecutor(1) as pool:
        visit = pool.submit(rendezvous.meet, order(1, stranger.getsockname()[1], ["127.0.0.1"]), 0.5)
        while not visit.done():
            stranger.settimeout(0.1)
            with contextlib.suppress(OSError):
                line, _ = stranger.accept()
                with line:
                    line.settimeout(5.0)
                    for _ in range(4):
                        line.sendall(line.recv(1 << 16))
        with pytest.raises(RendezvousFailed, match="another program answers there"):
            visit.result()


def test_servers_meet_although_strangers_hold_more_connections_than_the_host_keeps() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as crowd:
        host = pool.submit(rendezvous.meet, order(0, port, ["127.0.0.1"]))
        for number in range(2 * rendezvous.MOST_STRANGERS):
            line = crowd.enter_context(connected(port))
            line.sendall(wire.encode({"number": "1"}) if number % 2 else b"")
        wait_until(lambda: threading.active_count() < 2 * rendezvous.MOST_STRANGERS, "strangers hung up on")
        assert pool.submit(rendezvous.meet, order(1, port, ["127.0.0.1"])).result().address == "127.0.0.1"
        assert host.result().address == "127.0.0.1"


def connected(port: int) -> socket.socket:
    while True:
        with contextlib.suppress(ConnectionRefusedError):  # the host does not listen yet
            return socket.create_connection(("127.0.0.1", port))


def test_only_an_address_that_gpq_declared_is_taken_from_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_agree", lambda *_: "10.9.9.9")
    port = free_port()
    _, guest = all_meet(order(0, port, ["127.0.0.1"]), order(1, port, ["127.0.0.1"]))
    with pytest.raises(RendezvousFailed, match=r"a names an address that is not its own: '10.9.9.9'"):
        guest.result()


def test_values_of_the_user_stay() -> None:
    met = Rendezvous("10.0.0.1", "eth1")
    interfaces = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
    found = rendezvous.exports(met, 20_001, {})
    assert json.loads(found.pop(wire.ENV_DEFAULTS)) == interfaces  # gpq's, not the user's
    assert found == {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20001", **interfaces}
    found = rendezvous.exports(met, 20_001, {"NCCL_SOCKET_IFNAME": "ib0", "A": "1", wire.ENV_DEFAULTS: '{"X": "1"}'})
    assert found["NCCL_SOCKET_IFNAME"] == "ib0"
    assert json.loads(found[wire.ENV_DEFAULTS]) == {"X": "1", "GLOO_SOCKET_IFNAME": "eth1"}
    assert "NCCL_SOCKET_IFNAME" not in rendezvous.exports(met._replace(interface=""), 20_001, {})
    given = ["python", "--master-addr=a", "x.py", "--master-addr=mine"]
    assert with_address(given, "b") == ["python", "--master-addr=b", "x.py", "--master-addr=mine"]


# -- how it ended


SUMMARY = """train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : one
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: 77)
  error_file: <N/A>
"""
LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.2]:49152\n"
TAKEN = (
    "The server socket has failed to listen on any local network address. port: 20042, useIpv6: false, code: -98,"
    " name: EADDRINUSE, message: address already in use\n"
)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("Traceback: nothing of a launcher\n", Verdict()),
        (SUMMARY.format(rank=3, code=-9), Verdict(cause="rank 3 was killed by SIGKILL")),
        (SUMMARY.format(rank=3, code=-15), Verdict()),
        (SUMMARY.format(rank=1, code=2), Verdict(cause="rank 1 ended with exit code 2")),
        (LOST + SUMMARY.format(rank=0, code=1), Verdict(cause="rank 0 ended with exit code 1", victim=True)),
        (LOST + SUMMARY.format(rank=0, code=-11), Verdict(cause="rank 0 was killed by SIGSEGV")),
        (TAKEN, Verdict(unlaunched="port", note="port 20042 was taken")),
        (TAKEN.replace("20042", "29500"), Verdict()),
    ],
)
def test_the_end_of_a_log_tells_what_failed_first(tmp_path: Path, log: str, found: Verdict) -> None:
    (tmp_path / wire.LOG).write_text("x" * 100_000 + "\n" + log)
    assert verdict(str(tmp_path), order(0, 20_042, []), 1) == found
    assert verdict(str(tmp_path), order(0, 0, []), 1) == Verdict(), "what is no script of ours is not read"


def test_the_first_error_of_a_replica_is_the_cause(tmp_path: Path) -> None:
    """The launcher knows only an exit code. A replica that was killed leaves no error, but others then do."""
    wire.write_json(str(tmp_path / wire.FIRST_ERROR), {"rank": 1, "error": "ValueError: a bad batch"})
    (tmp_path / wire.LOG).write_text(SUMMARY.format(rank=1, code=1))
    assert verdict(str(tmp_path), order(0, 20_042, []), 1).cause == "rank 1: ValueError: a bad batch"
    alone = order(0, 20_042, [])._replace(node_count=1, devices=["0"])
    assert verdict(str(tmp_path), alone, 1).cause == "ValueError: a bad batch"
    (tmp_path / wire.LOG).write_text(SUMMARY.format(rank=0, code=-9))
    assert verdict(str(tmp_path), order(0, 20_042, []), 1).cause == "rank 0 was killed by SIGKILL"


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([[3, -9], [0, 1]], "rank 3 was killed by SIGKILL"),
        ([[1, 2], [0, -15]], "rank 1 ended with exit code 2"),
        ([[0, -15]], ""),
        ([[0]], ""),
        ("many", ""),
    ],
)
def test_what_the_first_process_noted_is_the_cause(tmp_path: Path, failures: object, cause: str) -> None:
    wire.write_json(str(tmp_path / wire.FAILURES), {"failures": failures})
    assert verdict(str(tmp_path), order(0, 20_042, []), 1) == Verdict(cause=cause)


BOTH = """train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 78)
------------------------------------------------------------
""" + SUMMARY.format(rank=0, code=1).partition("\n")[2]


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (SUMMARY.format(rank=0, code=1), "rank 1 ended before its training was over"),
        (SUMMARY.format(rank=1, code=3), "rank 1 ended with exit code 3"),
        (BOTH.format(code=3), "rank 1 ended with exit code 3"),
        (BOTH.format(code=-9), "rank 1 was killed by SIGKILL"),
        ("two FAILED\n" + BOTH.format(code=-9) + BOTH.format(code=3), "rank 1 ended with exit code 3"),
    ],
)
def test_a_lost_connection_is_never_the_cause_if_another_replica_left(tmp_path: Path, log: str, cause: str) -> None:
    """Whichever of the two the launcher saw first."""
    wire.write_json(str(tmp_path / wire.FIRST_ERROR), {"rank": 0, "error": LOST})
    wire.write_json(str(tmp_path / wire.DEPARTED), {"rank": 1})
    (tmp_path / wire.LOG).write_text(LOST + log)
    assert verdict(str(tmp_path), order(0, 20_042, []), 1) == Verdict(cause=cause)
    wire.write_json(str(tmp_path / wire.FIRST_ERROR), {"rank": 0, "error": "ValueError: a bad batch"})
    ours = verdict(str(tmp_path), order(0, 20_042, []), 1).cause
    assert ours == (cause if "killed" in cause else "rank 0: ValueError: a bad batch")


def test_a_batch_that_gpq_chose_excuses_the_end(tmp_path: Path) -> None:
    wire.write_json(str(tmp_path / wire.EXCUSED), {"note": "out of memory with 48 examples"})
    for port in (0, 20_042):
        assert verdict(str(tmp_path), order(0, port, []), 1) == Verdict(excused="out of memory with 48 examples")


def test_what_kept_the_servers_apart_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / wire.LOG).write_text(SUMMARY.format(rank=3, code=-9))
    wire.write_json(str(tmp_path / wire.UNLAUNCHED), {"kind": "network", "note": "no way"})
    assert verdict(str(tmp_path), order(0, 20_042, []), 126) == Verdict(unlaunched="network", note="no way")


# -- in the process that becomes the program


@pytest.fixture
def second(tmp_path: Path) -> Iterator[NodeAgent]:
    """On another server, which has its own spool."""
    spool = tmp_path / "second"
    agent = NodeAgent(spool, "--slots", "4")
    yield agent
    agent.close()
    sweep(spool)


def test_two_agents_start_one_job_with_the_address_and_the_interface_that_were_found(
    node: NodeAgent, second: NodeAgent
) -> None:
    port = free_port()
    show = 'echo "$0 $1 $MASTER_ADDR $MASTER_PORT $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"'
    both = [node, second]
    keys = []
    for rank, agent in enumerate(both):
        argv = ["sh", "-c", show, "--master-addr=assumed", "--master-addr=mine"]
        fields: dict[str, object] = {"port": port, "node_rank": rank, "node_count": 2, "secret": "s"}
        fields["masters"] = [NOBODY, "127.0.0.1"]
        keys.append(agent.start(1, argv, env={"NCCL_SOCKET_IFNAME": "ib7"}, **fields))
    for agent, key in zip(both, keys, strict=True):
        assert agent.ended(key)["code"] == 0, agent.log(key)
        met, said = agent.log(key).decode().splitlines()
        assert met == f"gpq: the servers of this job meet at 127.0.0.1 port {port}, this one through lo"
        assert said == f"--master-addr=127.0.0.1 --master-addr=mine 127.0.0.1 {port} lo ib7"


def test_a_job_on_one_server_needs_no_network(node: NodeAgent) -> None:
    show = 'echo "$MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"'
    key = node.start(1, ["sh", "-c", show], port=free_port(), node_count=1)
    assert node.ended(key)["code"] == 0
    assert node.log(key) == b"127.0.0.1 lo =lo\n"


def test_a_missing_interface_is_reported_before_anything_starts(node: NodeAgent) -> None:
    fields: dict[str, object] = {"port": free_port(), "node_count": 2, "masters": ["127.0.0.1"], "secret": "s"}
    fields["interface"] = "eth77"
    reply = node.try_ask("start", order=node.order(1, ["true"], **fields))
    assert (reply["kind"], reply["error"]) == ("busy", "no interface eth77 on this server")
    assert "lo" in reply["hint"]
