"""From what the core decided to what a node is told: command lines and environments, complete.

Open `start_orders.py` first.
"""
