"""Why a job waits, or why it has its GPUs, according to the last round. As codes and facts.

Nothing in the core imports this package. The sentences are in `gpq.control.sentences`.

`pending.py` finds the first obstacle of a waiting job. `obstacles.py` finds what keeps it from all
servers. `running_job.py` says why a job has its GPUs and its batch. `standings.py` compares users
with their floors. Open `explain.py` first.
"""
