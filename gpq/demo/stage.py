"""The private daemon in its own folder, and submissions to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from gpq.client import connection, daemon_control
from gpq.demo.cast import Part
from gpq.errors import GpqError, Interrupted, Refused, TimedOut, UsageError
from gpq.policies.registry import entry
from gpq.rpc.job_answers import Submitted
from gpq.rpc.requests import SpecMessage, Submit

SERVERS = ("alpha", "beta")
CONFIG = """\
# Written by `gpq demo`. Two embedded servers have one CPU slot each. Short intervals let you see
# something happen.
policy = "{policy}"
interval = 4.0
settle_seconds = 4.0
restart_seconds = 6.0
grace = 60.0
"""


@dataclass
class Stage:
    """The private daemon's folder, its policy and the jobs on it."""

    home: Path
    examples: Path
    policy: str
    failed: bool = False
    # nobody named the folder, so it is removed once nothing in it is needed
    temporary: bool = False
    ids: dict[str, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)


def examples_folder() -> Path:
    """The example scripts, inside the package or next to it in a checkout. Raises Refused."""
    packaged = Path(str(resources.files("gpq"))) / "examples"
    for folder in (packaged, Path(__file__).resolve().parents[2] / "examples"):
        if (folder / "digits" / "train.py").is_file():
            return folder
    raise Refused(
        "the example scripts are missing from this installation",
        "install gpq again, or run the demo in a checkout",
    )


def check_training() -> None:
    """Raises Refused if the demo's interpreter cannot train."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "sklearn") if find_spec(name) is None]
    if missing:
        raise Refused(
            f"{sys.executable} cannot import {' and '.join(missing)}",
            "run pip install 'goodput-queue[train,examples]', or `make demo` in a checkout",
        )


@contextlib.contextmanager
def stage(home: str = "", policy: str = "goodput") -> Iterator[Stage]:
    """A private daemon in `home` (default: a new temporary folder). It and its jobs are gone
    afterwards. So is the temporary folder, unless something failed. Raises UsageError for an
    unknown policy, and for a `home` that is not writable."""
    entry(policy)
    check_training()
    folder = Path(home or tempfile.mkdtemp(prefix="gpq-demo-")).resolve()
    config = folder / "config.toml"
    try:
        _write_config(config, policy)
    except OSError as error:
        problem = f"cannot write in {folder}"
        if home:
            problem = f"--home {home}: cannot write there"
        raise UsageError(
            f"{problem}: {error.strerror}",
            "use --home with a writable folder",
        ) from None
    old_environment = {name: os.environ.get(name) for name in ("GPQ_HOME", "GPQ_CONFIG")}
    os.environ.update(GPQ_HOME=str(folder), GPQ_CONFIG=str(config))
    here = Stage(folder, examples_folder(), policy, temporary=not home)
    is_needless = False
    try:
        yield here
        is_needless = not here.failed
    except (TimedOut, Interrupted, KeyboardInterrupt):
        is_needless = True
        raise
    finally:
        with contextlib.suppress(GpqError):
            daemon_control.stop(jobs=True)
        _restore(old_environment)
        if here.temporary and is_needless:
            shutil.rmtree(folder, ignore_errors=True)


def _write_config(config: Path, policy: str) -> None:
    config.parent.mkdir(parents=True, exist_ok=True)
    servers = "".join(_server(index) for index in range(len(SERVERS)))
    config.write_text(CONFIG.format(policy=policy) + servers)


def _restore(environment: Mapping[str, str | None]) -> None:
    """Set the variables to these values. None: the variable did not exist."""
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _server(index: int) -> str:
    cores = sorted(os.sched_getaffinity(0))
    share = cores[index :: len(SERVERS)] or cores
    return f"\n[nodes.{SERVERS[index]}]\nslots = 1\ncores = {share}\n"


def submit(here: Stage, part: Part) -> int:
    """Queue one job. Returns its id."""
    script = here.examples / part.script
    spec = SpecMessage(
        argv=[str(script), *part.arguments],
        cwd=str(script.parent),
        level="script",
        name=part.name,
        python=sys.executable,
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
    )
    here.ids[part.name] = connection.call(Submit(spec), Submitted).id
    return here.ids[part.name]
