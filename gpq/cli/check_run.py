"""Runs `gpq check` here, with a line on the terminal that shows how far it is."""

from __future__ import annotations

import os
from dataclasses import replace

from gpq.check.proving import CheckRequest, prove
from gpq.check.verdict import Verdict
from gpq.cli.output import Progress

DEFAULT_STEPS = 8
DEFAULT_TIMEOUT = "5m"
# A job gets these from its server.
ENVIRONMENT_NAMES = (
    "HOME",
    "USER",
    "LOGNAME",
    "XDG_CONFIG_HOME",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
)


def run_check(request: CheckRequest, *, quiet: bool) -> Verdict:
    """Run the check here, and show how far it is unless `quiet`. Raises GpqError if the script
    fails on its own."""
    own = {name: os.environ[name] for name in ENVIRONMENT_NAMES if name in os.environ}
    request = replace(request, environ={**request.environ, **own})
    show, names = Progress(quiet=quiet), list[str]()

    def on_shape_end(name: str) -> None:
        names.append(name)
        show(f"checking: {len(names)} shapes done, last: {name}")

    show("checking")
    try:
        return prove(request, on_shape_end)
    finally:
        show("")
