"""The process that looks at what a job needs: its folder, its interpreter, its modules, and what
its setup makes."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from gpq_agent import records, wire
from gpq_agent.node.host import attributes, logs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import start_order
from gpq_agent.node.spool.spool import Spool

Message = Dict[str, Any]
LOG, SETUP, ANSWER, EXPORTS = "log", "setup.json", "answer.json", "exports"
SETUP_AGAIN = 300.0  # seconds after which a setup that failed is run once more
QUICK = 0.5  # seconds that the agent itself waits for a file system
MODULES_LIMIT = 60.0  # seconds that an interpreter may take to say what it finds
TERM_GRACE = 5.0
LONGEST_LINE = 200
OURS = ("GPQ_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # no setup decides these
OF_THE_SHELL = ("_", "SHLVL", "PWD", "OLDPWD")
MENDS_PYTHON = (
    "make it there at the same path, name one with --python, or set script_python of that server in"
    " config.toml"
)
RUN_SETUP = 'eval "$GPQ_SETUP" || exit; cat /proc/self/environ > "$GPQ_SETUP_EXPORTS"'
FIND_MODULES = (
    "import sys; from importlib.util import find_spec; "
    "print('gpq:' + ' '.join(name for name in sys.argv[1:] if find_spec(name) is None))"
)


class Setup(NamedTuple):
    """How one ended: setup.json. `set`, `unset`: what it exported; `python`: that it put first in
    PATH; `at`: wall clock."""

    ok: bool
    at: float
    set: Dict[str, str]
    unset: List[str]
    python: str = ""
    made: bool = False
    reason: str = ""
    fix: str = ""


class Answer(NamedTuple):
    """What `prepare` answers."""

    fit: bool
    reason: str = ""
    fix: str = ""


def check_places(order: wire.PrepareOrder, env: Dict[str, str]) -> None:
    """What lies on file systems that may not answer. Raises SpoolError."""
    problem = start_order.folder_problem(order.cwd)
    if problem is None and not order.setup:
        problem = _interpreter_problem(order.python, order.cwd, env)
    if problem is not None:
        raise SpoolError(*problem, kind="unfit")


def prepared(
    place: Spool, order: wire.StartOrder, env: Dict[str, str]
) -> Tuple[wire.StartOrder, Dict[str, str]]:
    """A start with what its setup exported. Raises SpoolError where there is no such thing."""
    if not order.setup:
        return order, env
    kept = _kept(environment_folder(place, order.environment))
    if kept is None or not kept["ok"]:
        raise SpoolError(
            "the setup has not been run on this server",
            "it is run when the server is looked at",
            "unfit",
        )
    if order.any_python and kept["python"]:
        order = order._replace(argv=[str(kept["python"]), *order.argv[1:]])
    return order, _with_exports(env, kept)


def _with_exports(env: Dict[str, str], kept: Message) -> Dict[str, str]:
    """What leads to gpq's library stays in PYTHONPATH."""
    after = {
        **{name: value for name, value in env.items() if name not in kept["unset"]},
        **kept["set"],
    }
    ours = env.get("PYTHONPATH", "")
    if ours and after.get("PYTHONPATH", "") != ours:
        after["PYTHONPATH"] = os.pathsep.join(filter(None, [after.get("PYTHONPATH", ""), ours]))
    return after


def environment_folder(place: Spool, environment: str) -> str:
    return os.path.join(place.path, "environments", environment)


# -- in the process that looks ---------------------------------------------------------------------


def judge(
    order: wire.PrepareOrder, folder: str, env: Dict[str, str], allowance: wire.Attributes
) -> Answer:
    """The whole look. A setup after which all was there is run again where something is not there
    any more."""
    try:
        check_places(order, env)
    except SpoolError as error:
        return Answer(False, error.message, error.hint)
    if not order.setup:
        return _look_at(order, env, None)
    kept = _kept(folder)
    answer = _look_at(order, env, kept) if kept is not None else None
    if kept is None or answer is None or (kept["made"] and not answer.fit):
        kept = _run_setup(order, folder, env, allowance)
        answer = _look_at(order, env, kept)
    if answer.fit and not kept["made"]:
        wire.write_json(os.path.join(folder, SETUP), dict(kept, made=True))
    return answer


def _look_at(order: wire.PrepareOrder, env: Dict[str, str], kept: Optional[Message]) -> Answer:
    python = order.python
    if kept is not None:
        if not kept["ok"]:
            return Answer(False, str(kept["reason"]), str(kept["fix"]))
        env = _with_exports(env, kept)
        python = str(kept["python"]) if order.any_python and kept["python"] and python else python
    problem = _interpreter_problem(python, order.cwd, env)
    if problem is None and python and order.modules:
        problem = _modules_problem(python, order, env)
    return Answer(True) if problem is None else Answer(False, *problem)


def _interpreter_problem(python: str, cwd: str, env: Dict[str, str]) -> Optional[Tuple[str, str]]:
    if not python:
        return None
    try:
        start_order.check_command(python, cwd, env.get("PATH", os.defpath))
    except SpoolError as error:
        told = (
            "no interpreter {}"
            if error.kind == "not-found"
            else "the interpreter {} cannot be executed"
        )
        return told.format(python), MENDS_PYTHON
    return None


def _modules_problem(
    python: str, order: wire.PrepareOrder, env: Dict[str, str]
) -> Optional[Tuple[str, str]]:
    """Looks for them without importing them: a tenth of a second instead of several."""
    command = [python, "-c", FIND_MODULES, *order.modules]
    try:
        found = subprocess.run(
            command, cwd=order.cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=MODULES_LIMIT, check=False, preexec_fn=_as_a_job,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return (
            "{} did not answer within {:.0f} s".format(python, MODULES_LIMIT),
            "is its file system slow, or hung?",
        )
    except OSError as error:
        return "{} cannot be run: {}".format(python, error.strerror), MENDS_PYTHON
    lines = found.stdout.decode("utf-8", "replace").splitlines()
    told = next((line[4:] for line in reversed(lines) if line.startswith("gpq:")), None)
    if told is None:
        last = _last_line(found.stderr)
        return (
            "{} ends with {}: {}".format(python, found.returncode, last or "it says nothing"),
            MENDS_PYTHON,
        )
    if told:
        missing = ", ".join(told.split())
        mend = "`{} -m pip install {}` there, or submit from an environment that has it".format(
            python, missing
        )
        return "{} has no module {}".format(python, missing), mend
    return None


def _kept(folder: str) -> Optional[Message]:
    """How the setup ended; None where it is to be run (again)."""
    try:
        kept = records.read_shape(Setup, os.path.join(folder, SETUP))
    except records.Damaged:
        return None
    if (
        kept is not None
        and not kept["ok"]
        and not 0 <= time.time() - float(kept["at"]) < SETUP_AGAIN
    ):
        return None
    return kept


def _run_setup(
    order: wire.PrepareOrder, folder: str, env: Dict[str, str], allowance: wire.Attributes
) -> Message:
    """As the job that it is for, without a GPU, with its output in `log`; kept in setup.json."""
    exports, log = os.path.join(folder, EXPORTS), os.path.join(folder, LOG)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(exports)
    own = {**env, "CUDA_VISIBLE_DEVICES": ""}
    ours = {"GPQ_SETUP": order.setup, "GPQ_SETUP_EXPORTS": exports}
    shell = shutil.which("bash", path=env.get("PATH", os.defpath)) or "/bin/sh"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [shell, "-c", RUN_SETUP], cwd=order.cwd, env={**own, **ours}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, preexec_fn=lambda: _as_a_job(allowance),
        )  # fmt: skip
        code = _wait(process, order.limit)
    kept: Message = {"ok": code == 0, "made": False, "reason": "", "fix": "", "at": time.time()}
    kept.update({"set": {}, "unset": [], "python": ""})
    if code == 0:
        kept.update(_exports(exports, own))
    else:
        data, _, _ = logs.tail(log, -4096, 4096)
        how = (
            "took longer than {:g} s".format(order.limit)
            if code is None
            else "failed ({})".format(_how(code))
        )
        kept["reason"] = "the setup {}: {}".format(how, _last_line(data) or "it said nothing")
        kept["fix"] = "its output is in {} there; it is run again {:.0f} s after it failed".format(
            log, SETUP_AGAIN
        )
    wire.write_json(os.path.join(folder, SETUP), kept)
    return kept


def _wait(process: "subprocess.Popen[bytes]", limit: float) -> Optional[int]:
    """The exit code; None where it took too long and was ended, with all of its process group."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        pass
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERM_GRACE)
    return None


def _exports(path: str, given: Dict[str, str]) -> Message:
    """What the setup changed in the environment, and which Python it put first in PATH."""
    try:
        content = records.read_bytes(path)
    except (OSError, ValueError):
        content = None
    if content is None:  # it left by `exit` or `exec`
        return {}
    pairs = [line.partition(b"=") for line in content.split(b"\0") if b"=" in line]
    after = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    mine = {
        n: v
        for n, v in after.items()
        if not n.startswith(OURS) and n not in OF_THE_SHELL and given.get(n) != v
    }
    python = ""
    if "PATH" in mine:
        python = (
            shutil.which("python", path=mine["PATH"])
            or shutil.which("python3", path=mine["PATH"])
            or ""
        )
    unset = [
        name
        for name in given
        if name not in after and not name.startswith(OURS) and name not in OF_THE_SHELL
    ]
    return {"set": mine, "unset": unset, "python": python}


def _how(code: int) -> str:
    return "exit {}".format(code) if code >= 0 else "signal {}".format(-code)


def _last_line(data: bytes) -> str:
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1][:LONGEST_LINE] if lines else ""
    return "".join(sign if sign.isprintable() else "?" for sign in last)


def _as_a_job(allowance: Optional[wire.Attributes] = None) -> None:
    """In the child: nothing of what the agent ignores or blocks is handed on."""
    os.setsid()
    if allowance is not None:
        attributes.apply(allowance)
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
