"""One policy per file: it takes a snapshot and returns an allotment for each job.

`registry.py` lists the policies and imports only the one in use. A policy that needs more than one
file has a room. `shared` has what several policies use, `solvers` plain mathematics. No policy
knows another one, and none knows rounds, states or explanations.

Open `fifo.py` for the smallest one and `goodput/policy.py` for gpq's own.
"""
