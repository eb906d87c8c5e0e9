"""The agent as gpq ships it: the sources of gpq_agent as one text, the digest that names it, and
the folder that holds only gpq_agent, for the PYTHONPATH of scripts. Knows no server.

NVIDIA's binding to NVML (nvidia-ml-py, BSD licence) travels with it. It is one file, and most
servers do not have it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import gpq_agent

from gpq.errors import GpqError
from gpq.folders import make_private

BOOTSTRAP = "gpq_agent/node/bootstrap.py"
# the name under which gpq_agent.node.devices.nvml looks for it
BINDING = "gpq_agent/node/pynvml.py"


@dataclass(frozen=True, slots=True)
class Bundle:
    """`digest` is of the text before it was packed, so that another zlib gives the same digest."""

    digest: str
    archive: bytes
    bootstrap: str  # source of the program that unpacks it


@functools.cache
def bundle() -> Bundle:
    """The agent and the binding that are installed with this gpq. The same on every Python."""
    package = Path(gpq_agent.__file__).resolve().parent
    files = {
        str(path.relative_to(package.parent)): path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
    }
    binding = importlib.util.find_spec("pynvml")
    if (
        binding is not None
        and binding.origin is not None
        and Path(binding.origin).name == "pynvml.py"
    ):
        files[BINDING] = Path(binding.origin).read_text(encoding="utf-8")
    # as bootstrap.pack
    content = json.dumps(files, sort_keys=True, separators=(",", ":")).encode("ascii")
    return Bundle(hashlib.sha256(content).hexdigest(), zlib.compress(content, 9), files[BOOTSTRAP])


def library(home: str, *, renew: bool) -> str:
    """The folder in the state directory `home`, created if it is missing. Where gpq is installed,
    its neighbours would hide a script's own packages. `renew` makes it point to this gpq, even if
    another one is still there. Raises GpqError."""
    folder = os.path.join(home, "lib")
    link = os.path.join(folder, "gpq_agent")
    package = str(Path(gpq_agent.__file__).resolve().parent)
    temporary = f"{link}.{os.getpid()}"
    if not renew and os.path.isfile(os.path.join(link, "wire.py")):
        return folder
    make_private(folder)
    try:
        if not os.path.islink(link) or os.readlink(link) != package:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            os.symlink(package, temporary)
            os.replace(temporary, link)
    except OSError as error:
        raise GpqError(
            f"cannot write {folder}: {error.strerror}", "make it writable, or set GPQ_HOME"
        ) from error
    return folder
