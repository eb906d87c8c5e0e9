"""The read side: a snapshot and its history become rows. It changes nothing.

Open `reader.py` first.
"""
