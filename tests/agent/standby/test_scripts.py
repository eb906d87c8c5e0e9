"""A script that runs in a standby finds what a new interpreter would have given it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpq_agent import wire

from tests.agent.node.harness import wait_until
from tests.agent.standby.harness import LIBRARY, TRAINS, Scripts, waiting

FACTS = """
import json, os, signal, sys, threading
import torch._dynamo  # which sets variables
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
umask = os.umask(0)
json.dump({
    "argv": sys.argv, "path": sys.path, "orig": getattr(sys, "orig_argv", [])[1:], "executable": sys.executable,
    "main": sorted(name for name in globals() if name.startswith("__")), "file": __file__, "name": __name__,
    "spec": repr(__spec__), "same": sys.modules["__main__"].__dict__ is globals(), "flags": list(sys.flags),
    "env": dict(os.environ), "cwd": os.getcwd(), "umask": umask, "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "cores": sorted(os.sched_getaffinity(0)), "session": os.getsid(0) == os.getpid(),
    "blocked": status["SigBlk"], "ignored": status["SigIgn"], "caught": status["SigCgt"],
    "int": repr(signal.getsignal(signal.SIGINT)), "files": sorted(
        os.readlink("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd")
        if os.path.exists("/proc/self/fd/" + name)  # not that of the listing
    ),
    "encoding": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through],
    "threads": [thread.name for thread in threading.enumerate()],
}, open(sys.argv[1], "w"))
"""


def test_a_script_finds_what_a_new_interpreter_gives_it(scripts: Scripts, tmp_path: Path) -> None:
    def facts(name: str, *, warm: bool) -> dict[str, Any]:
        file = tmp_path / name
        key = scripts.start(FACTS, str(file), "--flag", standby_after=0.0 if warm else None)
        assert scripts.node.ended(key)["code"] == 0, scripts.node.log(key)
        assert scripts.is_warm(key) is warm
        findings: dict[str, Any] = json.loads(
            file.read_text().replace(f"attempts/{key}", "attempts/KEY").replace(str(file), "FILE")
        )
        findings["env"] = {name: value for name, value in findings["env"].items() if not name.startswith("GPQ_")}
        return findings

    cold = facts("cold", warm=False)
    scripts.prepare()
    warm_facts = facts("warm", warm=True)
    for name, value in cold.items():
        assert warm_facts[name] == value, name


ENDS: dict[str, str] = {
    "an exit": "import sys; sys.exit(3)",
    "an error": "def inner():\n    raise ValueError('no')\n\n\ninner()\n",
    "a syntax error": "x = = 1\n",
    "text as exit": "import sys; sys.exit('no luck')",
    "exit handlers": "import atexit; atexit.register(print, 'bye'); print('hello')",
    "os._exit": "import os; os._exit(5)",
    "a signal": "import os; os.kill(os.getpid(), 9)",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)",
}


def test_a_script_ends_as_in_a_new_interpreter(scripts: Scripts) -> None:
    for name, text in ENDS.items():
        ends = []
        for standby in (False, True):
            if standby:
                scripts.prepare()
            key = scripts.start(text, standby_after=0.0 if standby else None)
            record = scripts.node.ended(key)
            assert scripts.is_warm(key) is standby
            ends.append((record["code"], record["signal"], scripts.node.log(key)))
        cold, warm = ends
        if name == "an interrupt":  # the traceback has frames of the standby as well
            cold, warm = (*cold[:2], cold[2].splitlines()[-1:]), (*warm[:2], warm[2].splitlines()[-1:])
        assert warm == cold, name


def test_replicas_have_ranks_random_numbers_and_sessions_of_their_own(scripts: Scripts, tmp_path: Path) -> None:
    scripts.prepare()
    text = (
        "import json, multiprocessing, os, random, numpy, torch\n"
        "key = multiprocessing.current_process().authkey.hex()\n"
        "draws = [random.random(), numpy.random.rand(), key, os.getpid() == os.getsid(0), torch.initial_seed()]\n"
        f"open({str(tmp_path)!r} + '/rank' + os.environ['RANK'], 'w').write(json.dumps(draws))\n"
        "raise SystemExit(4 if os.environ['LOCAL_RANK'] == '1' else 0)\n"
    )
    key = scripts.start(text, ranks=[2, 3], devices=["slot-0", "slot-1"])
    assert scripts.node.ended(key)["code"] == 4
    assert scripts.is_warm(key)
    first, second = (json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (2, 3))
    for one, other in zip(first[:3], second[:3], strict=True):
        assert one != other
    assert first[3] is second[3] is True
    assert first[4] == second[4], "torch starts with the same seed in every process"
    assert wire.read_json(str(scripts.node.folder(key) / wire.FAILURES)) == {"failures": [[3, 4]]}


def test_workers_that_are_spawned_find_the_main_module(scripts: Scripts) -> None:
    text = (
        "import multiprocessing\n\n\ndef double(x):\n    return 2 * x\n\n\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [1, 2]))\n"
    )
    scripts.prepare()
    key = scripts.start(text)
    assert scripts.node.ended(key)["code"] == 0
    assert scripts.is_warm(key)
    assert scripts.node.log(key) == b"[2, 4]\n"


def test_a_module_that_was_edited_meanwhile_is_read_again(scripts: Scripts) -> None:
    own = scripts.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.VERSION = 1\n")
    env = {"PYTHONPATH": f"{LIBRARY}:{own}"}
    scripts.prepare(env=env)
    (own / "sitecustomize.py").write_text("import builtins; builtins.VERSION = 22\n")
    key = scripts.start("print(VERSION)", env=env)
    assert scripts.node.ended(key)["code"] == 0
    assert scripts.node.log(key) == b"22\n"


def test_a_file_next_to_the_script_hides_a_module_as_ever(scripts: Scripts) -> None:
    scripts.prepare()
    (scripts.folder / "decimal.py").write_text("ours = True\n")
    key = scripts.start("import decimal; print(decimal.ours)")
    assert scripts.node.ended(key)["code"] == 0, scripts.node.log(key)
    assert scripts.node.log(key) == b"True\n"


def test_a_variable_that_torch_has_read_means_a_new_interpreter(scripts: Scripts, spool: Path) -> None:
    text = (
        "import os, sys\nprint('once')\nos.environ['UNRELATED'] = '1'\nos.environ['OMP_NUM_THREADS'] = '3'\n"
        "print('torch' in sys.modules)\n" + TRAINS
    )
    env = {"PYTHONUNBUFFERED": ""}
    scripts.prepare(env=env)
    stop = scripts.folder / "stop"
    key = scripts.start(text, str(stop), env=env)
    wait_until(lambda: not waiting(spool) and scripts.ready() == 0, "the end of standbys of this script")
    stop.touch()
    assert scripts.node.ended(key)["code"] == 0
    line, *output = scripts.node.log(key).decode().splitlines()
    assert scripts.is_warm(key)
    assert "changes OMP_NUM_THREADS, which torch reads when it is imported" in line
    assert output == ["once", "False"]


def test_a_variable_that_changes_after_init_is_the_scripts_own_affair(scripts: Scripts) -> None:
    text = "import os, gpq_agent.train as gpq\njob = gpq.init()\nos.environ['OMP_NUM_THREADS'] = '3'\nprint(1)\n"
    scripts.prepare()
    key = scripts.start(text)
    assert scripts.node.ended(key)["code"] == 0
    assert scripts.is_warm(key)
    assert b"starts again" not in scripts.node.log(key)
