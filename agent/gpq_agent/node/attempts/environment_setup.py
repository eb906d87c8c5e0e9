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
    result = _kept(environment_folder(place, order.environment))
    if result is None or not result["ok"]:
        raise SpoolError(
            "the setup has not been run on this server",
            "it is run when the server is looked at",
            "unfit",
        )
    if order.any_python and result["python"]:
        order = order._replace(argv=[str(result["python"]), *order.argv[1:]])
    return order, _with_exports(env, result)


def _with_exports(env: Dict[str, str], result: Message) -> Dict[str, str]:
    """What leads to gpq's library stays in PYTHONPATH."""
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
    result = _kept(folder)
    answer = _look_at(order, env, result) if result is not None else None
    if result is None or answer is None or (result["made"] and not answer.fit):
        result = _run_setup(order, folder, env, allowance)
        answer = _look_at(order, env, result)
    if answer.fit and not result["made"]:
        wire.write_json(os.path.join(folder, SETUP), dict(result, made=True))
    return answer


def _look_at(order: wire.PrepareOrder, env: Dict[str, str], result: Optional[Message]) -> Answer:
    python = order.python
    if result is not None:
        if not result["ok"]:
            return Answer(False, str(result["reason"]), str(result["fix"]))
        env = _with_exports(env, result)
        python = (
            str(result["python"]) if order.any_python and result["python"] and python else python
        )
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
        problem = (
            "no interpreter {}"
            if error.kind == "not-found"
            else "the interpreter {} cannot be executed"
        )
        return problem.format(python), MENDS_PYTHON
    return None


def _modules_problem(
    python: str, order: wire.PrepareOrder, env: Dict[str, str]
) -> Optional[Tuple[str, str]]:
    """Looks for them without importing them: a tenth of a second instead of several."""
    command = [python, "-c", FIND_MODULES, *order.modules]
    try:
        process = subprocess.run(
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
    lines = process.stdout.decode("utf-8", "replace").splitlines()
    missing_modules = next((line[4:] for line in reversed(lines) if line.startswith("gpq:")), None)
    if missing_modules is None:
        last = _last_line(process.stderr)
        return (
            "{} ends with {}: {}".format(python, process.returncode, last or "it says nothing"),
            MENDS_PYTHON,
        )
    if missing_modules:
        missing = ", ".join(missing_modules.split())
        mend = "`{} -m pip install {}` there, or submit from an environment that has it".format(
            python, missing
        )
        return "{} has no module {}".format(python, missing), mend
    return None


def _kept(folder: str) -> Optional[Message]:
    """How the setup ended; None where it is to be run (again)."""
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


def _run_setup(
    order: wire.PrepareOrder, folder: str, env: Dict[str, str], allowance: wire.Attributes
) -> Message:
    """As the job that it is for, without a GPU, with its output in `log`; kept in setup.json."""
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
            preexec_fn=lambda: _as_a_job(allowance),
        )  # fmt: skip
        code = _wait(process, order.limit)
    result: Message = {"ok": code == 0, "made": False, "reason": "", "fix": "", "at": time.time()}
    result.update({"set": {}, "unset": [], "python": ""})
    if code == 0:
        result.update(_exports(exports, base))
    else:
        data, _, _ = logs.tail(log, -4096, 4096)
        ending = (
            "took longer than {:g} s".format(order.limit)
            if code is None
            else "failed ({})".format(_how(code))
        )
        result["reason"] = "the setup {}: {}".format(ending, _last_line(data) or "it said nothing")
        result["fix"] = (
            "its output is in {} there; it is run again {:.0f} s after it failed".format(
                log, SETUP_AGAIN
            )
        )
    wire.write_json(os.path.join(folder, SETUP), result)
    return result


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


def _exports(path: str, base: Dict[str, str]) -> Message:
    """What the setup changed in the environment, and which Python it put first in PATH."""
    try:
        content = records.read_bytes(path)
    except (OSError, ValueError):
        content = None
    if content is None:  # it left by `exit` or `exec`
        return {}
    pairs = [line.partition(b"=") for line in content.split(b"\0") if b"=" in line]
    variables = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    changes = {
        n: v
        for n, v in variables.items()
        if not n.startswith(OURS) and n not in OF_THE_SHELL and base.get(n) != v
    }
    python = ""
    if "PATH" in changes:
        python = (
            shutil.which("python", path=changes["PATH"])
            or shutil.which("python3", path=changes["PATH"])
            or ""
        )
    unset = [
        name
        for name in base
        if name not in variables and not name.startswith(OURS) and name not in OF_THE_SHELL
    ]
    return {"set": changes, "unset": unset, "python": python}


def _how(code: int) -> str:
    return "exit {}".format(code) if code >= 0 else "signal {}".format(-code)


def _last_line(data: bytes) -> str:
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    final_line = lines[-1][:LONGEST_LINE] if lines else ""
    return "".join(sign if sign.isprintable() else "?" for sign in final_line)


def _as_a_job(allowance: Optional[wire.Attributes] = None) -> None:
    """In the child: nothing of what the agent ignores or blocks is handed on."""
    os.setsid()
    if allowance is not None:
        attributes.apply(allowance)
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
