"""The world as the daemon sees it: one client per node, what it is told, and what it answers.

`world.py` holds the nodes of this daemon. A conversation is the exchange with one of them, and an
observer turns its reports into events. What the orders say is made in `daemon/orders`.

Open `world.py` first, then `session.py`.
"""
