"""The nouns: jobs, nodes, what was measured of a job, what happened, what is ordered.

Everything here is frozen and decides nothing. An `Event` is a fact that was committed, an `Action`
an order to a node. A `Snapshot` holds all that a decision may look at.

Open `jobs.py` first, then `events.py`.
"""
