"""One process per attempt, which outlives agent and daemon: it starts the job, watches it and ends
it.

Everything that the end of a job depends on is here: stops, leases, the process tree, and evidence
that a job was finished. `replicas.py` and `rendezvous.py` run in the process that the shim has
forked for the job: there the replicas of an attempt come together.

Open `shim.py` first, then `supervise.py`, which builds on `stops.py` and `exit_record.py`.
"""
