"""What an attempt of a job has at hand, whatever its loop does: replicas, the batch in force,
learning rates, checkpoints, figures that go up, and its end.

Nothing here knows when a step begins or ends. That is the engine's.

Open `runtime.py` first.
"""
