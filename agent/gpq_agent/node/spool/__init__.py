"""The folders of a server on disk, and the locks under which they change.

The spool holds every attempt's files, and the storage holds every job's checkpoints. Both survive
the agent.

Open `spool.py` first.
"""
