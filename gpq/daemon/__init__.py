"""The composition root for reality. Importing it keeps numpy to one thread: a fit of a few hundred points on every core
of a shared server would be rude. Import it before numpy; `restore_environment` then hides that from what is started."""

import os

_SET = [
    name
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    if name not in os.environ
]
os.environ.update(dict.fromkeys(_SET, "1"))


def restore_environment() -> None:
    """Take away what the import set: jobs inherit the daemon's environment, and their threads are their own affair."""
    for name in _SET:
        os.environ.pop(name, None)
