"""The process that checks what a job needs: its folder, its interpreter, its modules, and the
result of its setup."""

import os
import subprocess
from typing import Dict, NamedTuple, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.attempts import environment_setup
from gpq_agent.node.attempts.environment_setup import Message
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import start_order

ANSWER = "answer.json"
MODULES_LIMIT = 60.0  # seconds that an interpreter may take to look for modules
MENDS_PYTHON = (
    "install it there at the same path, name another with --python, or set script_python of that"
    " server in config.toml"
)
FIND_MODULES = (
    "import sys; from importlib.util import find_spec; "
    "print('gpq:' + ' '.join(name for name in sys.argv[1:] if find_spec(name) is None))"
)


class Answer(NamedTuple):
    """The answer to `prepare`."""

    fit: bool
    reason: str = ""
    fix: str = ""


def check_places(order: wire.PrepareOrder, env: Dict[str, str]) -> None:
    """Check what lies on file systems that may not answer. Raises SpoolError."""
    problem = start_order.folder_problem(order.cwd)
    if problem is None and not order.setup:
        problem = _interpreter_problem(order.python, order.cwd, env)
    if problem is not None:
        raise SpoolError(*problem, kind="unfit")


def judge(
    order: wire.PrepareOrder, folder: str, env: Dict[str, str], allowance: wire.Attributes
) -> Answer:
    """Run the whole check. If a setup once made everything and something is missing now, run the
    setup again."""
    try:
        check_places(order, env)
    except SpoolError as error:
        return Answer(False, error.message, error.hint)
    if not order.setup:
        return _look_at(order, env, None)
    result = environment_setup.latest(folder)
    answer = _look_at(order, env, result) if result is not None else None
    if result is None or answer is None or (result["made"] and not answer.fit):
        result = environment_setup.run(order, folder, env, allowance)
        answer = _look_at(order, env, result)
    if answer.fit and not result["made"]:
        wire.write_json(os.path.join(folder, environment_setup.SETUP), dict(result, made=True))
    return answer


def _look_at(order: wire.PrepareOrder, env: Dict[str, str], result: Optional[Message]) -> Answer:
    """`result`: the result of the setup, None if there is none."""
    python = order.python
    if result is not None:
        if not result["ok"]:
            return Answer(False, str(result["reason"]), str(result["fix"]))
        env = environment_setup.with_exports(env, result)
        if order.any_python and result["python"] and python:
            python = str(result["python"])
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
            else "the interpreter {} is not executable"
        )
        return problem.format(python), MENDS_PYTHON
    return None


def _modules_problem(
    python: str, order: wire.PrepareOrder, env: Dict[str, str]
) -> Optional[Tuple[str, str]]:
    """Look for modules without importing them, which takes a tenth of a second instead of
    several."""
    command = [python, "-c", FIND_MODULES, *order.modules]
    try:
        process = subprocess.run(
            command, cwd=order.cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=MODULES_LIMIT, check=False,
            preexec_fn=environment_setup.as_a_job,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return (
            "{} did not answer within {:.0f} s".format(python, MODULES_LIMIT),
            "check whether its file system is slow or hangs",
        )
    except OSError as error:
        return "cannot run {}: {}".format(python, error.strerror), MENDS_PYTHON
    lines = process.stdout.decode("utf-8", "replace").splitlines()
    missing_modules = next((line[4:] for line in reversed(lines) if line.startswith("gpq:")), None)
    if missing_modules is None:
        last = environment_setup.last_line(process.stderr)
        return (
            "{} exited with {}: {}".format(python, process.returncode, last or "no output"),
            MENDS_PYTHON,
        )
    if missing_modules:
        missing = ", ".join(missing_modules.split())
        mend = "run `{} -m pip install {}` there, or submit from an environment that has it".format(
            python, missing
        )
        return "{} has no module {}".format(python, missing), mend
    return None
