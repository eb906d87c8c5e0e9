"""What an attempt of a job has, whatever its loop does: replicas, the current batch, learning
rates, checkpoints, figures to report, and its end.

Nothing here knows when a step starts or ends. The engine does. Open `runtime.py` first.
"""
