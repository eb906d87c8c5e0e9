"""The folders of a node on disk, and the locks under which they change.

The spool holds every attempt's files, the storage every job's checkpoints. Both survive the agent.

Open `spool.py` first.
"""
