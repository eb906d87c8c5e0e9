"""Why a job waits, or why it has the GPUs it has, read from the last round: as codes and facts.

Nothing in the core imports this room. The sentences are `gpq.control.answers.sentences`.

`pending.py` is the first obstacle of a job that waits, `obstacles.py` what keeps it from all
servers, `running_job.py` why it has its GPUs and its batch. Open `explain.py` first.
"""
