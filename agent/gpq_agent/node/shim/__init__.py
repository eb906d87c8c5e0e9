"""One process per attempt, which outlives agent and daemon: it starts the job, watches it and ends
it.

Everything that a job's end depends on is here: stops, leases, the process tree, evidence that a
job was done.

Open `shim.py` first, then `supervise.py`; `stops.py` and `exit_record.py` are what it stands on.
"""
