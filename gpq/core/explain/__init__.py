"""Why a job waits, or why it has the GPUs it has, read from the last round.

Nothing in the core imports this room.

Open `explain.py` first.
"""
