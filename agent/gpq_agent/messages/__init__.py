"""What `gpq_agent.wire` offers, by topic: orders to a server, states on the server, files of an
attempt and reports of a training. Import them from `wire`, whose docstring has the rules.

Open `orders.py` first.
"""
