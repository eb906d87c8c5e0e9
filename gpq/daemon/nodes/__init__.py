"""The world as the daemon sees it: one client per server, what it receives, and what it answers.

`world.py` holds the servers of this daemon. A session is the exchange with one of them, and an
observer turns its reports into events. `gpq.daemon.orders` makes the content of orders.

Open `world.py` first, then `session.py`.
"""
