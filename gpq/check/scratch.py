"""Makes the folder of a check the only place where its processes write: variables that send
programs there, and a command that stops them from writing elsewhere.

`gpq_agent.train.prove.redirect` sends the script's own files to the folder of its shape.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import gpq_agent

LANDLOCK = Path(gpq_agent.__file__).parent / "train" / "prove" / "landlock.py"
NAME = "tmp"  # below the folder of the check
# Sockets with names of 36 characters are made there, and their path may have 107 characters.
LONGEST = 70
LINKS = Path("/tmp")  # used if the path is short
LINK = "link"  # next to it, for the link
FOLDERS = {
    "TMPDIR": "",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "MPLCONFIGDIR": "matplotlib",
}
# A check is not an experiment. Xet is a program of Huggingface that writes past Python.
FIXED = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "HF_HUB_DISABLE_XET": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def variables(home: Path) -> dict[str, str]:
    """Variables that override the shell's. Creates the folder."""
    folder = home / NAME
    folder.mkdir(exist_ok=True)
    if len(os.fsencode(folder)) > LONGEST:
        folder = _short_path(folder)
    paths = {name: str(folder / subfolder) for name, subfolder in FOLDERS.items()}
    return {**FIXED, **paths, "MLFLOW_TRACKING_URI": f"file:{folder / 'mlruns'}"}


def _short_path(folder: Path) -> Path:
    """The same folder by a short path."""
    link = LINKS / f"gpq-{secrets.token_hex(8)}"
    (folder.parent / LINK).symlink_to(link)  # first, so that tidying up finds it
    link.symlink_to(folder)
    return link


def tidy(home: Path) -> None:
    """Remove what is outside of `home`."""
    with contextlib.suppress(OSError):
        os.unlink(os.readlink(home / LINK))


def confinement(python: str, home: Path) -> list[str]:
    """The start of a command that can only write below `home`, if this Linux can enforce that."""
    return [python, "-I", str(LANDLOCK), str(home)]
