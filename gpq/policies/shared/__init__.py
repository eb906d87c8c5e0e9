"""What several policies need: eligible jobs, gangs, packing, remaining time, borrowed measurements.

A contest is the set of jobs that a round decides on, with the devices for them. A gang is a job
that runs on exactly the GPUs it asked for.

Open `eligible.py` first.
"""
