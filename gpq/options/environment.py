"""The parts of the user's shell that a job gets: an allow-list of variables, and the Python that
runs a script."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING

from gpq.errors import UsageError
from gpq.outward import CERTIFICATES, PROXIES, SECRET

if TYPE_CHECKING:
    from gpq.config import NodeConfig

# Variables that programs read even if no script mentions them.
NAMES = {
    *PROXIES,
    *CERTIFICATES,
    *("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
    *("BASH_ENV", "LOADEDMODULES", "_LMFILES_", "MODULERCFILE", "MODULEPATH", "MODULESHOME"),
    *("WANDB_MODE", "WANDB_PROJECT", "TOKENIZERS_PARALLELISM", "XDG_CACHE_HOME", "XDG_DATA_HOME"),
}
PREFIXES = (
    "CONDA_", "PYTHON", "LC_", "HF_", "TORCH_", "PYTORCH_", "TRANSFORMERS_", "TRITON_", "JAX_",
    "XLA_", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "NCCL_", "GLOO_", "CUDA_", "CUDNN_",
    "CUBLAS_", "NVIDIA_",
    # Terraform uses TF_ too
    "TF_CPP_", "TF_FORCE_", "TF_GPU_", "TF_XLA_",
    # functions of bash, and what `module` of Lmod and of Environment Modules reads
    "BASH_FUNC_", "LMOD_", "__LMOD_", "_ModuleTable", "MODULES_", "__MODULES_", "MODULEPATH_",
)  # fmt: skip
OF_GPQ = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # decided where the job runs
DEFAULTS = "GPQ_DEFAULTS"  # as wire.ENV_DEFAULTS, which a plain command does not import
PASSWORD = re.compile(r"//[^/]*@")  # a password in the value of a proxy


def job_variables(environ: dict[str, str], explicit: dict[str, str]) -> dict[str, str]:
    """The variables that a job starts with. A variable that looks like a secret goes along only if
    --env names it. From within a job, gpq's choices for its server stay behind."""
    defaults: dict[str, str] = {}
    if DEFAULTS in environ:
        import msgspec

        with contextlib.suppress(ValueError):  # belongs to another user
            defaults = msgspec.json.decode(environ[DEFAULTS], type=dict[str, str])
    inherited = {
        k: value
        for k, value in environ.items()
        if _goes_along(k, value) and defaults.get(k) != value
    }
    return dict(sorted({**inherited, **explicit}.items()))


def _goes_along(key: str, value: str) -> bool:
    if key in NAMES:
        return key not in PROXIES or not PASSWORD.search(value)
    return key.startswith(PREFIXES) and key not in OF_GPQ and not SECRET.search(key)


def interpreter(program: str, environ: dict[str, str]) -> str:
    """Absolute path: --python, otherwise that of the active virtual environment, then of conda,
    then the one that runs gpq."""
    if program:
        path = shutil.which(os.path.expanduser(program))
        if not path:
            from gpq import config

            connectors = {node.connector for node in config.load().nodes.values()}
            if os.path.isabs(program) and connectors - {"local"}:
                return program  # servers may have it, and gpq asks each of them
            raise UsageError(
                f"--python {program}: no such program", "give the path of a Python interpreter"
            )
        return os.path.abspath(path)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = environ.get(variable)
        if active and os.access(candidate := os.path.join(active, "bin", "python"), os.X_OK):
            return os.path.abspath(candidate)
    return own()


def on_server(program: str, node: NodeConfig) -> str:
    """The Python with which a script submitted here would run there."""
    if os.path.isabs(program):
        return program
    return (
        node.script_python
        if node.script_python and not program
        else interpreter(program, dict(os.environ))
    )


def own() -> str:
    """The interpreter that runs gpq."""
    return os.path.abspath(sys.executable)
