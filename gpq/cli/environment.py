"""What of the user's shell goes with a job: an allow-list of variables, and which Python runs a script."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TYPE_CHECKING

from gpq.errors import UsageError
from gpq.outward import SECRET

if TYPE_CHECKING:
    from gpq.config import NodeConfig

NAMES = frozenset(
    {
        *("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV"),
        *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "WANDB_MODE", "WANDB_PROJECT", "TOKENIZERS_PARALLELISM"),
        *("XDG_CACHE_HOME", "XDG_DATA_HOME"),
    }
)
PREFIXES = ("CONDA_", "PYTHON", "LC_", "HF_", "TORCH_", "TRANSFORMERS_", "OMP_", "MKL_", "OPENBLAS_", "NCCL_", "GLOO_")
USES_TORCH = re.compile(rb"^(?:import|from)\s+(?:torch|gpq_agent)\b", re.MULTILINE)
MOST_READ = 1 << 20  # bytes of a script


def kept(environ: dict[str, str], explicit: dict[str, str]) -> dict[str, str]:
    """The variables a job is started with. What looks like a secret goes along only when --env names it."""
    chosen = {
        key: value
        for key, value in environ.items()
        if (key in NAMES or key.startswith(PREFIXES)) and not SECRET.search(key)
    }
    return dict(sorted({**chosen, **explicit}.items()))


def modules(script: str, least: int) -> list[str]:
    """What a script needs of its interpreter: torch, where it says so, uses gpq's library, or has several replicas."""
    try:
        with open(script, "rb") as stream:
            text = stream.read(MOST_READ)
    except OSError:
        text = b""  # whoever starts it will say so
    return ["torch"] if least > 1 or USES_TORCH.search(text) else []


def _has_servers() -> bool:
    """Is there a machine but this one?"""
    from gpq import config

    return any(node.connector != "local" for node in config.load().nodes.values())


def interpreter(asked: str, environ: dict[str, str]) -> str:
    """Absolute path: --python, else the active virtual environment's, else conda's, else the one that runs gpq."""
    if asked:
        found = shutil.which(os.path.expanduser(asked))
        if not found and os.path.isabs(asked) and _has_servers():
            return asked  # it may be there: each of them is asked
        if not found:
            raise UsageError(f"--python {asked}: no such program", "give the path of a Python interpreter")
        return os.path.abspath(found)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = environ.get(variable)
        if active and os.access(candidate := os.path.join(active, "bin", "python"), os.X_OK):
            return os.path.abspath(candidate)
    return own()


def on_server(asked: str, node: NodeConfig) -> str:
    """As a script that is submitted here would be run there."""
    if os.path.isabs(asked):
        return asked
    return node.script_python if node.script_python and not asked else interpreter(asked, dict(os.environ))


def own() -> str:
    """The interpreter that runs gpq."""
    return os.path.abspath(sys.executable)
