"""The composition root of the real daemon. Importing it limits numpy to one thread, because a fit
of a few hundred points must not use every core of a shared server. Import it before numpy."""

import os

THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
for _name in THREADS:
    os.environ.setdefault(_name, THREADS[_name])
