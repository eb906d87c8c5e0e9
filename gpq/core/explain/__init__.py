"""Why a job waits, or why it has the GPUs it has, read from the last round.

Nothing in the core imports this room.

`pending.py` is the first obstacle of a job that waits, `obstacles.py` what keeps it from all
servers. Open `explain.py` first.
"""
