"""The composition root for reality. Importing it keeps numpy to one thread: a fit of a few hundred
points on every core of a shared server would be rude. Import it before numpy."""

import os

THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
for _name in THREADS:
    os.environ.setdefault(_name, THREADS[_name])
