"""What several policies need: eligible jobs, gangs, remaining time, borrowed measurements,
and a knapsack that knows no job.

A contest is the set of jobs that a round decides on, with the devices for them. A gang is a job
that runs on exactly the GPUs it asked for.

Open `eligible.py` first.
"""
