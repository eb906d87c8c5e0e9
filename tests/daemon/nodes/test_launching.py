"""Start orders: command lines with exact sizes, and environments that keep everything from the user."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from gpq_agent import wire

from gpq.core.model.actions import Launch, Prepare
from gpq.core.model.jobs import Attributes, JobSpec, Level, Proof
from gpq.core.model.placements import BatchOrder, Placement
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.daemon import orders
from gpq.daemon.orders import as_expected, can_meet, masters, prepare_order, start_order
from gpq.options import slurm_variables
from gpq.rpc.protocol import LIKE_SLURM
from tests.support.builders import node, spec

NODES = {
    NodeId("a"): replace(node("a"), addresses=("10.0.0.1", "192.168.7.1"), boot_id="one"),
    NodeId("b"): replace(node("b"), addresses=("10.0.0.2",), boot_id="two", interface="ib0"),
}


def place(**counts: int) -> Placement:
    return Placement(
        tuple((NodeId(n), tuple(DeviceId(f"{n}{i}") for i in range(k))) for n, k in sorted(counts.items()))
    )


def order(wanted: JobSpec, placement: Placement, name: str = "a", attempt: int = 1) -> wire.StartOrder:
    launch = Launch(JobId(42), attempt, wanted, placement, BatchOrder(7, 32, 1), port=20_042)
    return start_order(launch, NodeId(name), nodes=NODES, library="/lib/gpq")


def test_another_machine_keeps_its_own_memory_and_network_limits() -> None:
    """A head node with one gigabyte allows few processes, and no locked memory for InfiniBand."""
    noted = Attributes(0o27, 3, (("memlock", 8, 8), ("nofile", 256, 512), ("nproc", 1000, 1000)))
    launch = Launch(JobId(42), 1, spec(attributes=noted), place(a=1), BatchOrder(), port=0)
    there = start_order(launch, NodeId("a"), nodes=NODES, library="").attributes
    here = start_order(launch, NodeId("a"), nodes=NODES, library="", local=Attributes(0o22, 0)).attributes
    assert there is not None
    assert here is not None
    assert (there["umask"], there["nice"], there["limits"]["nofile"]) == (0o27, 3, [256, 512])
    assert there["limits"]["as"] == [-1, -1]  # it had none, and the order says so
    assert here["limits"].keys() - there["limits"].keys() == {"memlock", "msgqueue", "nproc", "sigpending"}
    assert here["limits"]["memlock"] == [8, 8]
    assert order(spec(), place(a=1)).attributes is None


def test_a_black_box_runs_unchanged() -> None:
    wanted = spec(level=Level.BLACK_BOX, argv=("make", "all"), env=(("A", "1"),))
    found = order(wanted, place(a=2))
    environment = {"A": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
    assert (found.argv, found.env, found.devices, found.port) == (["make", "all"], environment, ["a0", "a1"], 0)


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize(("name", "own"), [("PYTHONHASHSEED", "7"), ("PYTHONUNBUFFERED", "")])
def test_the_users_own_value_of_a_default_stays(level: Level, name: str, own: str) -> None:
    assert order(spec(level=level, env=((name, own),)), place(a=1)).env[name] == own


def test_replicas_on_two_servers_get_the_environment_of_torchrun() -> None:
    wanted = spec(argv=("train.py", "--fast"), python="/usr/bin/python3")
    first, second = order(wanted, place(a=2, b=1)), order(wanted, place(a=2, b=1), "b")
    assert first.argv == second.argv == ["/usr/bin/python3", "train.py", "--fast"]
    assert (first.ranks, second.ranks) == ([0, 1], [2])
    for here, size, rank in ((first, "2", "0"), (second, "1", "1")):
        assert (here.env["LOCAL_WORLD_SIZE"], here.env["GROUP_RANK"]) == (size, rank)
        assert (here.env["WORLD_SIZE"], here.env["GROUP_WORLD_SIZE"]) == ("3", "2")
        assert (here.env["MASTER_ADDR"], here.env["MASTER_PORT"]) == ("10.0.0.1", "20042")
        assert "RANK" not in here.env
    assert (first.node_count, first.masters) == (second.node_count, second.masters) == (2, ["10.0.0.1", "192.168.7.1"])
    assert (first.interface, second.interface) == ("", "ib0")


def test_torchrun_starts_the_replicas_of_a_job_that_asks_for_it() -> None:
    wanted = spec(argv=("train.py", "--fast"), python="/usr/bin/python3", launcher="torchrun")
    first, second = order(wanted, place(a=2, b=1)), order(wanted, place(a=2, b=1), "b")
    assert first.argv[:3] == ["/usr/bin/python3", "-m", "torch.distributed.run"]
    assert first.argv[-2:] == ["train.py", "--fast"]
    assert "--nnodes=2" in first.argv
    assert "--nproc-per-node=2" in first.argv
    assert "--nproc-per-node=1" in second.argv
    assert ("--node-rank=0" in first.argv, "--node-rank=1" in second.argv) == (True, True)
    assert "--master-addr=10.0.0.1" in second.argv
    assert (first.port, "--master-port=20042" in second.argv) == (20_042, True)
    assert not any(":" in word for word in first.argv)
    assert (first.ranks, second.ranks) == ([], [])
    assert order(wanted, place(a=1)).argv == ["/usr/bin/python3", "train.py", "--fast"]


def test_the_loopback_is_tried_only_if_all_servers_are_one_machine() -> None:
    launch = Launch(JobId(42), 1, spec(), place(a=1, b=1), BatchOrder(), port=20_042)
    assert masters(launch, NODES) == ("10.0.0.1", "192.168.7.1")
    together = {name: replace(each, boot_id="one") for name, each in NODES.items()}
    assert masters(launch, together) == ("127.0.0.1", "10.0.0.1", "192.168.7.1")


def test_no_order_names_a_master_that_the_daemon_has_not_heard_of() -> None:
    launch = Launch(JobId(42), 1, spec(), place(a=1, b=1), BatchOrder(), port=20_042)
    assert can_meet(launch, NODES)
    assert not can_meet(launch, {**NODES, NodeId("a"): replace(NODES[NodeId("a")], boot_id="")})
    assert not can_meet(launch, {NodeId("b"): NODES[NodeId("b")]})
    assert can_meet(replace(launch, placement=place(b=2)), {})


def test_a_single_replica_needs_no_launcher_and_finds_the_same_environment() -> None:
    found = order(spec(argv=("train.py",), env=(("RANK", "9"),)), place(b=1), "b")
    assert found.argv == ["python3", "train.py"]
    assert {found.env[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")} == {"1"}
    assert {found.env[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")} == {"0"}
    assert (found.env["MASTER_ADDR"], found.env["MASTER_PORT"]) == ("127.0.0.1", "20042")
    assert (found.node_count, found.masters, found.ranks) == (1, [], [])


def test_the_library_goes_before_the_users_own_path() -> None:
    assert order(spec(env=(("PYTHONPATH", "/mine"),)), place(a=1)).env["PYTHONPATH"] == "/lib/gpq:/mine"
    assert order(spec(), place(a=1)).env["PYTHONPATH"] == "/lib/gpq"
    noted = spec(env=(("PATH", "/bin"), ("PYTHONPATH", "/lib/gpq:/mine")))  # from such a script, which does not grow
    assert order(noted, place(a=1)).env["PYTHONPATH"] == "/lib/gpq:/mine"


def test_a_script_learns_what_its_user_accepts_and_the_smallest_number_of_gpus() -> None:
    accepting = spec(accept=("own-next", "own-count"), min_gpus=2, max_gpus=4)
    assert order(accepting, place(a=4)).env[wire.ENV_LEAST_GPUS] == "2"
    assert order(accepting, place(a=1)).env[wire.ENV_ACCEPTED] == "own-next,own-count"
    assert wire.ENV_ACCEPTED not in order(spec(), place(a=1)).env


def test_a_script_learns_the_result_of_gpq_check() -> None:
    checked = spec(proof=Proof("abc", ("split",), ("resize",), "two replicas: differs", "now"))
    found = order(checked, place(a=1)).env[wire.ENV_PROOF]
    assert wire.Proof(**json.loads(found)) == wire.Proof("abc", ["split"], ["resize"], "two replicas: differs")
    assert wire.ENV_PROOF not in order(spec(), place(a=1)).env


def test_the_interpreter_comes_from_the_request_then_the_server_then_the_submission() -> None:
    for fields, of_node, found, gives_way in (
        ({"python": "/mine", "python_asked": True, "setup": "x"}, "/theirs", "/mine", False),
        ({"python": "/active", "setup": "x"}, "/theirs", "/theirs", False),
        ({"python": "/active", "setup": "x"}, "", "/active", True),
        ({"python": "/active"}, "", "/active", False),
    ):
        launch = Launch(JobId(1), 1, spec(environment="e", **fields), place(a=1), BatchOrder())
        start = start_order(launch, NodeId("a"), nodes=NODES, library="/lib", python=of_node)
        look = prepare_order(Prepare(NodeId("a"), "e", launch.spec), of_node, 60.0)
        assert (start.argv[0], start.any_python, start.setup) == (found, gives_way, bool(launch.spec.setup))
        assert (look.python, look.any_python, look.limit) == (found, gives_way, 60.0)
    command = spec(level=Level.BLACK_BOX, python="/mine", environment="e")
    assert prepare_order(Prepare(NodeId("a"), "e", command), "/theirs", 60.0).python == ""


def test_a_server_where_a_job_may_never_start_learns_only_what_an_interpreter_needs() -> None:
    leads = {"PATH": "/bin", "PYTHONPATH": "/mine", "LD_LIBRARY_PATH": "/lib"}
    secret = {"WANDB_API_KEY": "k", "CONDA_TOKEN": "k", "HF_HOME": "/h", "GPQ_X": "1"}
    env = tuple({**leads, **secret}.items())
    for fields, sent in (({}, {}), ({"modules": ("torch",)}, leads), ({"setup": "make"}, leads)):
        wanted = spec(env=env, environment="e", **fields)
        assert prepare_order(Prepare(NodeId("a"), "e", wanted), "", 60.0).env == sent
    wanted = spec(argv=("train.py", "--token", "k"), env=(*env, ("OMP_NUM_THREADS", "2")))
    known = as_expected(Launch(JobId(1), 1, wanted, place(a=1), BatchOrder())).spec
    assert (known.argv, dict(known.env)) == (("train.py",), {**leads, "OMP_NUM_THREADS": "2"})


def test_resume_arguments_come_from_the_second_attempt_on() -> None:
    wanted = spec(level=Level.SIGNAL, argv=("run",), resume_argv=("--resume", "auto"))
    assert order(wanted, place(a=1)).argv == ["run"]
    assert order(wanted, place(a=1), attempt=2).argv == ["run", "--resume", "auto"]


def test_the_done_file_is_passed_on_as_typed() -> None:
    for level in Level:
        assert order(spec(level=level, done_file="out/done"), place(a=1)).done_file == "out/done"


def test_the_first_batch_is_passed_on() -> None:
    assert order(spec(), place(a=1)).control == wire.Control(1, 7, False, 32, 1)._asdict()


def test_slurm_variables_match_what_the_submission_counts_on() -> None:
    def made(part: str, attempt: int = 1, **env: str) -> dict[str, str]:
        wanted = spec(env=tuple({LIKE_SLURM: "1", **env}.items()))
        return orders.slurm_variables(
            Launch(JobId(42), attempt, wanted, place(a=2, b=1), BatchOrder()), NodeId(part), NODES
        )

    first = made("a", SLURM_CPUS_PER_GPU="4", GPQ_ARRAY_SIZE="3")
    assert set(first) == {*slurm_variables.BY_DAEMON, "SLURM_ARRAY_TASK_COUNT"}
    names = ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE")
    assert tuple(first[name] for name in names) == ("8", "8,4", "1(x2)")
    second = made("b", 3, SLURM_CPUS_PER_TASK="6", SLURM_NTASKS="4")
    assert tuple(second[name] for name in names) == ("12", "12(x2)", "2(x2)")
    assert (second["SLURM_RESTART_COUNT"], second["SLURM_NODEID"]) == ("2", "1")
    assert made("a", SLURM_CPUS_PER_TASK="many")["SLURM_CPUS_ON_NODE"] == "1"
