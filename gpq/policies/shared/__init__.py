"""What several policies need: who is eligible, gangs, packing, remaining time, borrowed
measurements.

A contest is the set of jobs that a round decides on, with the devices there are for them. A gang is
a job that runs on exactly the GPUs it asked for.

Open `eligible.py` first.
"""
