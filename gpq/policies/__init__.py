"""One policy a file: a snapshot in, an allotment for each job out.

`registry.py` lists the policies and imports only the one that is asked for. Policies that need more
than one file have a room. What several share is in `shared`, plain mathematics in `solvers`. No
policy knows another one, and none knows rounds, states or explanations.

Open `fifo.py` for the smallest and `goodput/policy.py` for gpq's own.
"""
