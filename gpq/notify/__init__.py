"""Sends one message to one target, in a separate process. Only this room sees the URL of a target.

Open `worker_pool.py` first.
"""
