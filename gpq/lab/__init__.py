"""Policies that others published, and a simulator to compare policies. gpq runs without it.

`policies` are the published ones, `simulator` runs policies in simulated time, and `measurements`
are what jobs would do. `command.py` is `gpq simulate`. gpq finds all of it by entry points.
"""

# As in `gpq.cli.app`.
SIMULATE = ("gpq.lab.command", "compare policies on a workload or on your own jobs")
