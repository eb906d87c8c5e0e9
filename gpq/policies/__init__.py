"""One policy per file: it takes a snapshot and returns an allotment for each job.

`registry.py` finds the policies, also those of other packages, and imports only the one in use.
`shared` has what several policies need. No policy knows another one, and none knows rounds, states
or explanations.

Open `fifo.py` for the smallest one and `goodput/policy.py` for gpq's own.
"""
