"""The setup of an environment. It runs like the job that needs it, and its exports are kept."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from gpq_agent import records, wire
from gpq_agent.node.host import attributes, logs, procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool.spool import Spool

Message = Dict[str, Any]
LOG, SETUP, EXPORTS = "log", "setup.json", "exports"
SETUP_AGAIN = 300.0  # seconds after which a failed setup runs again
TERM_GRACE = 5.0
LONGEST_LINE = 200
OURS = ("GPQ_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # a setup cannot change these
OF_THE_SHELL = ("_", "SHLVL", "PWD", "OLDPWD")
RUN_SETUP = 'eval "$GPQ_SETUP" || exit; cat /proc/self/environ > "$GPQ_SETUP_EXPORTS"'


class Setup(NamedTuple):
    """How a setup ended: setup.json. `set`, `unset`: what it exported. `python`: the one that it
    put first in PATH. `at`: wall clock."""

    ok: bool
    at: float
    set: Dict[str, str]
    unset: List[str]
    python: str = ""
    made: bool = False
    reason: str = ""
    fix: str = ""


def environment_folder(place: Spool, environment: str) -> str:
    return os.path.join(place.path, "environments", environment)


def prepare(
    place: Spool, order: wire.StartOrder, env: Dict[str, str]
) -> Tuple[wire.StartOrder, Dict[str, str]]:
    """Add the exports of the setup to a start. Raises SpoolError if there are none."""
    if not order.setup:
        return order, env
    result = latest(environment_folder(place, order.environment))
    if result is None or not result["ok"]:
        problem = "the setup has not run on this server"
        raise SpoolError(problem, "gpq runs it when it checks the server", "unfit")
    if order.any_python and result["python"]:
        order = order._replace(argv=[str(result["python"]), *order.argv[1:]])
    return order, with_exports(env, result)


def with_exports(env: Dict[str, str], result: Message) -> Dict[str, str]:
    """Apply the exports. The path of gpq's library stays in PYTHONPATH."""
    merged = {
        **{name: value for name, value in env.items() if name not in result["unset"]},
        **result["set"],
    }
    library_path = env.get("PYTHONPATH", "")
    if library_path and merged.get("PYTHONPATH", "") != library_path:
        merged["PYTHONPATH"] = os.pathsep.join(
            filter(None, [merged.get("PYTHONPATH", ""), library_path])
        )
    return merged


# -- in the process that looks ---------------------------------------------------------------------


def latest(folder: str) -> Optional[Message]:
    """How the setup ended. None if it has to run (again)."""
    try:
        result = records.read_shape(Setup, os.path.join(folder, SETUP))
    except records.Damaged:
        return None
    if (
        result is not None
        and not result["ok"]
        and not 0 <= time.time() - float(result["at"]) < SETUP_AGAIN
    ):
        return None
    return result


def run(
    order: wire.PrepareOrder, folder: str, env: Dict[str, str], allowance: wire.Attributes
) -> Message:
    """Run the setup like the job that needs it, but without a GPU. Its output goes to `log`, its
    result to setup.json."""
    exports, log = os.path.join(folder, EXPORTS), os.path.join(folder, LOG)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(exports)
    base = {**env, "CUDA_VISIBLE_DEVICES": ""}
    setup_variables = {"GPQ_SETUP": order.setup, "GPQ_SETUP_EXPORTS": exports}
    shell = shutil.which("bash", path=env.get("PATH", os.defpath)) or "/bin/sh"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [shell, "-c", RUN_SETUP], cwd=order.cwd, env={**base, **setup_variables},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            preexec_fn=lambda: as_a_job(allowance),
        )  # fmt: skip
        code = _wait(process, order.limit)
    result: Message = {"ok": code == 0, "made": False, "reason": "", "fix": "", "at": time.time()}
    result.update({"set": {}, "unset": [], "python": ""})
    result.update(_exports(exports, base) if code == 0 else _failure(order, log, code))
    wire.write_json(os.path.join(folder, SETUP), result)
    return result


def _wait(process: "subprocess.Popen[bytes]", limit: float) -> Optional[int]:
    """The exit code. None if it took too long, and its whole process group was ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(limit)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERM_GRACE)
    return None


def _failure(order: wire.PrepareOrder, log: str, code: Optional[int]) -> Message:
    """Why a setup that ended with `code` failed, and what to do. None: it took too long."""
    output, _, _ = logs.tail(log, -4096, 4096)
    if code is None:
        ending = "took longer than {:g} s".format(order.limit)
    elif code < 0:
        ending = "failed (signal {})".format(-code)
    else:
        ending = "failed (exit {})".format(code)
    words = "its output is in {} there, and gpq runs it again {:.0f} s after it failed"
    return {
        "reason": "the setup {}: {}".format(ending, last_line(output) or "no output"),
        "fix": words.format(log, SETUP_AGAIN),
    }


def _exports(path: str, base: Dict[str, str]) -> Message:
    """What the setup changed in the environment, and which Python it put first in PATH."""
    try:
        content = records.read_bytes(path)
    except (OSError, ValueError):
        content = None
    if content is None:  # it ended with `exit` or `exec`
        return {}
    pairs = [line.partition(b"=") for line in content.split(b"\0") if b"=" in line]
    variables = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    changes = {
        name: value
        for name, value in variables.items()
        if _is_free(name) and base.get(name) != value
    }
    unset = [name for name in base if name not in variables and _is_free(name)]
    path = changes.get("PATH", "")
    python = shutil.which("python", path=path) or shutil.which("python3", path=path) or ""
    return {"set": changes, "unset": unset, "python": python}


def _is_free(name: str) -> bool:
    """May a setup set this variable?"""
    return not name.startswith(OURS) and name not in OF_THE_SHELL


def last_line(data: bytes) -> str:
    lines = ["", *filter(None, map(str.strip, data.decode("utf-8", "replace").splitlines()))]
    return "".join(sign if sign.isprintable() else "?" for sign in lines[-1][:LONGEST_LINE])


def as_a_job(allowance: Optional[wire.Attributes] = None) -> None:
    """In the child: the job inherits no signal that the agent ignores or blocks."""
    os.setsid()
    if allowance is not None:
        attributes.apply(allowance)
    procs.reset_signals()
