"""Runs `gpq check` here, with a line on the terminal that shows how far it is."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace

from gpq.check.pipeline.proving import CheckRequest, prove
from gpq.check.verdict import Verdict

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


def proven(request: CheckRequest, *, quiet: bool) -> Verdict:
    """Run the check here, and show how far it is unless `quiet`. Raises GpqError if the script
    fails on its own."""
    own = {name: os.environ[name] for name in ENVIRONMENT_NAMES if name in os.environ}
    request = replace(request, environ={**request.environ, **own})
    with _progress(quiet=quiet) as on_shape_end:
        return prove(request, on_shape_end)


@contextlib.contextmanager
def _progress(*, quiet: bool):  # type: ignore[no-untyped-def]
    """On a terminal, show on stderr which shapes are done, and remove that line at the end."""
    is_visible = not quiet and sys.stderr.isatty()
    shape_names: list[str] = []

    def on_shape_end(name: str) -> None:
        shape_names.append(name)
        if is_visible:
            sys.stderr.write(f"\r\033[Kchecking: {len(shape_names)} shapes done, last: {name}")
            sys.stderr.flush()

    try:
        if is_visible:
            sys.stderr.write("checking")
            sys.stderr.flush()
        yield on_shape_end
    finally:
        if is_visible:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
