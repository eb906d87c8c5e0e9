"""When an agent keeps a standby, when it gives it up, and who gets it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node.host import procs
from gpq_agent.node.shim import launch, start_order
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.standby import standbys
from gpq_agent.node.standby.standbys import recipes

from tests.agent.node.harness import NodeAgent, survivors, wait_until
from tests.agent.standby.harness import IMPORTS, LIBRARY, TRAINS, Scripts, waiting


def test_other_scripts_variables_or_attributes_get_a_new_interpreter(scripts: Scripts) -> None:
    scripts.prepare()
    other = {"umask": 0o77, "nice": 0, "limits": {}}
    (scripts.folder / "other.py").write_text("print(1)")
    other_script = {"argv": [sys.executable, "other.py"]}
    for fields in (other_script, {"env": {"OMP_NUM_THREADS": "2"}}, {"env": {"LC_NEW": ""}}, {"attributes": other}):
        key = scripts.start("print(1)", **fields)
        assert scripts.node.ended(key)["code"] == 0
        assert not scripts.is_warm(key)
    assert scripts.ready() == 1


@pytest.mark.parametrize("harm", ["killed", "stopped", "shim killed", "shim stopped"])
def test_a_standby_that_fails_is_not_missed(scripts: Scripts, spool: Path, harm: str) -> None:
    scripts.prepare()
    [interpreter] = waiting(spool)
    pid = interpreter.parent if harm.startswith("shim") else interpreter.pid
    os.kill(pid, signal.SIGKILL if harm.endswith("killed") else signal.SIGSTOP)
    text = f"open({str(scripts.folder)!r} + '/starts', 'a').write('start\\n')"
    key = scripts.start(text)
    try:
        assert scripts.node.ended(key)["code"] == 0
        assert not scripts.is_warm(key)
    finally:
        if harm.endswith("stopped"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not waiting(spool), "the end of the standby")
    assert (scripts.folder / "starts").read_text() == "start\n"


def test_a_standby_that_takes_too_much_memory_is_given_up(scripts: Scripts, spool: Path) -> None:
    own = scripts.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.KEPT = bytearray(b'x' * (300 << 20))\n")
    env = {"PYTHONPATH": f"{LIBRARY}:{own}"}
    stop = scripts.folder / "stop"
    key = scripts.start(TRAINS, str(stop), env=env)
    wait_until(lambda: scripts.ready() == 0 and waiting(spool), "the standby", IMPORTS)
    wait_until(lambda: scripts.ready() == 0 and not waiting(spool), "its end", IMPORTS)
    stop.touch()
    scripts.node.ended(key)


def test_a_job_that_may_not_be_resized_leaves_none(scripts: Scripts, spool: Path) -> None:
    stop = scripts.folder / "stop"
    key = scripts.start(TRAINS, str(stop), standby_after=None)
    for _ in range(20):
        assert scripts.ready() == 0
    assert waiting(spool) == []
    stop.touch()
    scripts.node.ended(key)


def test_every_process_has_the_mark_of_its_attempt(scripts: Scripts, spool: Path) -> None:
    """Even what left its session, and its shim, ends with the attempt."""
    scripts.prepare()
    ready = scripts.folder / "ready"
    text = (
        "import os, time\n"
        "if not os.fork():\n    os.setsid()\n    os.fork()\n"
        f"open({str(ready)!r}, 'a').write('x')\ntime.sleep(3600)\n"
    )
    key = scripts.start(text)
    wait_until(lambda: ready.exists() and len(ready.read_text()) == 3, "three processes")
    assert scripts.is_warm(key)
    assert len(survivors(spool, key)) == 3
    record = wire.read_json(str(scripts.node.folder(key) / wire.SHIM))
    assert record is not None
    os.kill(record["pid"], signal.SIGKILL)
    scripts.node.ask("stop", attempt=key, mode="kill", grace=1.0)
    scripts.node.wait_for(key, "exited")
    assert survivors(spool, key) == []


def test_a_standby_ends_with_its_agent(agent: Callable[..., NodeAgent], tmp_path: Path, spool: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    first = agent("--slots", "4")
    Scripts(first, folder).prepare()
    assert len(waiting(spool)) == 1
    first.close()
    wait_until(lambda: not waiting(spool), "the end of the standby")


def test_the_daemon_may_ask_for_a_standby_before_the_first_attempt_on_this_server(scripts: Scripts) -> None:
    order = scripts.order("print(1)")
    scripts.node.ask("warm", order={**order, "attempt": 2})
    wait_until(scripts.ready, "a standby", IMPORTS)
    key = scripts.start("print(1)")
    assert scripts.node.ended(key)["code"] == 0
    assert scripts.is_warm(key)


def test_a_standby_gets_variables_that_no_import_reads_only_with_its_attempt(scripts: Scripts, spool: Path) -> None:
    scripts.prepare(env={"WANDB_API_KEY": "before"})
    [standby] = waiting(spool)
    assert b"before" not in Path(f"/proc/{standby.pid}/environ").read_bytes()
    key = scripts.start("import os; print(os.environ['WANDB_API_KEY'])", env={"WANDB_API_KEY": "here"})
    assert scripts.node.ended(key)["code"] == 0
    assert (scripts.is_warm(key), scripts.node.log(key)) == (True, b"here\n")


def test_on_gpus_a_standby_of_each_thread_setting_is_needed(tmp_path: Path) -> None:
    """One replica has no default for its threads, several have that of torchrun."""
    (tmp_path / "script.py").touch()
    order = start_order.parse_order(
        {
            "job": 1, "attempt": 1, "argv": [sys.executable, "script.py"], "cwd": str(tmp_path), "env": {},
            "devices": ["GPU-1"], "level": "adaptive", "standby_after": 0.0,
        }
    )  # fmt: skip
    place = Spool(str(tmp_path / "spool"))

    def keys(count: int, base: dict[str, str]) -> list[str]:
        devices = [wire.DeviceInfo(f"GPU-{i}", i, "cuda", "A100", 40_000, "ok") for i in range(count)]
        some = order._replace(ranks=list(range(count)) if count > 1 else [])
        return [recipe.key for recipe in recipes(some, launch.environment(place, some, base, devices))]

    single, several = keys(1, {}), keys(2, {})
    assert len(single) == len(several) == 2
    assert single == several[::-1]
    assert keys(1, {"OMP_NUM_THREADS": "8"}) == keys(2, {"OMP_NUM_THREADS": "8"})
    assert len(keys(1, {"OMP_NUM_THREADS": "8"})) == 1


def test_an_interpreter_that_cannot_import_torch_leaves_none(scripts: Scripts, spool: Path) -> None:
    own = scripts.folder / "own"
    own.mkdir()
    tries = own / "tries"
    (own / "torch.py").write_text(f"open({str(tries)!r}, 'a').write('x')\nraise ImportError('no torch here')\n")
    env = {"PYTHONPATH": f"{own}:{LIBRARY}"}
    stop = scripts.folder / "stop"
    key = scripts.start(TRAINS, str(stop), env=env)
    wait_until(lambda: scripts.ready() or tries.exists(), "the import in a standby", IMPORTS)
    wait_until(lambda: scripts.ready() == 0 and not waiting(spool), "its end", IMPORTS)
    stop.touch()
    scripts.node.ended(key)
    key = scripts.start("print(1)", env=env)
    assert scripts.node.ended(key)["code"] == 0
    assert not scripts.is_warm(key)
    assert tries.read_text() == "x"


def test_standbys_end_when_the_server_runs_short_of_memory(
    scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Spool(str(tmp_path / "short"))
    order = start_order.parse_order(scripts.order("print(1)"))
    monkeypatch.setattr(standbys, "PERIOD", 0.0)
    pool = standbys.Standbys(place)
    pool.expect(order, order.env)

    def ready() -> int:
        pool.tend(set(), lambda _: False)
        return pool.ready

    try:
        wait_until(ready, "a standby", IMPORTS)
        monkeypatch.setattr(standbys, "LEAST_FREE_MIB", 1 << 40)
        assert ready() == 0
        wait_until(lambda: not procs.marked_pids(wire.ENV_MARK, wire.STANDBY_MARK, own_processes()), "its end")
    finally:
        pool.close()


def own_processes() -> dict[int, procs.Process]:
    """Those of this test's process, which is their agent here."""
    command = procs.command_of(os.getpid())
    processes = procs.snapshot()
    return {pid: one for pid, one in processes.items() if procs.command_of(one.parent) == command}
