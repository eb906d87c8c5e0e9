"""`gpq doctor` on servers. Each problem has a verdict and a fix, and a healthy server has no problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpq.cli.doctor import server_checks, server_lines
from gpq.cli.doctor.server_checks import disjoint, ssh
from gpq.config import NodeConfig
from gpq.options.json_answers import CheckView as Check
from gpq.rpc.node_answers import DeviceView, NodeView, ProcessView

HEALTHY: dict[str, Any] = {
    "host": "a", "boot": "b1", "python": "3.11.2", "executable": "/usr/bin/python3", "version": 1, "agent": "ab" * 32,
    "disks": [
        {"what": "spool", "path": "/s", "free_mib": 90_000, "inodes": 9_999, "filesystem": "ext4"},
        {"what": "checkpoints", "path": "/c", "free_mib": 90_000, "inodes": None, "filesystem": "nfs4"},
    ],
    "limits": {"nofile": [65536, 65536], "memlock": [8 << 20, -1], "nproc": [1, 1]},
    "shm_mib": 8000, "interfaces": [{"name": "eth0", "address": "10.0.0.1"}], "addresses": ["10.0.0.1"],
    "ephemeral": [32768, 60999], "infiniband": False, "conda": "",
}  # fmt: skip


def lines(offset: float = 0.1, files: int = -1, **changed: Any) -> dict[str, Check]:
    found = [server_lines.clock("a", offset, 0.05), *server_lines.of_itself("a", {**HEALTHY, **changed}, files)]
    return {check.name: check for check in found}


def disk(**changed: Any) -> list[dict[str, Any]]:
    return [{**HEALTHY["disks"][0], **changed}]


def test_a_healthy_server_has_nothing_to_fix() -> None:
    found = lines()
    assert {"agent", "clock", "spool disk", "checkpoints disk", "nofile", "memlock", "shm", "network", "ports"} <= set(
        found
    )
    assert {check.verdict for check in found.values()} == {"ok"}
    assert {check.node for check in found.values()} == {"a"}


@pytest.mark.parametrize(
    ("changed", "name", "verdict", "said"),
    [
        ({"disks": disk(free_mib=100)}, "spool disk", "fail", "0.1 GiB"),
        ({"disks": disk(inodes=3)}, "spool disk", "fail", "3 inodes"),
        ({"disks": disk(free_mib=1000)}, "spool disk", "warn", "1.0 GiB"),
        ({"disks": disk(filesystem="nfs4")}, "spool disk", "warn", "nfs4"),
        ({"disks": [{"what": "spool", "path": "/s", "error": "Stale file handle"}]}, "spool disk", "fail", "Stale"),
        (
            {"limits": {**HEALTHY["limits"], "nofile": [1024, 2048]}},
            "nofile",
            "warn",
            "2048 from this shell, at most 2048",
        ),
        ({"files": 1024}, "nofile", "warn", "1024 from this shell, at most 65536"),
        ({"infiniband": True}, "memlock", "fail", "locked memory: 8 MiB, at most unlimited"),
        (
            {"infiniband": True, "limits": {"nofile": [65536, 65536], "memlock": [65536, 65536]}},
            "memlock",
            "fail",
            "locked memory: 64 KiB, at most 64 KiB",
        ),
        ({"shm_mib": 64}, "shm", "warn", "0.1 GiB"),
        ({"shm_mib": None}, "shm", "warn", "no /dev/shm"),
        ({"addresses": []}, "network", "warn", "only the loopback"),
        ({"ephemeral": [16384, 60999]}, "ports", "warn", "16384 to 60999"),
        ({"offset": -30.0}, "clock", "warn", "30.0 s behind"),
        ({"error": "no answer within 20 s"}, "agent", "fail", "no answer within 20 s"),
    ],
)
def test_each_problem_is_named_with_its_fix(changed: dict[str, Any], name: str, verdict: str, said: str) -> None:
    check = lines(**changed)[name]
    assert check.verdict == verdict
    assert said in check.message
    assert check.fix


GPU = DeviceView("GPU-1", 0, "cuda", "A100", 40_000, 0, 0, "ok", "", None, [])
NODE = NodeView("a", "up", "", 8, 1000, 0.0, [GPU], address="10.0.0.1")


def with_gpu(**changed: Any) -> NodeView:
    device = DeviceView(**{**{name: getattr(GPU, name) for name in GPU.__struct_fields__}, **changed})
    return NodeView("a", "up", "", 8, 1000, 0.0, [device], address="10.0.0.1")


def test_unhealthy_or_busy_gpus_are_named() -> None:
    driver = {"driver": "550.1", "error": "", "notice": "", "lost": [], "gpus": [{"name": "A100"}]}
    assert server_checks.gpus(NODE, driver) == Check("gpus", "ok", "1 x A100, driver 550.1", "", "a")
    ill = server_checks.gpus(with_gpu(state="lost", reason="fell off the bus"), driver)
    assert (ill.verdict, "GPU 0 lost: fell off the bus" in ill.message) == ("fail", True)
    used = server_checks.gpus(with_gpu(state="foreign", processes=[ProcessView(7, "eve", "python", 100, None)]), driver)
    assert (used.verdict, "GPU 0: eve (pid 7, python)" in used.message) == ("warn", True)
    ours = server_checks.gpus(with_gpu(job=3, processes=[ProcessView(7, "eve", "python", 100, 3)]), driver)
    assert ours.verdict == "ok"
    hung = server_checks.gpus(NODE, {"error": "no answer within 15 s"})
    assert (hung.verdict, bool(hung.fix)) == ("fail", True)


def test_an_unreachable_server_is_reported_with_the_reason() -> None:
    silent = server_lines.reachability(NodeView("a", "unreachable", "no route to host", 8, 1000, 9.0, []))
    assert (silent.verdict, silent.message) == ("fail", "does not answer: no route to host")
    assert "gpq nodes remove a" in silent.fix


TORCH = {"python": "3.11.2", "torch": "2.4.0", "gpus": 1, "nccl": "2.20.5"}


def test_torch_versions_must_agree_but_python_patch_levels_may_differ() -> None:
    same = {"a": TORCH, "b": {**TORCH, "python": "3.11.9"}, "c": {"error": "no torch"}}
    assert server_checks.versions(same) == Check("versions", "ok", "Python 3.11, torch 2.4.0, NCCL 2.20.5 on a, b")
    for other in ({"torch": "2.5.0"}, {"nccl": "2.21.0"}, {"python": "3.12.0"}):
        check = server_checks.versions({"a": TORCH, "b": {**TORCH, **other}})
        assert (check.verdict, bool(check.fix)) == ("fail", True)
    assert server_checks.versions({"a": {"error": "none"}}).verdict == "warn"
    assert server_lines.torch("a", "/py", {"error": "no torch"}).verdict == "warn"


def test_two_servers_with_one_host_name_get_a_warning_but_one_server_listed_twice_does_not() -> None:
    one = {"host": "vm", "boot": "x"}
    assert server_checks.host_names({"a": one, "b": one}).verdict == "ok"
    check = server_checks.host_names({"a": one, "b": {**one, "boot": "y"}})
    assert (check.verdict, check.message) == ("warn", "a, b all have the host name vm")


def test_a_connection_is_good_if_one_address_accepts_every_port() -> None:
    tried = {("10.0.0.2", 21000): "", ("10.0.0.2", 40000): "", ("192.168.0.2", 21000): "no route to host"}
    assert server_checks.tcp_line(
        "a", "b", ["192.168.0.2", "10.0.0.2"], tried | {("192.168.0.2", 40000): "x"}
    ) == Check("tcp", "ok", "a -> b at 10.0.0.2")
    some = server_checks.tcp_line("a", "b", ["10.0.0.2"], {("10.0.0.2", 21000): "", ("10.0.0.2", 40000): "no answer"})
    assert (some.verdict, "of 2 ports only 10.0.0.2:21000" in some.message, "allow all TCP from a" in some.fix) == (
        "fail",
        True,
        True,
    )
    none = server_checks.tcp_line("a", "b", ["10.0.0.2"], {("10.0.0.2", 21000): "connection refused"})
    assert (none.verdict, "10.0.0.2: connection refused" in none.message) == ("fail", True)


def test_an_all_reduce_reports_its_figures_and_warns_if_slow() -> None:
    told = {"bandwidth": 1.1e9, "latency": 0.0002, "interface": "eth0"}
    good = server_checks.all_reduce("a", "b", told, "nccl")
    assert good == Check("all-reduce", "ok", "a - b: 1100 MB/s, 0.20 ms (nccl over eth0)")
    assert server_checks.all_reduce("a", "b", {**told, "bandwidth": 11e6}, "gloo").verdict == "warn"
    failed = server_checks.all_reduce("a", "b", {"error": "timed out"}, "gloo")
    assert msgspec.structs.replace(failed, fix="") == Check("all-reduce", "fail", "a - b: timed out")


def test_pairs_measured_at_the_same_time_share_no_server() -> None:
    pairs = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]
    rounds = list(disjoint(pairs))
    assert rounds == [[("a", "b"), ("c", "d")], [("a", "c"), ("b", "d")], [("a", "d"), ("b", "c")]]


def test_the_resolved_ssh_settings_are_shown_without_a_connection(tmp_path: Path) -> None:
    settings = tmp_path / "config"
    settings.write_text("Host far\n  HostName 192.0.2.7\n  User ada\n  Port 2222\n  ProxyJump gate\n")
    node = NodeConfig(connector="ssh", host="far", ssh=["ssh", "-F", str(settings)])
    assert ssh("a", node) == Check("ssh", "ok", "ada@192.0.2.7, port 2222, through gate", "", "a")
    assert ssh("a", NodeConfig(connector="ssh", host="far", port=99, ssh=node.ssh)).message.startswith(
        "ada@192.0.2.7, port 99"
    )
    settings.write_text("Nonsense yes\n")
    wrong = ssh("a", node)
    assert (wrong.verdict, bool(wrong.fix)) == ("fail", True)
    assert ssh("a", NodeConfig(connector="ssh", host="far", ssh=["/no/ssh"])).verdict == "fail"
