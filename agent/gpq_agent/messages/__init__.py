"""What `gpq_agent.wire` offers, by topic: orders to a node, states of what it has, files of an
attempt, reports of a training. Everybody takes them from `wire`, whose docstring has the rules.

Open `orders.py` first.
"""
