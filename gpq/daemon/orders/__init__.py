"""From what the core decided to the order that a server receives: command lines and environments,
complete.

Open `start_orders.py` first.
"""
