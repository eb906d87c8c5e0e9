"""Variables that torch and the libraries below it read while they are imported.

A standby has imported them before the script sets such a variable. The script then starts again in
a new interpreter, and the agent makes no more standbys for it.
"""

import os
import signal
import sys
from typing import List, NoReturn

from gpq_agent import wire

CHANGES = ("os.putenv", "os.unsetenv")  # audit events of Python
LINE = (
    "gpq: the script changes {}, which torch reads when it is imported. It starts again in a new"
    " interpreter\n"
)


def watch(argv: List[str]) -> None:
    """Watch the variables until `gpq.init`. `argv`: the script's command."""
    env, cwd = dict(os.environ), os.getcwd()
    is_over = False

    def hook(event: str, arguments: tuple) -> None:  # type: ignore[type-arg]
        nonlocal is_over
        if is_over:
            return
        is_over = event == wire.AUDIT_INIT
        if event in CHANGES and os.fsdecode(arguments[0]).startswith(wire.READ_AT_IMPORT):
            is_over = True
            os.chdir(cwd)
            _start_again(os.fsdecode(arguments[0]), argv, env)

    sys.addaudithook(hook)


def _start_again(name: str, argv: List[str], env: "dict[str, str]") -> NoReturn:
    """What the script has printed and not flushed is lost, and printed again."""
    wire.write_json(os.path.join(env[wire.ENV_RUN_DIR], wire.COLD), {"variable": name})
    os.write(2, LINE.format(name).encode())
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(argv[0], argv, env)
