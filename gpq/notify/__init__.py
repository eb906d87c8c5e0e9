"""One message to one target, in a process of its own. The only room that sees a target's URL.

Open `worker_pool.py` first.
"""
