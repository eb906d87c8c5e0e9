"""Turns new facts of the journal into notifications, without secrets, and sends each in a process
of its own. Only this room sees the URL of a target.

Open `notifier.py` first, then `worker_pool.py`.
"""
