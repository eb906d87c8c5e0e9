"""One process per attempt, which outlives agent and daemon: it starts the job, watches it and ends
it.

Everything that the end of a job depends on is here: stops, leases, the process tree, and evidence
that a job was finished.

Open `shim.py` first, then `supervise.py`, which builds on `stops.py` and `exit_record.py`.
"""
