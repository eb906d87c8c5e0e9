"""One queue for several users: what their daemons tell the arbiter of their jobs, how it puts that
together, and what it grants them.

Numbers and the names of jobs and servers, nothing else. Nothing here can start a process.

Open `claims.py` for what is told, `merging.py` for one snapshot of all, and `grants.py` for the
answer and its checks.
"""
