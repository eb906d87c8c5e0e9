"""The data types: jobs, servers, measurements of a job, events, and orders.

Everything here is frozen and decides nothing. An `Event` is a fact that was committed. An `Action`
is an order to a server. A `Snapshot` holds everything that a decision may look at.

Open `jobs.py` first, then `events.py`.
"""
