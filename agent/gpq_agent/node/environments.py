"""Does this server have what a job needs? Checks its folder, its interpreter, its modules and the
result of its setup. Starts no job.

<spool>/environments/<name>/   lock (the checking process holds it), log (output of the setup),
                               setup.json (how it ended, and what it exported), answer.json (of the
                               last check)

Anything longer than a few system calls runs in its own process, which outlives the agent.
"""

import contextlib
import os
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from gpq_agent import records, wire
from gpq_agent.node import environment_setup
from gpq_agent.node.environment_setup import Message, environment_folder
from gpq_agent.node.host import attributes, with_timeout
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import shim, start_order
from gpq_agent.node.spool.spool import LOCK, Spool, is_locked, try_lock

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

QUICK = 0.5  # seconds that the agent itself waits for a file system


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
    if result is None:
        result = environment_setup.run(order, folder, env, allowance)
    answer = _look_at(order, env, result)
    if result["made"] and not answer.fit:
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
        problem = "the interpreter {} is not executable"
        if error.kind == "not-found":
            problem = "no interpreter {}"
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


class Pending(NamedTuple):
    """A check that is running. After `until` (time.monotonic) it counts as unanswered."""

    message: Message
    folder: str
    cwd: str
    until: float


def parse(message: Any) -> wire.PrepareOrder:
    """Parse a PrepareOrder from the wire. Raises SpoolError."""
    if not isinstance(message, dict):
        raise SpoolError("`prepare` needs an order", 'send {"prepare": {...}}')
    order: wire.PrepareOrder = start_order.parse(wire.PrepareOrder, message)
    if order.cwd == "~":
        order = order._replace(cwd=os.path.expanduser("~"))
    name = order.environment
    checks = [
        ("environment", name and start_order.NAME.fullmatch(name)),
        ("cwd", os.path.isabs(order.cwd)),
        ("env", start_order.is_env(order.env)),
        ("limit", 0 < order.limit < 1e6),
        ("attributes", attributes.is_right(order.attributes)),
    ]
    start_order.require(order, checks)
    return order


class Environments:
    """The environments of one spool. `base`: the environment of a login, which all jobs have.
    `default`: what the agent had when it started."""

    def __init__(self, place: Spool, base: Dict[str, str], default: wire.Attributes) -> None:
        self.spool = place
        self.base = base
        self.default = default
        self._pending: List[Pending] = []

    @property
    def is_waited_for(self) -> bool:
        return bool(self._pending)

    def prepare(self, message: Message) -> Optional[Message]:
        """The answer, None if it comes with a later `ended`. Raises SpoolError and OSError."""
        order = parse(message.get("prepare"))
        env = {**self.base, **order.env}
        is_quick, until = not order.setup and not (order.python and order.modules), float("inf")
        try:
            with_timeout.check(order.environment, lambda: check_places(order, env), QUICK)
            if is_quick:
                return Answer(True)._asdict()
        except SpoolError as error:
            if error.kind != "busy":
                return Answer(False, error.message, error.hint)._asdict()
            if is_quick:
                until = time.monotonic() + with_timeout.PATIENCE
        folder = environment_folder(self.spool, order.environment)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._look(order, folder, env)
        self._pending.append(Pending(message, folder, order.cwd, until))
        return None

    def ended(self) -> List[Tuple[Message, Message]]:
        """(message, answer) of the checks that have ended since the last call."""
        now = time.monotonic()
        finished_looks = [
            look
            for look in self._pending
            if look.until < now or not is_locked(os.path.join(look.folder, LOCK))
        ]
        self._pending = [look for look in self._pending if look not in finished_looks]
        return [(look.message, self._conclude(look)) for look in finished_looks]

    def _conclude(self, look: Pending) -> Message:
        if is_locked(os.path.join(look.folder, LOCK)):
            silence = with_timeout.no_answer(look.cwd)
            return Answer(False, silence.message, silence.hint)._asdict()
        try:
            answer = records.read_shape(Answer, os.path.join(look.folder, ANSWER))
        except records.Damaged as damage:
            return Answer(False, str(damage), "remove it, and gpq checks again")._asdict()
        if answer is None:
            problem = "the process that checked the environment was killed"
            return Answer(False, problem, "free memory there")._asdict()
        return answer

    def _look(self, order: wire.PrepareOrder, folder: str, env: Dict[str, str]) -> None:
        """Check in a separate process, unless one is already running."""
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not try_lock(lock):
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, ANSWER))
            request = attributes.of(order.attributes) if order.attributes else self.default
            allowance, _ = attributes.grant(request, self.default)

            def look() -> None:
                answer = judge(order, folder, env, allowance)
                wire.write_json(os.path.join(folder, ANSWER), answer._asdict())

            shim.detach(folder, {lock}, look)
        finally:
            os.close(lock)
