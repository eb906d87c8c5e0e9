"""A forked replica sees what a fresh interpreter sees, and ends in the same way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpq_agent.train.prove import fork_server

from gpq.check.fork_server import ForkServer, ServerLost
from tests.support.waiting import wait_until

AGENT = Path(fork_server.__file__).parents[3]
ARGUMENTS = ("--epochs", "3", "", "größer")
OWN = {"RANK": "1", "GPQ_OWN": "of this replica"}
FACTS = """
import json, multiprocessing, os, resource, signal, sys, threading
found = {
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "flags": repr(sys.flags),
    "names": sorted(name for name in globals() if name != "__annotations__"),
    "main": [__name__, __file__, __package__, __spec__, __cached__, __doc__, __loader__.path, type(__builtins__).__name__],
    "is_main": vars(sys.modules["__main__"]) is globals(),
    "executable": sys.executable, "cwd": os.getcwd(), "umask": os.umask(0o22), "nice": os.nice(0),
    "leads": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
    "isatty": [os.isatty(number) for number in (0, 1, 2)], "stdin": sys.stdin.read(),
    "streams": [[each.name, each.encoding, each.errors, each.line_buffering, each.write_through]
                for each in (sys.stdin, sys.stdout, sys.stderr)],
    "environ": dict(os.environ), "limits": [resource.getrlimit(number) for number in range(10)],
    "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "descriptors": sorted(os.readlink(f"/proc/self/fd/{each}").partition(":")[0]
                          for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")),
    "thread": [threading.current_thread().name, threading.active_count()],
    "process": [multiprocessing.current_process().name, multiprocessing.parent_process()],
    "hook": sys.excepthook is sys.__excepthook__, "recursion": sys.getrecursionlimit(),
}
import torch
found["torch"] = [torch.get_num_threads(), torch.get_num_interop_threads(), torch.cuda.is_initialized()]
print(json.dumps(found))
"""
WORKERS = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.tensor([index, index**2])
if __name__ == "__main__":
    for method in ("spawn", "fork"):
        loader = torch.utils.data.DataLoader(Data(), 2, num_workers=1, multiprocessing_context=method)
        print([batch.tolist() for batch in loader])
"""
ENDS = {
    "end": "print('unflushed', end='')",
    "number": "import sys; sys.exit(3)",
    "text": "raise SystemExit('in a word')",
    "nothing": "import sys; sys.exit()",
    "error": "def inner():\n    raise ValueError('planted')\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    inner()\n",
    "syntax": "x = 1\nif x\n    pass\n",
    "group": "import asyncio\nasync def main():\n    raise KeyError('planted')\nasyncio.run(main())\n",
    "hook": "import sys\nsys.excepthook = lambda *error: print(error[1], sys.exc_info())\nraise ValueError('planted')",
    "told": "import atexit, sys\natexit.register(lambda: print(sys.last_type, sys.last_value))\nraise ValueError('planted')",
    "exits": "import atexit\natexit.register(print, 'at exit')\nraise SystemExit(4)",
    "threads": "import threading, time\nthreading.Timer(0.2, print, ['late']).start()",
    "at once": "import os; os._exit(7)",
    "signal": "import os; os.kill(os.getpid(), 15)",
    "abort": "import os; os.abort()",
}  # fmt: skip


class Both:
    """A script that runs in a fresh interpreter and in a fork of one server."""

    def __init__(self, folder: Path) -> None:
        (folder / "real").mkdir()
        (folder / "cwd").mkdir()
        self.folder = folder
        self.script = folder / "train.py"
        self.script.symlink_to(folder / "real" / "loop.py")
        self.script.write_text("")
        self.environ = {**os.environ, "PYTHONPATH": str(AGENT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.server = self.serving(self.script)

    def serving(self, script: Path, python: str = sys.executable, **environ: str) -> ForkServer:
        log = script.with_suffix(".log")
        return ForkServer(python, str(script), str(self.folder / "cwd"), {**self.environ, **environ}, 0, log)

    def fresh(self) -> tuple[int, str]:
        log = self.folder / "replica.log"
        with open(log, "wb") as output:
            found = subprocess.run(
                [sys.executable, str(self.script), *ARGUMENTS], cwd=self.folder / "cwd", env={**self.environ, **OWN},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, check=False,
            )  # fmt: skip
        return found.returncode, log.read_text()

    def forked(self) -> tuple[int, str]:
        wait_until(lambda: heard(self.server).ready or self.server.lost, "the server has imported torch", 120)
        log = self.folder / "replica.log"
        fork = self.server.fork(ARGUMENTS, OWN, log)
        wait_until(lambda: fork.poll() is not None, "the fork has ended", 120)
        return self.server.codes[fork.pid], log.read_text()


def heard(server: ForkServer) -> ForkServer:
    server.listen()
    return server


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    both = Both(tmp_path_factory.mktemp("forks"))
    yield both
    both.server.close()


def test_a_fork_sees_what_a_fresh_interpreter_sees(both: Both) -> None:
    both.script.write_text(FACTS)
    (code, fresh), (other, forked) = both.fresh(), both.forked()
    assert (code, other) == (0, 0), (fresh, forked)
    wanted: dict[str, Any] = json.loads(fresh)
    found: dict[str, Any] = json.loads(forked)
    assert wanted["path"][0] == str(both.folder / "real")
    assert {name: found[name] for name in found if found[name] != wanted[name]} == {}
    assert found.keys() == wanted.keys()


@pytest.mark.parametrize("name", ENDS)
def test_a_fork_ends_like_a_fresh_interpreter(both: Both, name: str) -> None:
    both.script.write_text(ENDS[name])
    assert both.forked() == both.fresh()


def test_an_interrupt_ends_a_fork(both: Both) -> None:
    both.script.write_text("raise KeyboardInterrupt")
    code, said = both.forked()
    assert (code, said.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")


def test_workers_of_a_loader_find_the_script(both: Both) -> None:
    both.script.write_text(WORKERS)
    assert both.forked() == (0, "[[[0, 0], [1, 1]], [[2, 4], [3, 9]]]\n" * 2)


def test_each_fork_draws_its_own_random_numbers(both: Both) -> None:
    both.script.write_text(
        "import multiprocessing, numpy, random, torch, uuid\n"
        "print(random.random(), numpy.random.rand(), uuid.uuid4(), torch.initial_seed(), torch.rand(()).item(),"
        " bytes(multiprocessing.current_process().authkey).hex())"
    )
    drawn = [both.forked()[1].split() for _ in range(2)]
    assert all(len(each) == 6 for each in drawn)
    assert not set(drawn[0]) & set(drawn[1])


def test_forks_end_with_the_server(both: Both, tmp_path: Path) -> None:
    both.script.write_text("import time; print('begun'); time.sleep(600)")
    script = tmp_path / "train.py"
    script.symlink_to(both.script)
    server = both.serving(script)
    try:
        wait_until(lambda: heard(server).ready, "the server has imported torch", 120)
        fork = server.fork((), {}, tmp_path / "fork.log")
        log = tmp_path / "fork.log"
        wait_until(lambda: log.exists() and "begun" in log.read_text(), "the fork runs")
    finally:
        server.close()
    wait_until(lambda: not Path(f"/proc/{fork.pid}/exe").exists(), "the fork has ended")


def test_a_dead_server_reports_why_it_ended(both: Both, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)")
    server = both.serving(script)
    try:
        wait_until(lambda: heard(server).ready, "the server has imported torch", 120)
        fork = server.fork((), {}, tmp_path / "fork.log")
        wait_until(lambda: heard(server).lost, "the server has ended")
        assert (server.lost, fork.poll()) == ("it ended with signal 9", None)
        with pytest.raises(ServerLost):
            server.fork((), {}, tmp_path / "other.log")
        os.killpg(fork.pid, signal.SIGKILL)
        fork.wait()
    finally:
        server.close()


def test_the_server_refuses_if_a_fork_would_differ_from_a_fresh_interpreter(both: Both, tmp_path: Path) -> None:
    for folder in ("optional", "broken", "ended"):
        (tmp_path / folder).mkdir()
    (tmp_path / "optional" / "opt_einsum.py").write_text("")  # torch imports this module if it is there
    (tmp_path / "broken" / "torch.py").write_text("raise ImportError('planted')")
    (tmp_path / "ended" / "sitecustomize.py").write_text("import os; os._exit(9)")
    for server, why in (
        (both.serving(tmp_path / "optional" / "a.py"), "torch imports opt_einsum from the folder of the script"),
        (both.serving(tmp_path / "broken" / "b.py"), "it ended with exit code 1 (ImportError: planted)"),
        (both.serving(tmp_path / "c.py", PYTHONPATH=str(tmp_path / "ended")), "it ended with exit code 9"),
        (both.serving(tmp_path / "d.py", "/no/python"), "cannot start /no/python: No such file or directory"),
    ):
        try:
            wait_until(lambda server=server: heard(server).lost, "the server has ended", 120)
            assert server.lost == why
        finally:
            server.close()


def test_the_server_refuses_if_the_process_already_uses_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "GPUS", (str(tmp_path / "nvidia"),))
    assert fork_server.unfit(str(tmp_path)) == ""
    with open(tmp_path / "nvidia0", "w"):
        assert fork_server.unfit(str(tmp_path)) == "a GPU is in use before the script starts"
