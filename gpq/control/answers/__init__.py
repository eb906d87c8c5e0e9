"""The read side turns a snapshot and its history into rows. It changes nothing.

Open `reader.py` first.
"""
